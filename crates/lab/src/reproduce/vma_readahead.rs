//! Seed 000: sequential writers beside random ones, and Linpack, both larger than memory.

use foreswap_core::stats::Ahead;
use foreswap_core::units::PAGE_SIZE;

use super::experiment::Figures;
use crate::sim::histogram::Histogram;
use crate::sim::machine::{Machine, Setup, SimError};
use crate::sim::parameters::Parameters;
use crate::sim::rng::Rng;
use crate::work::linpack::{Matrix, Thread};
use crate::work::usemem::{Order, Usemem};
use crate::work::{Layout, pages};

const GIB: u64 = 1 << 30;
const SECOND: u64 = 1_000_000_000;
/// "4 processes to eat 50G virtual memory space, repeat the sequential memory writing until 300
/// seconds".
const SEQUENTIAL: (u64, u64) = (4, 50 * GIB);
/// "8 processes to eat 30G virtual memory space, repeat the random memory write".
const RANDOM: (u64, u64) = (8, 30 * GIB);
const SECONDS: u64 = 300;
/// Elements in a row and a column of Linpack's matrix. The seed says only that it is larger than memory. The hits of
/// the last pass depend on the position of reclaim at its start, and this on the size; the figures are therefore
/// means over the first multiples of 1000 that are larger.
const SIDES: [u64; 5] = [65_000, 66_000, 67_000, 68_000, 69_000];
/// Columns factored at a time, as in MKL.
const BLOCK: u64 = 384;
/// Time of one thread to generate a double, in tenths of a nanosecond.
const GENERATE: u64 = 50;
fn ra_hit(ahead: &Ahead) -> f64 {
    100.0 * ahead.hits() as f64 / (ahead.pages.max(1)) as f64
}

/// The micro-benchmark; the figures of its sequential part.
pub fn usemem(machine: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let mut layout = Layout::default();
    let mut programs = Vec::new();
    let (tasks, bytes) = SEQUENTIAL;
    for _ in 0..tasks {
        let region = layout.region(pages(bytes / machine.scale / tasks));
        programs.push(Usemem::new(region, Order::Sequential, machine.costs.fill));
    }
    let (tasks, bytes) = RANDOM;
    for n in 0..tasks {
        let region = layout.region(pages(bytes / machine.scale / tasks));
        let order = Order::Random(Rng::new(seed << 8 | n));
        programs.push(Usemem::new(region, order, 0));
    }
    let mut sim = Machine::new(machine, setup, layout.pages(), layout.regions(), programs);
    let end = SECONDS * SECOND / machine.scale;
    sim.run(|sim| sim.now() >= end)?;
    let (mut latency, mut pages) = (Histogram::default(), 0);
    for program in sim.programs().filter(|program| program.is_sequential()) {
        latency.merge(&program.latency);
        pages += program.reported();
    }
    let bytes = pages * PAGE_SIZE as u64;
    let mut figures = Figures::new();
    let throughput = bytes as f64 / 1024.0 / (sim.now() as f64 / SECOND as f64);
    figures.insert("throughput".into(), throughput);
    figures.insert("average".into(), latency.mean() / 1000.0);
    for percent in [50, 60, 70, 80, 90, 95, 99] {
        let time = latency.percentile(percent) as f64 / 1000.0;
        figures.insert(format!("p{percent}"), time);
    }
    figures.insert("ra_hit".into(), ra_hit(&sim.mm.stats.ahead));
    Ok(figures)
}

/// Linpack: means over matrices of several sizes.
pub fn linpack(machine: &Parameters, setup: &Setup, _: u64) -> Result<Figures, SimError> {
    let (mut seconds, mut hit) = (0.0, 0.0);
    for side in SIDES {
        let (time, ahead) = solve(machine, setup, side)?;
        seconds += time;
        hit += ra_hit(&ahead);
    }
    let number = SIDES.len() as f64;
    Ok(Figures::from([
        ("seconds".into(), seconds / number),
        ("ra_hit".into(), hit / number),
    ]))
}

/// Seconds for a matrix with `side` elements per row, and the fate of pages read ahead.
fn solve(machine: &Parameters, setup: &Setup, side: u64) -> Result<(f64, Ahead), SimError> {
    // A smaller machine has fewer columns of full height, and thus runs of full length for readahead.
    let columns = (BLOCK / machine.scale).max(1);
    let blocks = (side / machine.scale).div_ceil(columns);
    let column = pages(side * 8);
    let mut layout = Layout::default();
    // One thread per core, as in MKL.
    let threads = u64::from(machine.cpus) / 2;
    let elements = PAGE_SIZE as u64 / 8;
    let matrix = Matrix {
        region: layout.region(blocks * columns * column),
        blocks,
        column,
        threads,
        generate: elements * GENERATE / 10,
        // Elements per page, each with a product and a sum per column.
        update: elements * 2 * columns * machine.scale * SECOND / (machine.flops / threads),
    };
    let programs = Thread::all(&matrix);
    let mut sim = Machine::new(machine, setup, layout.pages(), layout.regions(), programs);
    sim.run(Machine::is_done)?;
    let seconds = sim.now() as f64 * machine.scale as f64 / SECOND as f64;
    Ok((seconds, sim.mm.stats.ahead))
}
