//! The head of the page: what happened, in a few sentences, and the figures that matter most.

use std::time::{Duration, SystemTime};

use foreswap_store::area::PAGE_BYTES;
use maud::{Markup, html};

use super::axis::spoken;
use super::{Measured, Story};
use crate::report::{self, grouped, plural};
use crate::size::humane;

/// The title, the sentences, the figures.
pub fn draw(story: &Story<'_>) -> Markup {
    let figures = figures(story);
    html! {
        header {
            p .from {
                "foreswap " (env!("CARGO_PKG_VERSION"))
                @if let Some(measured) = &story.measured { ", " (when(measured.began)) }
                @else { ", from a trace" }
            }
            h1 { code { (story.title) } }
            @for sentence in sentences(story) { p .lead { (sentence) } }
            @if !figures.is_empty() {
                dl .figures {
                    @for (name, figure) in figures {
                        div { dt { (name) } dd { (figure) } }
                    }
                }
            }
        }
    }
}

fn when(time: SystemTime) -> String {
    let text = humantime::format_rfc3339_seconds(time).to_string();
    text.replace('T', " ").replace('Z', " UTC")
}

/// How long some thread of each process waited, in all.
pub fn stalled(measured: &Measured<'_>) -> Duration {
    Duration::from_nanos(measured.run.totals.stats.stalled_ns)
}

fn percent(part: f64) -> String {
    match part * 100.0 {
        small if small > 0.0 && small < 1.0 => "less than 1 %".to_owned(),
        percent => format!("{percent:.0} %"),
    }
}

/// What happened.
fn sentences(story: &Story<'_>) -> Vec<String> {
    match &story.measured {
        Some(measured) => of_run(story, measured),
        None => of_trace(story),
    }
}

fn of_run(story: &Story<'_>, measured: &Measured<'_>) -> Vec<String> {
    let run = measured.run;
    let stats = &run.totals.stats;
    let limit = run.limit_text();
    let ended = match run.exit_status {
        0 => "ended without an error".to_owned(),
        status @ 129..=192 => format!("ended with status {status}, as by signal {}", status - 128),
        status => format!("ended with status {status}"),
    };
    let went_on = match run.left_running {
        0 => String::new(),
        left => format!(
            " {} in the background, and what they do later is not here.",
            plural(left as u64, "process goes on", "processes go on")
        ),
    };
    let elapsed = spoken(run.elapsed);
    let first = format!("It ran for {elapsed} with a limit of {limit} and {ended}.{went_on}");
    if story.is_idle() {
        let idle = report::idle(run, &limit);
        return vec![
            first,
            format!("{}{}.", idle[..1].to_uppercase(), &idle[1..]),
        ];
    }
    let used = humane(stats.managed_bytes.max(run.peak_bytes));
    let (peak, out) = (humane(run.peak_bytes), stats.swap_out_bytes);
    let back = stats.swap_in_bytes;
    let mut second = format!("It used {used} of memory and held at most {peak} at a time");
    second += &match (out, back) {
        (0, 0) => ": nothing went out to an area.".to_owned(),
        (out, 0) => format!(": {} went out, and nothing came back.", humane(out)),
        (out, back) => format!(
            ": {} went out, and {} came back.",
            humane(out),
            humane(back)
        ),
    };
    if stats.file_in_bytes > 0 {
        second += &format!(
            " {} were read from mapped files.",
            humane(stats.file_in_bytes)
        );
    }
    vec![first, format!("{second} {}", waited(measured))]
}

/// How long threads waited.
fn waited(measured: &Measured<'_>) -> String {
    let run = measured.run;
    let stalled = stalled(measured);
    let part = stalled.as_secs_f64() / run.elapsed.as_secs_f64().max(1e-9);
    if stalled.is_zero() {
        "No thread waited for a page that more memory would have kept.".to_owned()
    } else if run.totals.processes > 1 {
        format!(
            "Its processes together waited {} for pages that more memory would have kept.",
            spoken(stalled)
        )
    } else {
        format!(
            "For {}, {} of the time, at least one thread waited for a page that more memory would have kept.",
            spoken(stalled),
            percent(part)
        )
    }
}

fn of_trace(story: &Story<'_>) -> Vec<String> {
    let found = story.found;
    let limit = humane(found.limit_pages * PAGE_BYTES);
    let mut sentences = Vec::new();
    if story.is_idle() {
        sentences.push(format!(
            "The trace of a run with a limit of {limit}. Nothing was managed: everything fitted."
        ));
    } else {
        let total = found.total();
        let (out, back) = (
            humane(total.out * PAGE_BYTES),
            humane(total.back * PAGE_BYTES),
        );
        sentences.push(format!(
            "The trace of a run with a limit of {limit}: in {}, {} had {}; {out} of pages were evicted, and {back} came back.",
            spoken(found.last),
            plural(found.processes, "process", "processes"),
            plural(total.away, "major fault", "major faults"),
        ));
    }
    if story.cut_off {
        sentences
            .push("The end of the trace is missing: the page tells of what is there.".to_owned());
    }
    sentences
}

fn figures(story: &Story<'_>) -> Vec<(&'static str, String)> {
    if story.is_idle() {
        return Vec::new();
    }
    let Some(measured) = &story.measured else {
        let (found, total) = (story.found, story.found.total());
        return vec![
            ("Time recorded", spoken(found.last)),
            ("Limit", humane(found.limit_pages * PAGE_BYTES)),
            ("Major faults", grouped(total.away)),
            ("Evicted", humane(total.out * PAGE_BYTES)),
            ("Came back", humane(total.back * PAGE_BYTES)),
        ];
    };
    let (run, stats) = (measured.run, &measured.run.totals.stats);
    let mut figures = vec![
        ("Run time", spoken(run.elapsed)),
        ("Limit", run.limit_text()),
        ("Peak", humane(run.peak_bytes)),
        ("Major faults", grouped(stats.faults_major)),
        ("Went out", humane(stats.swap_out_bytes)),
        ("Came back", humane(stats.swap_in_bytes)),
        ("Waited", spoken(stalled(measured))),
    ];
    if stats.file_in_bytes > 0 {
        figures.insert(6, ("From files", humane(stats.file_in_bytes)));
    }
    figures
}
