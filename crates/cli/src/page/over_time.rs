//! Memory, faults, traffic and waiting over time.

use std::time::Duration;

use foreswap_store::area::PAGE_BYTES;
use maud::{Markup, html};

use super::activity::{Column, Found};
use super::axis::{Axis, Unit};
use super::chart::{Chart, Series, Style};
use super::timeline::Sample;
use super::{Story, section};
use crate::size::humane;

/// Values by seconds since the start.
type Points = Vec<(f64, f64)>;

fn level(samples: &[Sample], figure: fn(&Sample) -> u64) -> Points {
    samples
        .iter()
        .map(|sample| (sample.at.as_secs_f64(), figure(sample) as f64))
        .collect()
}

/// Per second, from one sample to the next.
fn rate(samples: &[Sample], figure: fn(&Sample) -> u64) -> Points {
    let pairs = samples.windows(2).filter(|pair| pair[1].at > pair[0].at);
    pairs
        .map(|pair| {
            let time = (pair[1].at - pair[0].at).as_secs_f64();
            let more = figure(&pair[1]).saturating_sub(figure(&pair[0]));
            (pair[1].at.as_secs_f64(), more as f64 / time)
        })
        .collect()
}

fn most(points: &Points) -> f64 {
    points.iter().map(|&(_, value)| value).fold(0.0, f64::max)
}

fn series(name: &'static str, colour: u8, style: Style, points: Points) -> Series {
    Series {
        name,
        colour,
        style,
        points,
    }
}

/// Without the series that are always zero, except for the first.
fn with_values(mut all: Vec<Series>) -> Vec<Series> {
    let mut number = 0;
    all.retain(|series| {
        number += 1;
        number == 1 || most(&series.points) > 0.0
    });
    all
}

fn bytes(value: f64) -> String {
    humane(value as u64)
}

/// `held` has a name; of the rest, a trace knows the limit only.
fn memory(time: &Axis, name: &'static str, held: Points, rest: [Points; 3]) -> Chart {
    let [swapped, unmanaged, limit] = rest;
    Chart {
        title: "Memory",
        summary: format!(
            "Memory over time: at most {} in memory.",
            bytes(most(&held))
        ),
        x: time.clone(),
        unit: Unit::Bytes,
        series: with_values(vec![
            series(name, 1, Style::Area, held),
            series("on areas", 2, Style::Line, swapped),
            series("not managed", 3, Style::Line, unmanaged),
            series("limit", 5, Style::Dashed, limit),
        ]),
        steps: false,
    }
}

fn traffic(time: &Axis, title: &'static str, out_name: &'static str, points: [Points; 3]) -> Chart {
    let [back, out, files] = points;
    let rates = [&back, &out].map(|points| bytes(most(points)));
    Chart {
        title,
        summary: format!(
            "{title} over time: at most {} per second back and {} out.",
            rates[0], rates[1]
        ),
        x: time.clone(),
        unit: Unit::Rate,
        series: with_values(vec![
            series("came back", 2, Style::Area, back),
            series(out_name, 3, Style::Line, out),
            series("from mapped files", 1, Style::Line, files),
        ]),
        steps: true,
    }
}

fn faults(time: &Axis, [major, minor, new]: [Points; 3]) -> Chart {
    Chart {
        title: "Faults per second",
        summary: format!(
            "Faults per second over time: at most {:.0} major ones.",
            most(&major)
        ),
        x: time.clone(),
        unit: Unit::Count,
        series: with_values(vec![
            series("major", 2, Style::Area, major),
            series("minor", 1, Style::Line, minor),
            series("first touches", 3, Style::Line, new),
        ]),
        steps: true,
    }
}

/// Waiting counts when it ends. What one process waited beyond all of an interval, it waited before that.
fn spread(waits: &mut Points) {
    let mut beyond = 0.0;
    for at in (0..waits.len()).rev() {
        let before = at.checked_sub(1).map_or(0.0, |before| waits[before].0);
        let length = waits[at].0 - before;
        let waited = waits[at].1 * length + beyond;
        beyond = (waited - length).max(0.0);
        waits[at].1 = (waited - beyond) / length;
    }
}

fn waiting(time: &Axis, samples: &[Sample], alone: bool) -> Chart {
    let mut waits = rate(samples, |sample| sample.stalled_ns);
    waits.iter_mut().for_each(|(_, part)| *part /= 1e9);
    if alone {
        spread(&mut waits);
    }
    waits.iter_mut().for_each(|(_, part)| *part *= 100.0);
    Chart {
        title: "Waiting",
        summary: format!(
            "Waiting over time: at most {:.0} % of the time.",
            most(&waits)
        ),
        x: time.clone(),
        unit: Unit::Percent,
        series: vec![series("part of the time", 4, Style::Area, waits)],
        steps: true,
    }
}

fn of_run(samples: &[Sample], alone: bool) -> Vec<Chart> {
    let end = samples.last().map_or(Duration::ZERO, |last| last.at);
    let time = Axis::within(0.0, end.as_secs_f64(), Unit::Time);
    let held = level(samples, |sample| sample.held_bytes);
    let rest = [
        level(samples, |sample| sample.swapped_bytes),
        level(samples, |sample| sample.unmanaged_bytes),
        level(samples, |sample| sample.limit_bytes),
    ];
    let bytes = [
        rate(samples, |sample| sample.in_bytes),
        rate(samples, |sample| sample.out_bytes),
        rate(samples, |sample| sample.file_in_bytes),
    ];
    let counts = [
        rate(samples, |sample| sample.faults_major),
        rate(samples, |sample| sample.faults_minor),
        rate(samples, |sample| sample.faults_zero),
    ];
    vec![
        memory(&time, "in memory", held, rest),
        traffic(&time, "Traffic", "went out", bytes),
        faults(&time, counts),
        waiting(&time, samples, alone),
    ]
}

fn of_trace(found: &Found) -> Vec<Chart> {
    let width = found.column.as_secs_f64();
    let time = Axis::within(0.0, found.last.as_secs_f64(), Unit::Time);
    let points = |figure: fn(&Column) -> u64, factor: f64| -> Points {
        let columns = (1..).zip(&found.columns);
        let points =
            columns.map(|(n, column)| (f64::from(n) * width, figure(column) as f64 * factor));
        points.collect()
    };
    let page = PAGE_BYTES as f64;
    let limit = found.limit_pages as f64 * page;
    let held = points(|column| column.held, page);
    let rest = [
        Vec::new(),
        Vec::new(),
        vec![(0.0, limit), (time.most, limit)],
    ];
    let bytes = [
        points(|column| column.back, page / width),
        points(|column| column.out, page / width),
        Vec::new(),
    ];
    let counts = [
        points(|column| column.away, 1.0 / width),
        points(|column| column.near, 1.0 / width),
        points(|column| column.new, 1.0 / width),
    ];
    vec![
        memory(&time, "in memory, of what was seen to come", held, rest),
        traffic(&time, "Pages", "evicted", bytes),
        faults(&time, counts),
    ]
}

/// The section.
pub fn draw(story: &Story<'_>) -> Markup {
    let alone = story.found.processes <= 1;
    let charts = match &story.measured {
        Some(measured) => of_run(measured.timeline.samples(), alone),
        None => of_trace(story.found),
    };
    let content = html! {
        div .charts { @for chart in &charts { (chart.draw()) } }
        @if story.measured.is_some() {
            p .note {
                "Waiting is the time in which at least one thread waited for a page that more memory would have kept."
                @if !alone { " Each process counts for itself: several that wait at the same time are more than 100 %." }
            }
        }
    };
    section("Over time", &content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(ms: u64, faults_major: u64) -> Sample {
        Sample {
            at: Duration::from_millis(ms),
            faults_major,
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_per_second() {
        let samples = [
            sample(0, 0),
            sample(500, 10),
            sample(500, 12),
            sample(2500, 14),
        ];
        let points = rate(&samples, |sample| sample.faults_major);
        assert_eq!(points, [(0.5, 20.0), (2.5, 1.0)]);
    }

    #[test]
    fn a_long_wait_began_earlier() {
        let mut waits = vec![(1.0, 0.2), (2.0, 0.5), (3.0, 1.8), (4.0, 0.25)];
        spread(&mut waits);
        let parts: Vec<u32> = waits
            .iter()
            .map(|wait| (wait.1 * 100.0).round() as u32)
            .collect();
        assert_eq!(parts, [50, 100, 100, 25]);
    }
}
