//! The runs as a table, JSON, and a picture.

use std::io::{self, Write};

use foreswap_core::units::{Nanos, PAGE_SIZE};
use serde_json::{Value, json};

use super::Run;
use super::published;
use super::setting::Failure;
use crate::plot::{self, Axis, Line, Plot};
use crate::size::{self, humane};

const MIB: f64 = (1 << 20) as f64;
const SECOND: f64 = 1e9;

/// All runs to report.
pub struct Report<'a> {
    /// In the order of the table.
    pub runs: &'a [Run],
}

/// A time, in the unit that makes it short.
fn time(ns: Nanos) -> String {
    match ns as f64 {
        ns if ns < 999_500.0 => format!("{:.0} us", ns / 1e3),
        ns if ns < 99_950_000.0 => format!("{:.1} ms", ns / 1e6),
        ns if ns < 999_500_000.0 => format!("{:.0} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / SECOND),
    }
}

/// A number with three digits at least.
fn number(value: f64) -> String {
    match value {
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => size::count(value.round() as u64),
    }
}

impl Run {
    fn seconds(&self) -> f64 {
        self.of.time as f64 / SECOND
    }

    /// Bytes per second of all clients.
    fn throughput(&self) -> f64 {
        (self.figures.counts.read + self.figures.counts.written) as f64 / self.seconds()
    }

    fn mirror(&self) -> &'static str {
        match self.of.mirror {
            true => "yes",
            false => "no",
        }
    }
}

const HEAD: [&str; 17] = [
    "workload",
    "failure",
    "mirror",
    "servers",
    "clients",
    "MiB/s",
    "a client",
    "slowest",
    "p50",
    "p99",
    "p99.9",
    "longest",
    "link",
    "threads",
    "retries",
    "time-outs",
    "bus errors",
];

/// The column of failures.
const FAILURE: usize = 1;

impl Report<'_> {
    fn row(run: &Run) -> [String; 17] {
        let (of, figures) = (&run.of, &run.figures);
        let quantile = |part| time(figures.latencies.quantile(part, 1000));
        let percent = |part: f64| format!("{:.0} %", 100.0 * part);
        [
            of.workload.name().into(),
            of.failure.name().into(),
            run.mirror().into(),
            size::count(of.servers.into()),
            size::count(of.clients.into()),
            number(run.throughput() / MIB),
            number(run.throughput() / MIB / f64::from(of.clients)),
            number(figures.client_rates[0] / MIB),
            quantile(500),
            quantile(990),
            quantile(999),
            time(figures.longest),
            percent(figures.load[0]),
            percent(figures.load[1]),
            size::count(figures.counts.retries),
            size::count(figures.counts.timeouts),
            size::count(figures.bus_errors[0]),
        ]
    }

    /// One row a run.
    pub fn table(&self, out: &mut impl Write) -> io::Result<()> {
        let Some(first) = self.runs.first().map(|run| &run.of) else {
            return Ok(());
        };
        writeln!(
            out,
            "clients of {} in {}, {} ns between touches; servers of {:.2} GB/s each way and {} threads; {} counted, \
             --area-timeout {}, seed {}\n",
            humane(first.data),
            humane(first.memory),
            first.think,
            first.link as f64 / 1e9,
            first.threads,
            time(first.time),
            time(first.timeout),
            first.seed
        )?;
        let head = HEAD.map(str::to_owned);
        let rows: Vec<[String; 17]> = std::iter::once(head)
            .chain(self.runs.iter().map(Self::row))
            .collect();
        // Where nothing fails, that needs no column.
        let fails = self.runs.iter().any(|run| run.of.failure != Failure::None);
        let mut widths = [0; 17];
        for row in &rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.len().max(*width);
            }
        }
        for row in &rows {
            let mut line = String::new();
            let cells = row.iter().zip(widths).enumerate();
            for (n, (cell, width)) in cells.filter(|(n, _)| fails || *n != FAILURE) {
                line += &match n {
                    0..3 => format!("{cell:<width$}  "),
                    _ => format!("{cell:>width$}  "),
                };
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        let days = |servers: u32| published::FAILURE_DAYS / f64::from(servers);
        let mut pools: Vec<u32> = self.runs.iter().map(|run| run.of.servers).collect();
        pools.sort_unstable();
        pools.dedup();
        let pools: Vec<String> = pools
            .into_iter()
            .map(|servers| format!("{servers}: {} days", number(days(servers))))
            .collect();
        writeln!(
            out,
            "\na server fails, by servers: every {}",
            pools.join(", ")
        )
    }

    /// As one object, in base units.
    pub fn json(&self) -> Value {
        let runs = self.runs.iter().map(|run| {
            let (of, figures) = (&run.of, &run.figures);
            let counts = &figures.counts;
            let quantile = |part| figures.latencies.quantile(part, 1000) as f64 / SECOND;
            json!({
                "workload": of.workload.name(),
                "failure": of.failure.name(),
                "mirror": of.mirror,
                "servers": of.servers,
                "clients": of.clients,
                "memory_bytes": of.memory * PAGE_SIZE as u64,
                "data_bytes": of.data * PAGE_SIZE as u64,
                "think_ns": of.think,
                "counted_s": run.seconds(),
                "area_timeout_s": of.timeout as f64 / SECOND,
                "link_bytes_per_s": of.link,
                "server_threads": of.threads,
                "seed": of.seed,
                "swap_in_bytes": counts.read,
                "swap_out_bytes": counts.written,
                "bytes_per_s": run.throughput(),
                "client_bytes_per_s_least": figures.client_rates[0],
                "client_bytes_per_s_most": figures.client_rates[1],
                "fault_p50_s": quantile(500),
                "fault_p99_s": quantile(990),
                "fault_p999_s": quantile(999),
                "fault_mean_s": figures.latencies.mean() / SECOND,
                "fault_longest_s": figures.longest as f64 / SECOND,
                "link_busy_ratio": figures.load[0],
                "threads_busy_ratio": figures.load[1],
                "connections_broken": counts.broken,
                "retries": counts.retries,
                "timeouts": counts.timeouts,
                "reads_lost": counts.lost,
                "writes_failed": counts.unwritten,
                "bus_errors": figures.bus_errors[0],
                "clients_with_bus_errors": figures.bus_errors[1],
                "days_between_failures": published::FAILURE_DAYS / f64::from(of.servers),
            })
        });
        json!({ "runs": runs.collect::<Vec<_>>() })
    }

    /// Throughput of the first workload, and the 99.9th percentile of the second, by clients: a line per pool, dashed with a
    /// mirror. Of several failures, the first is shown.
    pub fn picture(&self) -> String {
        let failure = self
            .runs
            .first()
            .map_or(Failure::None, |run| run.of.failure);
        let first = self.runs.first().map(|run| run.of.workload);
        let mut others = self.runs.iter().map(|run| run.of.workload);
        let second = others.find(|&workload| Some(workload) != first).or(first);
        let panel = |workload, what: &str, y_name: &str, value: &dyn Fn(&Run) -> f64| {
            let mut lines: Vec<Line> = Vec::new();
            let shown = self
                .runs
                .iter()
                .filter(|run| Some(run.of.workload) == workload && run.of.failure == failure);
            for run in shown {
                let plural = if run.of.servers == 1 { "" } else { "s" };
                let mirror = if run.of.mirror { ", mirror" } else { "" };
                let name = format!("{} server{plural}{mirror}", run.of.servers);
                let point = (f64::from(run.of.clients), value(run));
                match lines.iter_mut().find(|line| line.name == name) {
                    Some(line) => line.points.push(point),
                    None => lines.push(Line {
                        name,
                        points: vec![point],
                        dashed: run.of.mirror,
                    }),
                }
            }
            for line in &mut lines {
                line.points.sort_by(|a, b| a.0.total_cmp(&b.0));
            }
            let workload = workload.map_or("", |workload| workload.name());
            Plot {
                title: format!("{workload}: {what}"),
                x: Axis::Count("clients"),
                y_name: y_name.into(),
                lines,
            }
        };
        let throughput = |run: &Run| run.throughput() / MIB;
        let tail = |run: &Run| run.figures.latencies.quantile(999, 1000) as f64 / 1e6;
        plot::stacked(&[
            panel(first, "throughput of all clients", "MiB/s", &throughput),
            panel(second, "99.9th percentile of faults", "ms", &tail),
        ])
    }
}
