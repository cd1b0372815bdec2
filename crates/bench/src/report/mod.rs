//! From turns to the printed and written report: medians over turns, ratios to the first peer, targets reached or not.

mod table;
mod windows;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use serde_json::Value;

use crate::args::PeerName;
use crate::peer::Figures;
use crate::spread::Spread;
use crate::steal::{MUCH, STOLEN};
pub use table::{Column, Unit};
pub use windows::{regions_hit_ratio, windows_line};

/// All results of a bench. Written in this form by `--json`.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The bench's name.
    pub bench: String,
    /// The run, in words.
    pub title: String,
    /// The machine it was run on.
    pub machine: Machine,
    /// Its parameters.
    pub parameters: Value,
    /// Each peer's turns, in the order of the peers; the first is the one measured.
    pub peers: Vec<PeerReport>,
    /// The first peer's median over each other's, by figure.
    pub ratios: Vec<Ratio>,
    /// The targets.
    pub targets: Vec<Target>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// Benches of a series that could not be completed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
    /// The reports that this one summarises, if any.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Report>,
    #[serde(skip)]
    columns: Vec<Column>,
    #[serde(skip)]
    lines: Vec<String>,
}

/// The machine of a bench.
#[derive(Debug, Serialize)]
pub struct Machine {
    /// Kernel release.
    pub kernel: String,
    /// CPUs that we may use.
    pub cpus: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// The directory of swap areas and files.
    pub directory: String,
    /// The device under that.
    pub device: String,
}

/// One peer's turns.
#[derive(Debug, Serialize)]
pub struct PeerReport {
    /// Its name.
    pub peer: String,
    /// Why it has no turns, if it has none.
    pub not_run: Option<String>,
    /// Median and extremes over the turns, by figure.
    pub figures: BTreeMap<String, Spread>,
    /// Each turn's figures.
    pub turns: Vec<Figures>,
    /// Each turn's reports in full.
    pub details: Vec<Value>,
}

/// The measured peer's median over another's.
#[derive(Debug, Serialize)]
pub struct Ratio {
    /// The figure.
    pub figure: String,
    /// The peer of the numerator.
    pub of: String,
    /// The peer of the denominator.
    pub to: String,
    /// Median over median.
    pub ratio: f64,
    /// Which direction is better for the numerator's peer.
    pub better: Better,
    /// The ratios of adjacent turns.
    pub turns: Spread,
}

/// Whether less or more is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Better {
    /// Times, counts of faults.
    Less,
    /// Throughputs, ratios of hits.
    More,
}

/// A target.
#[derive(Debug, Clone, Serialize)]
pub struct Target {
    /// Its name.
    pub what: String,
    /// Whether smaller is better.
    pub at_most: bool,
    /// The bound.
    pub bound: f64,
    /// The figure; `None` when a peer that it needs was not run.
    pub found: Option<f64>,
    /// Whether it was reached, where that is known.
    pub reached: Option<bool>,
    #[serde(skip)]
    unit: Unit,
}

impl Target {
    /// A figure that is to be `bound` at most.
    pub fn at_most(what: impl Into<String>, bound: f64, unit: Unit, found: Option<f64>) -> Self {
        Self {
            what: what.into(),
            at_most: true,
            bound,
            found,
            reached: found.map(|found| found <= bound),
            unit,
        }
    }

    /// A figure that is to be `bound` at least.
    pub fn at_least(what: impl Into<String>, bound: f64, unit: Unit, found: Option<f64>) -> Self {
        Self {
            at_most: false,
            reached: found.map(|found| found >= bound),
            ..Self::at_most(what, bound, unit, found)
        }
    }

    /// The figure, the bound, and the verdict.
    pub fn words(&self) -> [String; 3] {
        let side = if self.at_most { "at most" } else { "at least" };
        let asked = format!("{side} {}", self.unit.with_name(self.bound));
        let (found, verdict) = match (self.found, self.reached) {
            (Some(found), Some(true)) => (self.unit.with_name(found), "reached"),
            (Some(found), _) => (self.unit.with_name(found), "NOT reached"),
            (None, _) => ("-".to_owned(), "unknown: a peer was not run"),
        };
        [found, asked, verdict.to_owned()]
    }

    fn line(&self) -> String {
        let [found, asked, verdict] = self.words();
        format!("target: {}: {found}, {asked}: {verdict}", self.what)
    }
}

impl PeerReport {
    /// A peer and its turns.
    pub fn new(peer: impl Into<String>, turns: Vec<Figures>, details: Vec<Value>) -> Self {
        let names: BTreeSet<&String> = turns.iter().flat_map(BTreeMap::keys).collect();
        let spread = |name: &String| {
            let values: Vec<f64> = turns
                .iter()
                .filter_map(|turn| turn.get(name).copied())
                .collect();
            (name.clone(), Spread::of(&values))
        };
        let figures = names.into_iter().map(spread).collect();
        Self {
            peer: peer.into(),
            not_run: None,
            figures,
            turns,
            details,
        }
    }

    /// A peer that could not be run.
    pub fn not_run(peer: impl Into<String>, reason: String) -> Self {
        Self {
            not_run: Some(reason),
            ..Self::new(peer, Vec::new(), Vec::new())
        }
    }

    /// A peer with turns of these figures, for tests.
    #[cfg(test)]
    pub fn of<'a, T>(peer: impl Into<String>, turns: impl IntoIterator<Item = T>) -> Self
    where
        T: IntoIterator<Item = (&'a str, f64)>,
    {
        let turns = turns.into_iter().map(crate::peer::figures);
        Self::new(peer, turns.collect(), Vec::new())
    }

    /// The largest of a figure over the turns.
    pub fn largest(&self, figure: &str) -> Option<f64> {
        self.figures.get(figure).map(|spread| spread.max)
    }

    /// The median of a figure.
    pub fn median(&self, figure: &str) -> Option<f64> {
        self.figures.get(figure).map(|spread| spread.median)
    }
}

impl Report {
    /// A report without results yet.
    pub fn new(bench: &str, title: String, machine: Machine, parameters: Value) -> Self {
        Self {
            bench: bench.to_owned(),
            title,
            machine,
            parameters,
            peers: Vec::new(),
            ratios: Vec::new(),
            targets: Vec::new(),
            notes: Vec::new(),
            failures: Vec::new(),
            parts: Vec::new(),
            columns: Vec::new(),
            lines: Vec::new(),
        }
    }

    /// The columns of the printed table.
    pub fn show(&mut self, columns: Vec<Column>) {
        self.columns = columns;
    }

    /// A line printed under the table.
    pub fn say(&mut self, line: String) {
        self.lines.push(line);
    }

    /// A peer's report.
    pub fn peer(&self, name: &str) -> Option<&PeerReport> {
        self.peers.iter().find(|peer| peer.peer == name)
    }

    /// Compares the first peer's `figure` with each other's.
    pub fn compare(&mut self, figure: &str, better: Better) {
        let Some((first, others)) = self.peers.split_first() else {
            return;
        };
        for other in others {
            let medians = first.median(figure).zip(other.median(figure));
            let Some((above, below)) = medians.filter(|(_, below)| *below != 0.0) else {
                continue;
            };
            let pairs = first.turns.iter().zip(&other.turns);
            let ratios: Vec<f64> = pairs
                .filter_map(|(a, b)| Some(a.get(figure)? / b.get(figure)?))
                .collect();
            self.ratios.push(Ratio {
                figure: figure.to_owned(),
                of: first.peer.clone(),
                to: other.peer.clone(),
                ratio: above / below,
                better,
                turns: Spread::of(&ratios),
            });
        }
    }

    /// The first peer's median of `figure` over that of `to`.
    pub fn ratio(&self, figure: &str, to: &str) -> Option<f64> {
        let found = self
            .ratios
            .iter()
            .find(|r| r.figure == figure && r.to == to);
        found.map(|ratio| ratio.ratio)
    }

    /// The report as text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let machine = &self.machine;
        let _ = writeln!(text, "{}: {}", self.bench, self.title);
        let _ = writeln!(
            text,
            "Linux {}, {} CPUs, {}, areas in {} on {}\n",
            machine.kernel,
            machine.cpus,
            crate::size::humane(machine.memory_bytes),
            machine.directory,
            machine.device
        );
        if !self.columns.is_empty() {
            text.push_str(&table::text(&self.columns, &self.peers));
            text.push('\n');
        }
        for ratio in &self.ratios {
            let better = match ratio.better {
                Better::Less => "less",
                Better::More => "more",
            };
            let _ = writeln!(
                text,
                "{} {} / {}: {:.3} ({:.3} to {:.3} turn by turn), {better} is better",
                ratio.figure, ratio.of, ratio.to, ratio.ratio, ratio.turns.min, ratio.turns.max
            );
        }
        for line in &self.lines {
            let _ = writeln!(text, "{line}");
        }
        if self.parts.is_empty() {
            for target in &self.targets {
                let _ = writeln!(text, "{}", target.line());
            }
        } else {
            text.push_str(&table::targets(&self.targets));
        }
        for failure in &self.failures {
            let _ = writeln!(text, "FAILED: {failure}");
        }
        for note in self.notes.iter().chain(&self.stolen()) {
            let _ = writeln!(text, "note: {note}");
        }
        text
    }

    /// A note for each peer whose CPU time the host gave to others.
    fn stolen(&self) -> Vec<String> {
        let much = |peer: &PeerReport| {
            let share = peer.largest(STOLEN).filter(|share| *share >= MUCH)?;
            Some(format!(
                "in a turn of {} the host gave {:.0} % of this machine's CPU time to others: repeat it in a quieter hour, or with --pause",
                peer.peer,
                share * 100.0
            ))
        };
        self.peers.iter().filter_map(much).collect()
    }

    /// Writes the JSON report.
    pub fn write_json(&self, path: &Path) -> anyhow::Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        std::fs::write(path, text + "\n")
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

impl Machine {
    /// This machine.
    pub fn here(directory: &Path) -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let meminfo = read("/proc/meminfo");
        let kib = meminfo
            .split_whitespace()
            .nth(1)
            .and_then(|word| word.parse::<u64>().ok());
        let device = crate::system::device::Device::under(directory);
        Self {
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            cpus: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: kib.unwrap_or(0) << 10,
            directory: directory.display().to_string(),
            device: device.map_or_else(|_| "?".to_owned(), |device| device.name),
        }
    }
}

/// The peer's name on the command line.
pub fn peer_name(peer: PeerName) -> &'static str {
    match peer {
        PeerName::Foreswap => "foreswap",
        PeerName::Encrypted => "encrypted",
        PeerName::Kernel => "kernel",
        PeerName::KernelDefaults => "kernel-defaults",
        PeerName::Zram => "zram",
        PeerName::Zswap => "zswap",
        PeerName::Bare => "bare",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, values: &[f64]) -> PeerReport {
        PeerReport::of(name, values.iter().map(|value| [("ns_per_page", *value)]))
    }

    fn report() -> Report {
        let machine = Machine::here(Path::new("/"));
        let mut report = Report::new("rand-read", "a test".to_owned(), machine, Value::Null);
        report.peers.push(peer("foreswap", &[40e3, 44e3, 42e3]));
        report.peers.push(peer("kernel", &[40e3, 40e3, 42e3]));
        report.peers.push(PeerReport::not_run(
            "kernel-defaults",
            "it needs root".to_owned(),
        ));
        report.show(vec![Column::spread(
            "us/page",
            "ns_per_page",
            Unit::Microseconds,
        )]);
        report.compare("ns_per_page", Better::Less);
        report
    }

    #[test]
    fn ratios_are_of_medians() {
        let report = report();
        assert_eq!(report.ratio("ns_per_page", "kernel"), Some(42e3 / 40e3));
        assert_eq!(report.ratio("ns_per_page", "kernel-defaults"), None);
        assert_eq!(report.ratios[0].turns.min, 1.0);
        assert_eq!(report.ratios[0].turns.max, 1.1);
    }

    #[test]
    fn peers_that_did_not_run_and_targets_are_printed() {
        let mut report = report();
        let found = report.ratio("ns_per_page", "kernel");
        report
            .targets
            .push(Target::at_most("time per page", 1.1, Unit::Ratio, found));
        report
            .targets
            .push(Target::at_most("time per page", 1.0, Unit::Ratio, found));
        report
            .targets
            .push(Target::at_most("another", 1.0, Unit::Ratio, None));
        let text = report.text();
        assert!(text.contains("not run: it needs root"), "{text}");
        assert!(text.contains("1.050, at most 1.100: reached"), "{text}");
        assert!(text.contains("1.050, at most 1.000: NOT reached"), "{text}");
        assert!(text.contains("unknown"), "{text}");
    }

    #[test]
    fn a_host_that_took_cpu_time_is_told_of() {
        let mut report = report();
        assert!(!report.text().contains("the host gave"));
        let turns = [[(STOLEN, 0.004)], [(STOLEN, 0.25)]];
        report.peers[1] = PeerReport::of("kernel", turns);
        let text = report.text();
        assert!(
            text.contains("in a turn of kernel the host gave 25 %"),
            "{text}"
        );
    }

    #[test]
    fn figures_that_should_be_large_are_judged_so() {
        let target = |found| Target::at_least("throughput", 3.0, Unit::Ratio, Some(found));
        assert_eq!(target(3.0).reached, Some(true));
        assert_eq!(target(2.999).reached, Some(false));
        let line = target(2.5).line();
        assert!(
            line.ends_with("2.500, at least 3.000: NOT reached"),
            "{line}"
        );
    }

    #[test]
    fn a_ratio_says_which_way_is_better() {
        let mut report = report();
        report.compare("ns_per_page", Better::More);
        let text = report.text();
        assert!(text.contains("turn by turn), less is better"), "{text}");
        assert!(text.contains("turn by turn), more is better"), "{text}");
    }
}
