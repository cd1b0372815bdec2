//! Beyond the seeds: the workload of seed 002 on its machine, with 1 to 72 threads.
//!
//! The seed measured 16 processes. It saves acquisitions of two locks, and its gain depends on the number of threads
//! that compete for them: with one, no thread waits. The amount of written memory is the same for all numbers of
//! threads. Beside the seed's base and optimized variants stand foreswap with single pages, and with its own huge
//! pages, which are never split: the last step of the plan that the seed announces.

use std::num::NonZeroUsize;

use foreswap_core::units::PAGE_SIZE;
use serde::Serialize;

use super::experiment::EXPERIMENTS;
use super::grid::Grid;
use super::report::number;
use super::thp_swap;
use crate::jobs;
use crate::plot::{Axis, Line, Plot};
use crate::sim::machine::{Setup, SimError};
use crate::sim::memory::HugeSwap;
use crate::sim::parameters::Parameters;

/// The machine.
pub const MACHINE: &str = "xeon-e5-v3-4.8";
/// The factor by which it is scaled down: small, because each of many threads needs enough huge pages.
pub const SCALE: u64 = 4;
/// The numbers of threads.
const THREADS: [u64; 7] = [1, 2, 4, 8, 16, 36, 72];

const SECOND: f64 = 1e9;
const MIB: f64 = (1 << 20) as f64;

/// One number of threads with one variant.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// Threads.
    pub threads: u64,
    /// The variant.
    pub variant: &'static str,
    /// Bytes written to the area in a second.
    pub swap_out_bytes_per_s: f64,
    /// Of the whole work, in seconds of the full machine.
    pub elapsed_s: f64,
    /// Lock waits for the area and the swap cache, summed over CPUs, in seconds of the full machine.
    pub lock_wait_s: f64,
    /// The same in percent of the CPU time of tasks and background reclaim.
    pub lock_wait_percent: f64,
    /// Huge pages written whole.
    pub huge_out: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Swap-out rate relative to base.
    pub speed: f64,
}

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Machine and scale.
    pub machine: String,
    /// By threads, then by variant.
    pub cells: Vec<Cell>,
}

/// The variants: those of the seed's own experiment, and foreswap's.
fn variants() -> Vec<(&'static str, Setup)> {
    let seed = EXPERIMENTS.iter().filter(|e| e.name == "thp");
    let mut all = Vec::new();
    for experiment in seed {
        let [base, optimized, ours] = experiment.setups();
        let huge_swap = HugeSwap::SplitFirst;
        all.extend([
            ("base", base),
            ("seed: split late", optimized),
            ("foreswap, single pages", Setup { huge_swap, ..ours }),
            ("foreswap, huge pages", ours),
        ]);
    }
    all
}

fn run(
    machine: &Parameters,
    threads: u64,
    (variant, setup): &(&'static str, Setup),
) -> Result<Cell, SimError> {
    let sim = thp_swap::fill(machine, setup, threads)?;
    let (slots, cache) = sim.locks();
    let waited = (slots.waited + cache.waited) as f64;
    let seconds = sim.now() as f64 / SECOND;
    let stats = &sim.mm.stats;
    Ok(Cell {
        threads,
        variant,
        swap_out_bytes_per_s: stats.swap_out as f64 * PAGE_SIZE as f64 / seconds,
        elapsed_s: seconds * machine.scale as f64,
        lock_wait_s: waited * machine.scale as f64 / SECOND,
        lock_wait_percent: 100.0 * waited / sim.busy() as f64,
        huge_out: stats.huge_swap_out,
        splits: stats.huge_splits,
        speed: 1.0,
    })
}

/// Runs them all, at most `jobs` at a time.
///
/// # Errors
///
/// A run ended early.
pub fn table(machine: &Parameters, scale: u64, jobs: NonZeroUsize) -> Result<Table, SimError> {
    let scaled = machine.clone().scaled(scale);
    let variants = variants();
    let each = THREADS.iter();
    let runs: Vec<_> = each
        .flat_map(|&threads| variants.iter().map(move |variant| (threads, variant)))
        .collect();
    let cells = jobs::each(jobs, &runs, |(threads, variant)| {
        run(&scaled, *threads, variant)
    });
    let mut cells = cells.into_iter().collect::<Result<Vec<_>, _>>()?;
    for row in cells.chunk_by_mut(|a, b| a.threads == b.threads) {
        let base = row[0].swap_out_bytes_per_s;
        for cell in row {
            cell.speed = cell.swap_out_bytes_per_s / base;
        }
    }
    Ok(Table {
        machine: format!("{}, memory and time 1/{scale}", machine.name),
        cells,
    })
}

const HEAD: [&str; 9] = [
    "threads",
    "variant",
    "swap-out",
    "to base",
    "elapsed",
    "lock wait",
    "of CPU time",
    "huge out",
    "splits",
];

fn row(cell: &Cell) -> [String; 9] {
    [
        cell.threads.to_string(),
        cell.variant.to_owned(),
        format!("{} MiB/s", number(cell.swap_out_bytes_per_s / MIB)),
        format!("x {}", number(cell.speed)),
        format!("{} s", number(cell.elapsed_s)),
        format!("{} s", number(cell.lock_wait_s)),
        format!("{} %", number(cell.lock_wait_percent)),
        cell.huge_out.to_string(),
        cell.splits.to_string(),
    ]
}

const TITLE: &str = "THP swap from 1 to 72 threads";
const LEGEND: &str = "\
Threads write fresh memory in order, twice as much as there is, all together. Seconds are those of the full
machine; lock wait is that of all CPUs together, for the locks of the area and of the swap cache. Huge pages
are counted on the scaled machine.";

impl Table {
    fn grid(&self) -> Grid<9> {
        Grid {
            head: HEAD,
            names: 2,
            rows: self.cells.iter().map(row).collect(),
        }
    }

    /// As text for a terminal.
    pub fn text(&self) -> String {
        self.grid().text_of(TITLE, &self.machine, LEGEND)
    }

    /// As Markdown.
    pub fn markdown(&self) -> String {
        self.grid().markdown_of(TITLE, &self.machine, LEGEND)
    }

    /// Swap-out by threads, a line per variant.
    pub fn plot(&self) -> Plot {
        let mut lines: Vec<Line> = Vec::new();
        for cell in &self.cells {
            let point = (cell.threads as f64, cell.swap_out_bytes_per_s / MIB);
            match lines.iter_mut().find(|line| line.name == cell.variant) {
                Some(line) => line.points.push(point),
                None => lines.push(Line {
                    name: cell.variant.into(),
                    points: vec![point],
                    dashed: false,
                }),
            }
        }
        Plot {
            title: format!("THP swap: {}", self.machine),
            x: Axis::Count("threads"),
            y_name: "MiB/s swapped out".into(),
            lines,
        }
    }
}
