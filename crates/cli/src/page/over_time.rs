//! Memory, faults, traffic and waiting over time.

use std::time::Duration;

use foreswap_store::area::PAGE_BYTES;
use maud::{Markup, html};

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

fn memory(time: &Axis, series: Vec<Series>) -> Chart {
    Chart {
        title: "Memory",
        summary: format!(
            "Memory over time: at most {} in memory.",
            bytes(most(&series[0].points))
        ),
        x: time.clone(),
        unit: Unit::Bytes,
        series: with_values(series),
        steps: false,
    }
}

fn faults(time: &Axis, series: Vec<Series>) -> Chart {
    Chart {
        title: "Faults per second",
        summary: format!(
            "Faults per second over time: at most {:.0} major ones.",
            most(&series[0].points)
        ),
        x: time.clone(),
        unit: Unit::Count,
        series: with_values(series),
        steps: true,
    }
}

fn traffic(time: &Axis, title: &'static str, series: Vec<Series>) -> Chart {
    Chart {
        title,
        summary: format!(
            "Traffic over time: at most {} per second came back and {} went out.",
            bytes(most(&series[0].points)),
            bytes(most(&series[1].points))
        ),
        x: time.clone(),
        unit: Unit::Rate,
        series: with_values(series),
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
    vec![
        memory(
            &time,
            vec![
                series(
                    "in memory",
                    1,
                    Style::Area,
                    level(samples, |sample| sample.held_bytes),
                ),
                series(
                    "on areas",
                    2,
                    Style::Line,
                    level(samples, |sample| sample.swapped_bytes),
                ),
                series(
                    "not managed",
                    3,
                    Style::Line,
                    level(samples, |sample| sample.unmanaged_bytes),
                ),
                series(
                    "limit",
                    5,
                    Style::Dashed,
                    level(samples, |sample| sample.limit_bytes),
                ),
            ],
        ),
        traffic(
            &time,
            "Traffic",
            vec![
                series(
                    "came back",
                    2,
                    Style::Area,
                    rate(samples, |sample| sample.in_bytes),
                ),
                series(
                    "went out",
                    3,
                    Style::Line,
                    rate(samples, |sample| sample.out_bytes),
                ),
                series(
                    "from mapped files",
                    1,
                    Style::Line,
                    rate(samples, |sample| sample.file_in_bytes),
                ),
            ],
        ),
        faults(
            &time,
            vec![
                series(
                    "major",
                    2,
                    Style::Area,
                    rate(samples, |sample| sample.faults_major),
                ),
                series(
                    "minor",
                    1,
                    Style::Line,
                    rate(samples, |sample| sample.faults_minor),
                ),
                series(
                    "first touches",
                    3,
                    Style::Line,
                    rate(samples, |sample| sample.faults_zero),
                ),
            ],
        ),
        waiting(&time, samples, alone),
    ]
}

fn of_trace(story: &Story<'_>) -> Vec<Chart> {
    let found = story.found;
    let width = found.column.as_secs_f64();
    let time = Axis::within(0.0, found.last.as_secs_f64(), Unit::Time);
    let points = |figure: fn(&super::activity::Column) -> u64, factor: f64| -> Points {
        let columns = (1..).zip(&found.columns);
        let points =
            columns.map(|(n, column)| (f64::from(n) * width, figure(column) as f64 * factor));
        points.collect()
    };
    let page = PAGE_BYTES as f64;
    let limit = found.limit_pages as f64 * page;
    vec![
        memory(
            &time,
            vec![
                series(
                    "in memory, of what was seen to come",
                    1,
                    Style::Area,
                    points(|column| column.held, page),
                ),
                series(
                    "limit",
                    5,
                    Style::Dashed,
                    vec![(0.0, limit), (time.most, limit)],
                ),
            ],
        ),
        traffic(
            &time,
            "Pages",
            vec![
                series(
                    "came back",
                    2,
                    Style::Area,
                    points(|column| column.back, page / width),
                ),
                series(
                    "evicted",
                    3,
                    Style::Line,
                    points(|column| column.out, page / width),
                ),
            ],
        ),
        faults(
            &time,
            vec![
                series(
                    "major",
                    2,
                    Style::Area,
                    points(|column| column.away, 1.0 / width),
                ),
                series(
                    "minor",
                    1,
                    Style::Line,
                    points(|column| column.near, 1.0 / width),
                ),
                series(
                    "first touches",
                    3,
                    Style::Line,
                    points(|column| column.new, 1.0 / width),
                ),
            ],
        ),
    ]
}

/// The section.
pub fn draw(story: &Story<'_>) -> Markup {
    let alone = story.found.processes <= 1;
    let charts = match &story.measured {
        Some(measured) => of_run(measured.timeline.samples(), alone),
        None => of_trace(story),
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
