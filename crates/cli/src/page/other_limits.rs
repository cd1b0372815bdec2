//! What another limit would have cost: sentences, a table, the curve.

use std::time::Duration;

use foreswap_store::area::PAGE_BYTES;
use maud::{Markup, html};

use super::axis::{Axis, Unit, spoken};
use super::chart::{Chart, Series, Style};
use super::limits::{Basis, Choice, choices, part};
use super::{Story, lead, section};
use crate::report::grouped;
use crate::size::{exact, humane};

/// Points of the curve.
const POINTS: u64 = 200;
/// One process waited, if this part of all waiting is its own.
const NEARLY_ALL: f64 = 0.95;

/// What the run measured at its limit.
fn basis(story: &Story<'_>) -> Basis {
    let limit_pages = story.found.limit_pages;
    let total = story.found.total();
    let again = total.again as f64 / total.away.max(1) as f64;
    let Some(run) = &story.measured else {
        return Basis {
            limit_pages,
            majors: total.away,
            again,
            ..Basis::default()
        };
    };
    let stats = &run.run.totals.stats;
    let most = run.processes.iter().map(|process| process.stalled_ns).max();
    let alone = most.unwrap_or(0) as f64 >= NEARLY_ALL * stats.stalled_ns as f64;
    Basis {
        limit_pages,
        majors: stats.faults_major,
        again,
        stalled: Some(lead::stalled(run)),
        elapsed: (alone && story.found.threads == story.found.processes).then_some(run.run.elapsed),
    }
}

/// Bytes that came back, from areas and files. A page that came back from a frame that it had not left was not read.
fn back_bytes(story: &Story<'_>) -> u64 {
    let back = story.found.total().back * PAGE_BYTES;
    let read = story.measured.as_ref().map(|measured| {
        let stats = &measured.run.totals.stats;
        stats.swap_in_bytes + stats.file_in_bytes
    });
    back.min(read.unwrap_or(back))
}

/// Why nothing can be told.
fn why_not(story: &Story<'_>, choices: &[Choice]) -> Option<String> {
    if let Some(measured) = &story.measured
        && (measured.run.auto.is_some() || measured.timeline.limit_changed())
    {
        let text = "The limit was not the same all the time, so what another one would have cost is not known. Run it with a \
                    fixed limit, such as the one it settled on.";
        return Some(text.to_owned());
    }
    choices.is_empty().then(|| {
        let limit = humane(story.found.limit_pages * PAGE_BYTES);
        format!(
            "Nothing that had been evicted was needed again: more memory than {limit} would have changed nothing. Whether less \
             would have done is not known; a run with a lower limit shows it."
        )
    })
}

fn about(time: Duration) -> String {
    format!("about {}", spoken(time))
}

/// The choice that comes nearest to half of the returns, and the one without any.
fn sentences(choices: &[Choice]) -> String {
    let [now, others @ ..] = choices else {
        return String::new();
    };
    let told = |choice: &Choice, what: &str| {
        let limit = exact(choice.bytes);
        let time = match (now.elapsed, choice.elapsed) {
            (Some(before), Some(after)) if !before.is_zero() => {
                let less = 100.0 * (1.0 - after.as_secs_f64() / before.as_secs_f64());
                match less.round() {
                    0.0 => format!(", and it would have taken {} all the same", about(after)),
                    less => format!(
                        ", and it would have taken {}, {less:.0} % less",
                        about(after)
                    ),
                }
            }
            _ => String::new(),
        };
        format!("With {limit}, {what}{time}.")
    };
    let half = others
        .iter()
        .find(|choice| choice.back <= 0.6 && choice.back >= 0.2);
    let half = half.map(|choice| {
        let part = choice.back * 100.0;
        told(choice, &format!("{part:.0} % as much would have come back"))
    });
    let none = others.iter().find(|choice| choice.back < 0.005);
    let none = none.map(|choice| told(choice, "next to nothing would have come back"));
    half.into_iter().chain(none).collect::<Vec<_>>().join(" ")
}

/// How much longer than the `least` time, in percent.
fn more(time: Duration, least: Option<Duration>) -> String {
    let least = least.filter(|least| !least.is_zero());
    let more = least.map(|least| 100.0 * (time.as_secs_f64() / least.as_secs_f64() - 1.0));
    more.map_or_else(String::new, |more| format!("+{more:.0} %"))
}

fn table(story: &Story<'_>, choices: &[Choice]) -> Markup {
    let back = back_bytes(story) as f64;
    let has_wait = choices.iter().any(|choice| choice.stalled.is_some());
    let has_time = choices.iter().any(|choice| choice.elapsed.is_some());
    let least = choices.last().and_then(|choice| choice.elapsed);
    html! {
        div .table {
            table .limits {
                thead { tr {
                    th scope="col" { "Limit" }
                    th scope="col" { "Comes back" }
                    th scope="col" .wide { "Major faults" }
                    @if has_wait { th scope="col" { "Waiting" } }
                    @if has_time { th scope="col" { "Run time" } }
                } }
                tbody {
                    @for (number, choice) in choices.iter().enumerate() {
                        tr .measured[number == 0] {
                            th scope="row" { (exact(choice.bytes)) @if number == 0 { small { "this run" } } }
                            td { (humane((back * choice.back) as u64)) small { (format!("{:.0} %", choice.back * 100.0)) } }
                            td .wide { (grouped(choice.majors)) }
                            @if let Some(time) = choice.stalled { td { (spoken(time)) } }
                            @if let Some(time) = choice.elapsed { td { (spoken(time)) small { (more(time, least)) } } }
                        }
                    }
                }
            }
        }
    }
}

fn curve(story: &Story<'_>, basis: &Basis) -> Markup {
    let curve = &story.found.curve;
    let (least, most) = (curve.floor, curve.enough().max(curve.floor + 1));
    let most = most + (most - least) / 20;
    let back = back_bytes(story) as f64;
    let point = |n: u64| {
        let pages = least + (most - least) * n / POINTS;
        (
            (pages * PAGE_BYTES) as f64,
            back * basis.back(part(curve, pages)),
        )
    };
    let bytes = |pages: u64| (pages * PAGE_BYTES) as f64;
    let chart = Chart {
        title: "What comes back, by limit",
        summary: format!(
            "The memory that comes back falls from {} with a limit of {} to nothing with {}.",
            humane(back as u64),
            humane(least * PAGE_BYTES),
            humane(curve.enough() * PAGE_BYTES)
        ),
        x: Axis::within(bytes(least), bytes(most), Unit::Bytes),
        unit: Unit::Bytes,
        series: vec![Series {
            name: "comes back",
            colour: 2,
            style: Style::Area,
            points: (0..=POINTS).map(point).collect(),
        }],
        steps: false,
    };
    chart.draw()
}

/// The section.
pub fn draw(story: &Story<'_>) -> Markup {
    let basis = basis(story);
    let choices = choices(&story.found.curve, &basis);
    let heading = "With another limit";
    if let Some(why) = why_not(story, &choices) {
        return section(heading, &html! { p { (why) } });
    }
    let content = html! {
        p { (sentences(&choices)) }
        (table(story, &choices))
        (curve(story, &basis))
        p .note {
            "The first row is what was measured. The others are estimates: the curve counts the evicted pages that would have \
             stayed in a memory of that size if the page unused for longest always went first, and waiting is taken to fall with \
             them. A real run needs somewhat more. Below the limit of this run nothing is \
             known, as it is not seen which pages in memory are touched; a run with a lower limit shows that."
            @if basis.elapsed.is_some() {
                " The part below a run time is how much longer it is than the least."
            }
            @if basis.stalled.is_some() && basis.elapsed.is_none() {
                " Several processes waited, maybe at the same time, so how long the run would have taken is not known."
            }
            @if basis.stalled.is_none() {
                " A trace does not tell how long faults waited: run with " code { "--report" } " for times."
            }
        }
    };
    section(heading, &content)
}
