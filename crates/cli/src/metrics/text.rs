//! The figures of a run in the text formats of Prometheus and OpenMetrics.
//!
//! Each sample has the label `run`, the pid of the supervisor, so that the files of several runs can lie in one folder.
//! Names and units follow Prometheus' conventions. Labels are bounded: areas, live processes, kinds.

use std::fmt::{Display, Write};

use foreswap::ledger::StatsSnapshot;

use crate::control::words::{Process, Run};
use crate::unmanaged::Kind;

/// The bounds of the latency histogram: 2^10 ns (1 µs) to 2^34 ns (17 s), each four times the one before.
const BOUNDS: std::ops::RangeInclusive<u32> = 10..=34;
const BOUND_STEP: usize = 2;

/// A text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Prometheus' own, 0.0.4.
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl Format {
    /// The value of the header Content-Type.
    pub fn content_type(self) -> &'static str {
        match self {
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// What is told of a run.
#[derive(Debug)]
pub struct Figures {
    /// The run, as `foreswap ps` gets it.
    pub run: Run,
    /// The sums over all its processes, ended ones included.
    pub stats: StatsSnapshot,
}

/// The text under construction. A family is its head and all its samples.
struct Text {
    format: Format,
    run: i32,
    name: &'static str,
    suffix: &'static str,
    text: String,
}

impl Text {
    /// Begins a family. The name of a counter is without `_total`; `unit` ends the name, or is empty.
    fn family(&mut self, kind: &str, name: &'static str, unit: &str, help: &str) {
        let is_counter = kind == "counter";
        self.suffix = if is_counter { "_total" } else { "" };
        // The family of a counter has another name in either format.
        let ending = match self.format {
            Format::Prometheus => self.suffix,
            Format::OpenMetrics => "",
        };
        self.name = name;
        let _ = writeln!(self.text, "# HELP {name}{ending} {help}");
        let _ = writeln!(self.text, "# TYPE {name}{ending} {kind}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
    }

    fn sample(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        let (name, run) = (self.name, self.run);
        let _ = write!(self.text, "{name}{suffix}{{run=\"{run}\"");
        for (label, text) in labels {
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.text, ",{label}=\"{text}\"");
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    fn value(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.sample(self.suffix, labels, value);
    }
}

/// The program by its name alone: arguments may be long, and secret.
fn program(command: &str) -> &str {
    let path = command.split(' ').next().unwrap_or_default();
    path.rsplit('/').next().unwrap_or(path)
}

impl Figures {
    /// All families.
    pub fn text(&self, format: Format) -> String {
        let mut text = Text {
            format,
            run: self.run.supervisor,
            name: "",
            suffix: "",
            text: String::new(),
        };
        self.memory(&mut text);
        self.counters(&mut text);
        self.latency(&mut text);
        self.areas(&mut text);
        self.processes(&mut text);
        if format == Format::OpenMetrics {
            text.text.push_str("# EOF\n");
        }
        text.text
    }

    fn memory(&self, text: &mut Text) {
        let run = &self.run;
        text.family(
            "gauge",
            "foreswap_run_info",
            "",
            "The run, with its command.",
        );
        let version = env!("CARGO_PKG_VERSION");
        let labels = [("command", program(&run.command)), ("version", version)];
        text.value(&labels, 1);
        for (name, help, value) in [
            (
                "foreswap_memory_limit_bytes",
                "The limit now.",
                run.limit_bytes,
            ),
            (
                "foreswap_memory_resident_bytes",
                "Managed memory of all processes that counts towards the limit.",
                run.resident_bytes,
            ),
            (
                "foreswap_memory_engine_bytes",
                "Memory of the engines themselves.",
                self.stats.engine_bytes,
            ),
        ] {
            text.family("gauge", name, "bytes", help);
            text.value(&[], value);
        }
        let help = "Memory that foreswap does not manage, at the last regular look.";
        text.family("gauge", "foreswap_memory_unmanaged_bytes", "bytes", help);
        for kind in Kind::ALL {
            text.value(&[("kind", kind.name())], run.unmanaged_bytes.of(kind));
        }
        text.family(
            "gauge",
            "foreswap_managed_processes",
            "",
            "Managed processes now.",
        );
        text.value(&[], run.processes.len());
        let help = "Managed processes that load control lets wait for memory.";
        text.family("gauge", "foreswap_waiting_processes", "", help);
        let waiting = run.processes.iter().filter(|one| one.waits_for_memory);
        text.value(&[], waiting.count());
    }

    fn counters(&self, text: &mut Text) {
        let stats = &self.stats;
        let help = "Page faults: major ones waited for an area, minor ones were served from memory, zero ones with an empty page.";
        text.family("counter", "foreswap_faults", "", help);
        for (kind, n) in [
            ("major", stats.faults_major),
            ("minor", stats.faults_minor),
            ("zero", stats.faults_zero),
        ] {
            text.value(&[("kind", kind)], n);
        }
        for (name, unit, help, n) in [
            (
                "foreswap_swap_in_bytes",
                "bytes",
                "Bytes read from areas.",
                stats.swap_in_bytes,
            ),
            (
                "foreswap_swap_out_bytes",
                "bytes",
                "Bytes written to areas.",
                stats.swap_out_bytes,
            ),
            (
                "foreswap_swap_reads",
                "",
                "Read requests to areas.",
                stats.swap_read_ios,
            ),
            (
                "foreswap_swap_writes",
                "",
                "Write requests to areas.",
                stats.swap_write_ios,
            ),
            (
                "foreswap_readahead_pages",
                "pages",
                "Pages read without a fault on them.",
                stats.readahead_pages,
            ),
            (
                "foreswap_readahead_hit_pages",
                "pages",
                "Pages read without a fault on them, and touched later.",
                stats.readahead_hits,
            ),
            (
                "foreswap_refaults",
                "",
                "Faults on pages evicted while they were still in use.",
                stats.refaults,
            ),
            (
                "foreswap_direct_reclaims",
                "",
                "Times a fault had to wait for reclaim.",
                stats.direct_reclaims,
            ),
            (
                "foreswap_background_reclaims",
                "",
                "Times background reclaim was started.",
                stats.kswapd_wakeups,
            ),
        ] {
            text.family("counter", name, unit, help);
            text.value(&[], n);
        }
        let help = "Time in which at least one thread of a process waited for a page that more memory would have kept, summed over processes.";
        text.family("counter", "foreswap_stalled_seconds", "seconds", help);
        text.value(&[], seconds(stats.stalled_ns));
    }

    fn latency(&self, text: &mut Text) {
        let help =
            "Service times of faults. The sum is that of the buckets' middles, at most 4 % off.";
        let name = "foreswap_fault_duration_seconds";
        text.family("histogram", name, "seconds", help);
        for power in BOUNDS.step_by(BOUND_STEP) {
            let bound = format!("{:?}", seconds(1 << power));
            let within = self.stats.faults_within(power);
            text.sample("_bucket", &[("le", &bound)], within);
        }
        let all: u64 = self.stats.latency.iter().sum();
        text.sample("_bucket", &[("le", "+Inf")], all);
        text.sample("_sum", &[], seconds(self.stats.fault_ns_sum()));
        text.sample("_count", &[], all);
    }

    fn areas(&self, text: &mut Text) {
        for (name, help, used) in [
            ("foreswap_area_size_bytes", "Size of a swap area.", false),
            (
                "foreswap_area_used_bytes",
                "Bytes of pages on a swap area.",
                true,
            ),
        ] {
            text.family("gauge", name, "bytes", help);
            for area in &self.run.areas {
                let number = area.number.to_string();
                let labels = [("area", &*number), ("path", &area.path)];
                text.value(&labels, if used { area.used_bytes } else { area.bytes });
            }
        }
    }

    fn processes(&self, text: &mut Text) {
        let all: [ProcessFamily; 4] = [
            (
                "gauge",
                "foreswap_process_managed_bytes",
                "bytes",
                "Managed memory of a process, resident or not.",
                |one| one.managed_bytes,
            ),
            (
                "gauge",
                "foreswap_process_resident_bytes",
                "bytes",
                "Memory of a process that counts towards the limit.",
                |one| one.resident_bytes,
            ),
            (
                "gauge",
                "foreswap_process_swap_bytes",
                "bytes",
                "Bytes of a process on swap areas.",
                |one| one.swap_bytes,
            ),
            (
                "counter",
                "foreswap_process_major_faults",
                "",
                "Faults of a process that waited for an area.",
                |one| one.faults_major,
            ),
        ];
        for (kind, name, unit, help, figure) in all {
            text.family(kind, name, unit, help);
            for process in &self.run.processes {
                let pid = process.pid.to_string();
                let labels = [("pid", &*pid), ("command", program(&process.command))];
                text.value(&labels, figure(process));
            }
        }
    }
}

/// A family with a sample for each process: type, name, unit, help, and the figure.
type ProcessFamily = (
    &'static str,
    &'static str,
    &'static str,
    &'static str,
    fn(&Process) -> u64,
);

fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

#[cfg(test)]
#[path = "text_tests.rs"]
mod tests;
