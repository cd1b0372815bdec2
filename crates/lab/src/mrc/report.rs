//! The curves as a table, JSON, and a plot.

use std::io::{self, Write};
use std::path::Path;

use serde_json::{Value, json};

use super::Counts;
use super::curve::Curve;
use super::shards::Sample;
use crate::plot::{Axis, Line, Plot};
use crate::size::{self, humane};

/// Sizes at which a sample is compared with the exact curve.
const COMPARED: u64 = 1000;
/// Points of a line of the plot.
const POINTS: u32 = 240;
/// Miss ratios for the answer.
const ASKED: [f64; 2] = [0.01, 0.05];

/// The results to report.
pub struct Report<'a> {
    trace: String,
    results: &'a [Counts],
    sizes: Vec<u64>,
}

fn name(sample: Sample) -> String {
    match sample {
        Sample::All => "exact".into(),
        Sample::Rate(rate) => format!("SHARDS rate {rate}"),
        Sample::Size(most) => format!("SHARDS {most} pages"),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.2} %", ratio * 100.0)
}

/// Sizes that show the curve, from its floor to where it is flat.
fn sizes(curve: &Curve) -> Vec<u64> {
    let (floor, enough) = (curve.floor, curve.enough().max(1));
    let mut sizes = Vec::new();
    if floor > 0 {
        sizes.extend((0..=8).map(|n| floor + (enough - floor) * n / 8));
    } else {
        sizes.extend([64, 32, 16, 8, 4].map(|part| enough / part));
        sizes.extend((3..=8).map(|n| enough * n / 8));
    }
    sizes.retain(|&pages| pages > 0);
    sizes.dedup();
    sizes
}

impl<'a> Report<'a> {
    /// `memory` are the sizes of the table in pages; none: the curve's own.
    pub fn new(trace: &Path, memory: &[u64], results: &'a [Counts]) -> Self {
        let sizes = match results.first() {
            Some(first) if memory.is_empty() => sizes(&first.counted.curve),
            _ => memory.to_vec(),
        };
        Report {
            trace: trace.display().to_string(),
            results,
            sizes,
        }
    }

    fn exact(&self) -> Option<&Counts> {
        self.results
            .iter()
            .find(|found| found.sample == Sample::All)
    }

    /// The error of a sample against the exact curve, if known.
    fn error(&self, found: &Counts) -> Option<(f64, f64, u64)> {
        let exact = self.exact().filter(|_| found.sample != Sample::All)?;
        Some(found.counted.curve.error(&exact.counted.curve, COMPARED))
    }

    /// The table and the answer.
    pub fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.results.first() else {
            return Ok(());
        };
        let (totals, curve) = (&first.totals, &first.counted.curve);
        let floor = curve.floor;
        writeln!(out, "{}", self.trace)?;
        write!(out, "{} touches", size::count(curve.touches as u64))?;
        if totals.file_pages > 0 {
            write!(out, ", {} of them of files", size::count(totals.file_pages))?;
        }
        let tasks = totals.tasks;
        writeln!(
            out,
            ", {} {}",
            size::count(tasks),
            if tasks == 1 { "task" } else { "tasks" }
        )?;
        writeln!(
            out,
            "{} of them are the first of their page ({})",
            size::count(curve.first.round() as u64),
            percent(curve.first / curve.touches.max(1.0))
        )?;
        if let (Some(exact), 0) = (self.exact(), floor) {
            let most = exact.counted.peak as u64;
            let (pages, bytes) = (size::count(most), humane(most));
            writeln!(
                out,
                "its content is in {pages} pages at the most at a time ({bytes})"
            )?;
        }
        if floor > 0 {
            writeln!(
                out,
                "recorded by a run in {}: what it touched in its memory is not in the trace, and \
                 the curve begins there",
                humane(floor)
            )?;
        }
        write!(out, "\n{:>10}  {:>10}", "memory", "pages")?;
        for found in self.results {
            write!(out, "  {:>22}", name(found.sample))?;
        }
        write!(out, "\n{:>10}  {:>10}", "", "")?;
        for _ in self.results {
            write!(out, "  {:>11}{:>11}", "misses", "again")?;
        }
        writeln!(out)?;
        for &pages in &self.sizes {
            write!(out, "{:>10}  {:>10}", humane(pages), size::count(pages))?;
            for found in self.results {
                let curve = &found.counted.curve;
                if pages < curve.floor {
                    write!(out, "  {:>11}{:>11}", "unknown", "unknown")?;
                } else {
                    let (all, again) = (curve.miss_ratio(pages), curve.again_ratio(pages));
                    write!(out, "  {:>11}{:>11}", percent(all), percent(again))?;
                }
            }
            writeln!(out)?;
        }
        writeln!(out)?;
        for found in self.results {
            if let Some((mean, worst, at)) = self.error(found) {
                writeln!(
                    out,
                    "{}: error {} in the mean, {} at the worst (at {}); {} of the pages",
                    name(found.sample),
                    percent(mean),
                    percent(worst),
                    humane(at),
                    percent(found.counted.rate)
                )?;
            }
        }
        writeln!(out, "{}", answer(curve))
    }

    /// Speed, and remarks on the trace.
    pub fn remarks(&self, err: &mut impl Write) -> io::Result<()> {
        for found in self.results {
            let touches = found.counted.touches;
            let seconds = found.took.as_secs_f64();
            writeln!(
                err,
                "foreswap lab: {}: {} touches in {seconds:.2} s, {:.1} million a second",
                name(found.sample),
                size::count(touches),
                touches as f64 / seconds.max(1e-9) / 1e6
            )?;
        }
        let Some(first) = self.results.first() else {
            return Ok(());
        };
        crate::remark_trace(err, &self.trace, first.cut_off, first.totals.lost)
    }

    /// As one object; sizes in bytes.
    pub fn json(&self) -> Value {
        let curves: Vec<_> = self
            .results
            .iter()
            .map(|found| self.json_of(found))
            .collect();
        let totals = self.results.first().map(|found| {
            let totals = found.totals;
            json!({
                "records": totals.records,
                "tasks": totals.tasks,
                "touches": totals.touches,
                "file_pages": totals.file_pages,
                "lost": totals.lost,
                "cut_off": found.cut_off,
            })
        });
        json!({ "trace": self.trace, "totals": totals, "curves": curves })
    }

    fn json_of(&self, found: &Counts) -> Value {
        let curve = &found.counted.curve;
        let points = self.sizes.iter().filter(|pages| **pages >= curve.floor);
        let points: Vec<_> = points
            .map(|&pages| {
                json!({
                    "memory_bytes": pages * size::PAGE,
                    "miss_ratio": curve.miss_ratio(pages),
                    "again_ratio": curve.again_ratio(pages),
                })
            })
            .collect();
        let needed = ASKED.map(|ratio| {
            json!({ "again_ratio": ratio, "memory_bytes": curve.needed(ratio) * size::PAGE })
        });
        let error = self.error(found).map(|(mean, worst, at)| {
            json!({ "mean": mean, "worst": worst, "worst_at_bytes": at * size::PAGE })
        });
        json!({
            "method": name(found.sample),
            "rate": found.counted.rate,
            "touches": curve.touches,
            "sampled_pages_most": found.counted.peak,
            "first_touches": curve.first,
            "known_from_bytes": curve.floor * size::PAGE,
            "enough_bytes": curve.enough() * size::PAGE,
            "points": points,
            "needed": needed,
            "error": error,
        })
    }

    /// The curves.
    pub fn plot(&self) -> Plot {
        let lines = self.results.iter().map(|found| {
            let curve = &found.counted.curve;
            let (floor, most) = (curve.floor.max(1) as f64, curve.enough().max(2) as f64);
            let points = (0..=POINTS).map(|n| {
                let pages = floor
                    * (most / floor)
                        .max(1.0)
                        .powf(f64::from(n) / f64::from(POINTS));
                let pages = pages.round();
                (pages, 100.0 * curve.miss_ratio(pages as u64))
            });
            Line {
                name: name(found.sample),
                points: points.collect(),
                dashed: found.sample != Sample::All,
            }
        });
        Plot {
            title: format!("Misses by memory: {}", self.trace),
            x: Axis::Memory,
            y_name: "% of touches".into(),
            lines: lines.collect(),
        }
    }
}

/// The memory that the program needs.
fn answer(curve: &Curve) -> String {
    if curve.touches == 0.0 {
        return "The trace touches nothing.".into();
    }
    let [one, five] = ASKED.map(|ratio| {
        let needed = curve.needed(ratio);
        if curve.floor > 0 && needed == curve.floor {
            format!("no more than {}", humane(needed))
        } else {
            humane(needed.max(1))
        }
    });
    format!(
        "Needed for 5 % of misses (first touches aside): {five}; for 1 %: {one}; for none: {}.",
        humane(curve.enough().max(1))
    )
}
