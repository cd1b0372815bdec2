//! The runs as a table, JSON, and a plot.

use std::io::{self, Write};

use clap::ValueEnum as _;
use foreswap_core::units::Nanos;
use serde_json::{Value, json};

use super::Run;
use super::device::Device;
use crate::plot::{Axis, Line, Plot};
use crate::size::{self, PAGE, humane};

/// All runs to report.
pub struct Report<'a> {
    /// Its name.
    pub trace: String,
    /// The device of the area.
    pub device: Device,
    /// Between two touches.
    pub think: Nanos,
    /// The limit of the recorded run, in pages; 0: the trace has every touch.
    pub limit: u64,
    /// In the order of the table.
    pub runs: &'a [Run],
}

fn seconds(ns: Nanos) -> f64 {
    ns as f64 / 1e9
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

/// A time with four significant digits.
fn time(ns: Nanos) -> String {
    match ns {
        0..10_000_000 => format!("{:.1} µs", ns as f64 / 1e3),
        10_000_000..1_000_000_000 => format!("{:.1} ms", ns as f64 / 1e6),
        _ => format!("{:.3} s", seconds(ns)),
    }
}

impl Run {
    /// The share of its major faults that MIN would have; `None`: it has none, or MIN is unknown.
    fn of_min(&self) -> Option<f64> {
        let min = self.min.filter(|_| self.figures.major > 0)?;
        Some(min as f64 / self.figures.major as f64)
    }
}

impl Report<'_> {
    fn device_name(&self) -> String {
        let value = self.device.kind.to_possible_value();
        value.map_or(String::new(), |value| value.get_name().to_owned())
    }

    /// One row a run.
    pub fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let device = self.device;
        writeln!(
            out,
            "{} on {}: {} to read, {:.2} GB/s; {} between touches",
            self.trace,
            self.device_name(),
            time(device.read + device.seek),
            device.bandwidth as f64 / 1e9,
            time(self.think),
        )?;
        if let Some(run) = self.runs.first() {
            writeln!(out, "{} touches", size::count(run.figures.touches))?;
        }
        writeln!(
            out,
            "\n{:>10}  {:<9} {:<8} {:<11} {:>11} {:>11} {:>11} {:>10} {:>9} {:>10} {:>9} {:>10} {:>9} {:>9} \
             {:>9} {:>9} {:>9} {:>9}",
            "memory",
            "readahead",
            "thp",
            "reclaim",
            "time",
            "waited",
            "major",
            "minor",
            "first",
            "read",
            "reads",
            "written",
            "in memory",
            "ahead hit",
            "huge in",
            "huge out",
            "splits",
            "of MIN",
        )?;
        for run in self.runs {
            let figures = &run.figures;
            let found = 1.0 - ratio(figures.major, figures.touches);
            let of_min = run.of_min();
            let hits = match figures.ahead {
                0 => "-".into(),
                ahead => format!("{:.2} %", 100.0 * ratio(figures.ahead_used, ahead)),
            };
            writeln!(
                out,
                "{:>10}  {:<9} {:<8} {:<11} {:>11} {:>11} {:>11} {:>10} {:>9} {:>10} {:>9} {:>10} {:>9} {:>9} \
                 {:>9} {:>9} {:>9} {:>9}",
                humane(run.of.memory),
                run.of.readahead.name(),
                run.of.thp.name(),
                run.of.reclaim.name(),
                time(figures.elapsed),
                time(figures.waited),
                size::count(figures.major),
                size::count(figures.minor),
                size::count(figures.zero),
                humane(figures.read_pages),
                size::count(figures.reads),
                humane(figures.written_pages),
                format!("{:.2} %", 100.0 * found),
                hits,
                size::count(figures.huge_in),
                size::count(figures.huge_out),
                size::count(figures.splits),
                of_min.map_or("-".into(), |share| format!("{:.2} %", 100.0 * share)),
            )?;
        }
        Ok(())
    }

    /// Remarks on the trace.
    pub fn remarks(&self, err: &mut impl Write) -> io::Result<()> {
        let Some(run) = self.runs.first() else {
            return Ok(());
        };
        let trace = &self.trace;
        if run.figures.files_left_out > 0 {
            let pages = size::count(run.figures.files_left_out);
            writeln!(
                err,
                "foreswap lab: {trace}: {pages} pages of files are left out: the simulated machine \
                 has no page cache in this version"
            )?;
        }
        if self.runs.iter().any(|run| run.of.memory < self.limit) {
            let limit = humane(self.limit);
            writeln!(
                err,
                "foreswap lab: {trace}: recorded in {limit}: what it touched in its memory is not in \
                 the trace, so that runs in less have too few faults"
            )?;
        }
        crate::remark_trace(err, trace, run.cut_off, run.figures.lost)
    }

    /// As one object, in base units.
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            let figures = &run.figures;
            json!({
                "memory_bytes": run.of.memory * PAGE,
                "readahead": run.of.readahead.name(),
                "thp": run.of.thp.name(),
                "reclaim": run.of.reclaim.name(),
                "min_misses": run.min,
                "min_ratio": run.of_min(),
                "elapsed_s": seconds(figures.elapsed),
                "waited_s": seconds(figures.waited),
                "touches": figures.touches,
                "faults_major": figures.major,
                "faults_minor": figures.minor,
                "faults_zero": figures.zero,
                "swap_in_bytes": figures.read_pages * PAGE,
                "swap_out_bytes": figures.written_pages * PAGE,
                "swap_read_ios": figures.reads,
                "swap_write_ios": figures.writes,
                "found_in_memory_ratio": 1.0 - ratio(figures.major, figures.touches),
                "readahead_pages": figures.ahead,
                "readahead_hits": figures.ahead_used,
                "readahead_hit_ratio": ratio(figures.ahead_used, figures.ahead),
                "huge_swap_in": figures.huge_in,
                "huge_swap_out": figures.huge_out,
                "huge_splits": figures.splits,
                "peak_resident_bytes": figures.peak * PAGE,
                "file_pages_left_out": figures.files_left_out,
            })
        });
        json!({
            "trace": self.trace,
            "recorded_limit_bytes": self.limit * PAGE,
            "device": {
                "name": self.device_name(),
                "read_ns": self.device.read,
                "write_ns": self.device.write,
                "seek_ns": self.device.seek,
                "bytes_per_second": self.device.bandwidth,
                "channels": self.device.channels,
            },
            "think_ns": self.think,
            "runs": runs.collect::<Vec<_>>(),
        })
    }

    /// Time by memory, a line per policy and huge page mode.
    pub fn plot(&self) -> Plot {
        let mut lines: Vec<Line> = Vec::new();
        let thp = self.runs.first().map(|run| run.of.thp);
        let one_mode = self.runs.iter().all(|run| Some(run.of.thp) == thp);
        let reclaim = self.runs.first().map(|run| run.of.reclaim);
        let one_order = self.runs.iter().all(|run| Some(run.of.reclaim) == reclaim);
        for run in self.runs {
            let mut name = run.of.readahead.name().to_owned();
            if !one_mode {
                name = format!("{name}, {}", run.of.thp.name());
            }
            if !one_order {
                name = format!("{name}, {}", run.of.reclaim.name());
            }
            let point = (run.of.memory as f64, seconds(run.figures.elapsed));
            match lines.iter_mut().find(|line| line.name == name) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name,
                    points: vec![point],
                    dashed: false,
                }),
            }
        }
        for line in &mut lines {
            line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
        }
        Plot {
            title: format!("Time by memory: {}", self.trace),
            x: Axis::Memory,
            y_name: "seconds".into(),
            lines,
        }
    }
}
