//! Seed 001: the waits of programs when background reclaim sleeps too soon.
//!
//! The seed says little about the workload: "threads reading fixed-size random blocks", "mmaping and faulting regions
//! of memory", "mmap while large files are being copied". The sizes are those of the programs as mmtests starts them,
//! as far as they are public, else as stated here. Public are those of stutter (its script maps 32,768 pages with
//! rests of 5 ms, its configuration holds three quarters of memory and copies twice of it) and the region of simoop.
//! The number of simoop's threads and the size of its blocks are not public.

use foreswap_core::units::Nanos;

use super::experiment::Figures;
use crate::sim::machine::{Setup, SimError};
use crate::sim::node::{Counts, Machine};
use crate::sim::parameters::Parameters;
use crate::work::pages;
use crate::work::simoop::{Shape, Simoop};
use crate::work::stutter::Stutter;

const SECOND: Nanos = 1_000_000_000;
const MIB: u64 = 1 << 20;

/// simoop: workers, and the threads that each starts in a round.
const WORKERS: u64 = 16;
const THREADS: u64 = 20;
/// A block of the database, for reads and writes.
const BLOCK: u64 = 2 * MIB;
/// The mapped region, as in mmtests.
const REGION: u64 = 128 * MIB;
/// One file.
const FILE: u64 = 64 * MIB;
/// All working sets and all files together, in tenths of memory.
const SETS: u64 = 6;
const FILES: u64 = 24;
/// The warm-up of the full machine before the measurement, and the measurement.
const WARM_UP: Nanos = 1_200 * SECOND;
const RUN: Nanos = 4_800 * SECOND;
/// Machines with different random numbers whose latencies are pooled: the tails of a single one depend on a few
/// moments.
const RUNS: u64 = 4;

/// A counter beside the latencies: its name and place.
type Counted = (&'static str, fn(&Counts) -> u64);

/// All counters. "Short" is a node without a zone above its high level.
const COUNTED: [Counted; 8] = [
    // Pages that tasks and the nodes' threads reclaimed.
    ("reclaimed_direct", |counts| counts.direct_freed),
    ("reclaimed_background", |counts| counts.background_freed),
    // Naps of the threads that ran out and naps ended by a request; naps after which the node was short, and sleeps
    // that followed nevertheless.
    ("naps", |counts| counts.naps),
    ("naps_cut", |counts| counts.naps_cut),
    ("naps_short", |counts| counts.naps_short),
    ("slept_short", |counts| counts.slept_short),
    // Allocations with direct reclaim, and those among them while a thread worked after such a sleep.
    ("direct", |counts| counts.direct),
    ("direct_after", |counts| counts.direct_after),
];

/// stutter: the size of the probe's mapping, and its rest.
const PROBE: u64 = 128 * MIB;
const REST: Nanos = 5_000_000;
/// The record size of the copying program.
const RECORD: u64 = 128 << 10;
/// The held part of memory, in quarters.
const HELD: u64 = 3;
/// The size of the copied file, as a multiple of memory.
const TIMES_MEMORY: u64 = 2;
/// The warm-up of the full machine's copying before the measurement, and the measurement.
const COPY_WARM_UP: Nanos = 120 * SECOND;
const COPY_RUN: Nanos = 480 * SECOND;

/// The value that `percent` of all do not exceed.
fn percentile(sorted: &[Nanos], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (2 * last * percent + 100) / 200;
    sorted.get(at).copied().unwrap_or(0) as f64
}

/// The latencies of operations that began from `from` on, in rising order.
fn measured<'a>(samples: impl Iterator<Item = &'a (Nanos, Nanos)>, from: Nanos) -> Vec<Nanos> {
    let late = samples.filter(|(began, _)| *began >= from);
    let mut all: Vec<Nanos> = late.map(|&(_, took)| took).collect();
    all.sort_unstable();
    all
}

/// simoop's figures: latencies in microseconds, and counts for the full machine.
pub fn simoop(machine: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let memory = machine.pages();
    let file = pages(FILE) as u32;
    let set = memory * SETS / 10 / WORKERS;
    let shape = Shape {
        files: (memory * FILES / 10 / u64::from(file)).max(1) as u32,
        file,
        block: pages(BLOCK) as u32,
        region: pages(REGION),
        set,
        compute: set * machine.scale * machine.costs.touch,
        threads: THREADS,
    };
    let (mut reads, mut writes, mut allocations) = (Vec::new(), Vec::new(), Vec::new());
    let mut counts = [0; COUNTED.len()];
    let from = WARM_UP / machine.scale;
    for run in 0..RUNS {
        let seed = seed.wrapping_mul(RUNS).wrapping_add(run);
        let programs = (0..WORKERS as u32).flat_map(|n| Simoop::tasks(shape, n, seed));
        let (files, gates) = (Simoop::files(shape), 2 * WORKERS as usize);
        let mut sim = Machine::new(machine, setup, &files, programs.collect(), gates, true)?;
        sim.run(|sim| sim.now() >= from)?;
        let before = sim.counts;
        sim.run(|sim| sim.now() >= from + RUN / machine.scale)?;
        for (sum, (_, of)) in counts.iter_mut().zip(COUNTED) {
            *sum += of(&sim.counts) - of(&before);
        }
        for program in sim.programs() {
            match program {
                Simoop::Worker(worker) => allocations.extend_from_slice(&worker.allocations),
                Simoop::Thread(thread) => {
                    reads.extend_from_slice(&thread.reads);
                    writes.extend_from_slice(&thread.writes);
                }
            }
        }
    }
    let mut figures = Figures::new();
    for (name, samples) in [
        ("read", reads),
        ("write", writes),
        ("allocation", allocations),
    ] {
        let sorted = measured(samples.iter(), from);
        for percent in [50, 95, 99] {
            let took = percentile(&sorted, percent) / 1e3;
            figures.insert(format!("{name}_p{percent}"), took);
        }
    }
    for ((name, _), sum) in COUNTED.into_iter().zip(counts) {
        figures.insert(name.into(), (sum * machine.scale / RUNS) as f64);
    }
    Ok(figures)
}

/// stutter's figures, in milliseconds.
pub fn stutter(machine: &Parameters, setup: &Setup, _: u64) -> Result<Figures, SimError> {
    let memory = machine.pages();
    let file = u32::try_from(memory * TIMES_MEMORY).unwrap_or(u32::MAX);
    let programs = vec![
        (0, Stutter::Hog(memory * HELD / 4)),
        (0, Stutter::copy(file, pages(RECORD) as u32)),
        (0, Stutter::probe(pages(PROBE), REST)),
    ];
    let mut sim = Machine::new(machine, setup, &[file, file], programs, 0, false)?;
    let from = COPY_WARM_UP / machine.scale;
    let end = from + COPY_RUN / machine.scale;
    sim.run(|sim| sim.now() >= end)?;
    let mut figures = Figures::new();
    for program in sim.programs() {
        let Stutter::Probe(probe) = program else {
            continue;
        };
        let sorted = measured(probe.latencies.iter(), from);
        for (name, percent) in [
            ("min", 0),
            ("q1", 25),
            ("q2", 50),
            ("q3", 75),
            ("p90", 90),
            ("p93", 93),
            ("p95", 95),
            ("p99", 99),
            ("max", 100),
        ] {
            figures.insert(name.into(), percentile(&sorted, percent) / 1e6);
        }
        let sum: u128 = sorted.iter().map(|&took| u128::from(took)).sum();
        let mean = sum as f64 / sorted.len().max(1) as f64 / 1e6;
        figures.insert("mean".into(), mean);
    }
    Ok(figures)
}
