//! Beyond the seeds: every swap readahead policy over every pattern, on the machine of seed 000.
//!
//! One program reads a region of twice the memory, all of which was written before. Three figures describe each
//! policy: pages read ahead and used, pages read ahead and not used, and the time relative to no readahead.

use std::num::NonZeroUsize;

use foreswap_core::readahead::Policy;
use serde::Serialize;

use super::experiment::OURS;
use super::grid::Grid;
use super::report::number;
use crate::jobs;
use crate::sim::machine::{Machine, Setup, SimError};
use crate::sim::memory::Order;
use crate::sim::parameters::Parameters;
use crate::sim::rng::Rng;
use crate::work::Layout;
use crate::work::patterns::{Pattern, Walk};

/// The machine.
pub const MACHINE: &str = "xeon-e5-v3";
/// The factor by which it is scaled down.
pub const SCALE: u64 = 256;
/// The size of the region as a multiple of memory.
const REGION: u64 = 2;
/// The policies, each with its usual window: 8 pages for the kernel's, the shipped default for foreswap's.
const POLICIES: [(&str, Policy); 5] = [
    ("none", Policy::None),
    ("cluster", Policy::Cluster(8)),
    ("vma", Policy::Vma(8)),
    ("trend", Policy::Trend(8)),
    ("streams", OURS.readahead),
];

/// One policy on one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The pattern.
    pub pattern: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// Pages read ahead, of all pages read for the program.
    pub ahead: u64,
    /// Of these, used before their eviction, in percent; none without readahead.
    pub hit_ratio: Option<f64>,
    /// Of these, unused.
    pub wasted: u64,
    /// Virtual milliseconds of the reading.
    pub milliseconds: f64,
    /// Speed relative to no readahead.
    pub speed: f64,
}

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// Machine and scale.
    pub machine: String,
    /// Pattern by pattern.
    pub cells: Vec<Cell>,
}

fn run(
    machine: &Parameters,
    (policy, readahead): (&'static str, Policy),
    pattern: Pattern,
    seed: u64,
) -> Result<Cell, SimError> {
    let pages = (machine.pages() * REGION / Pattern::STEP).max(1) * Pattern::STEP;
    let mut layout = Layout::default();
    let region = layout.region(pages);
    let walk = Walk::new(region, pattern, machine.costs.fill, Rng::new(seed));
    // The same for all: foreswap's own eviction order, whatever is read ahead.
    let setup = Setup {
        readahead,
        order: Order::Clock,
        ..OURS
    };
    let mut sim = Machine::new(
        machine,
        &setup,
        layout.pages(),
        layout.regions(),
        vec![walk],
    );
    sim.run(|sim| sim.programs().all(|walk| walk.began > 0))?;
    let before = (sim.mm.stats.ahead.pages, sim.mm.stats.ahead.hits());
    sim.run(Machine::is_done)?;
    let ahead = sim.mm.stats.ahead.pages - before.0;
    // Pages in memory at the end had no chance to be used, and count as unused.
    let hits = sim
        .mm
        .stats
        .ahead
        .hits()
        .saturating_sub(before.1)
        .min(ahead);
    let took: u64 = sim.programs().map(|walk| walk.ended - walk.began).sum();
    Ok(Cell {
        pattern: pattern.name(),
        policy,
        ahead,
        hit_ratio: (ahead > 0).then(|| 100.0 * hits as f64 / ahead as f64),
        wasted: ahead - hits,
        milliseconds: took as f64 / 1e6,
        speed: 1.0,
    })
}

/// Runs them all, at most `jobs` patterns at a time.
///
/// # Errors
///
/// A run ended early.
pub fn table(
    machine: &Parameters,
    scale: u64,
    seed: u64,
    jobs: NonZeroUsize,
) -> Result<Table, SimError> {
    let scaled = machine.clone().scaled(scale);
    let pattern = |pattern: Pattern| -> Result<Vec<Cell>, SimError> {
        let cells = POLICIES.map(|policy| run(&scaled, policy, pattern, seed));
        let mut cells = cells.into_iter().collect::<Result<Vec<_>, _>>()?;
        let alone = cells[0].milliseconds;
        for cell in &mut cells {
            cell.speed = alone / cell.milliseconds;
        }
        Ok(cells)
    };
    let all = jobs::each(jobs, &Pattern::ALL, |&each| pattern(each));
    let mut cells = Vec::new();
    for each in all {
        cells.extend(each?);
    }
    Ok(Table {
        machine: format!("{}, memory 1/{scale}", machine.name),
        cells,
    })
}

const HEAD: [&str; 7] = [
    "pattern",
    "policy",
    "read along",
    "used",
    "wasted",
    "time",
    "speed",
];

fn row(cell: &Cell) -> [String; 7] {
    let ratio = cell.hit_ratio.map(|ratio| format!("{} %", number(ratio)));
    [
        cell.pattern.to_owned(),
        cell.policy.to_owned(),
        cell.ahead.to_string(),
        ratio.unwrap_or_default(),
        cell.wasted.to_string(),
        format!("{} ms", number(cell.milliseconds)),
        format!("x {}", number(cell.speed)),
    ]
}

const TITLE: &str = "all swap readahead policies";
const LEGEND: &str = "\
Pages read along with one that was missing, how many of them were used before they were evicted, and the
time to read a region of twice the memory, against that without readahead.";

impl Table {
    fn grid(&self) -> Grid<7> {
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
}
