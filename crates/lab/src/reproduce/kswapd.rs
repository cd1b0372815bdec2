//! Seed 001: what programs wait for when background reclaim sleeps too soon.
//!
//! The seed says little of the work: "threads reading fixed-size random blocks", "mmaping and faulting
//! regions of memory", "mmap while large files are being copied". The sizes are those of the programs
//! as mmtests starts them where that is public, else as said here. Public are stutter's (its script maps
//! 32,768 pages with rests of 5 ms, its configuration holds three quarters of memory and copies twice of
//! it) and simoop's region; how many threads simoop has and how large its blocks are is not.

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
/// A block of the database, as it is read or written.
const BLOCK: u64 = 2 * MIB;
/// The region that is mapped, as mmtests has it.
const REGION: u64 = 128 * MIB;
/// One file.
const FILE: u64 = 64 * MIB;
/// All working sets and all files together, in tenths of memory.
const SETS: u64 = 6;
const FILES: u64 = 24;
/// How long the full machine works before anything counts, and then.
const WARM_UP: Nanos = 1_200 * SECOND;
const RUN: Nanos = 4_800 * SECOND;
/// Machines with other random numbers whose latencies are taken together: what one shows of the tails
/// depends on a few moments.
const RUNS: u64 = 4;

/// Something that is counted beside the latencies: its name, and where it stands.
type Counted = (&'static str, fn(&Counts) -> u64);

/// All of that. "Short" is a node none of whose zones is up to its high level.
const COUNTED: [Counted; 8] = [
    // Pages that tasks and the nodes' threads reclaimed.
    ("reclaimed_direct", |counts| counts.direct_freed),
    ("reclaimed_background", |counts| counts.background_freed),
    // The threads' naps that nobody ended and that a request ended; the first after which the node was
    // short, and the sleeps that followed all the same.
    ("naps", |counts| counts.naps),
    ("naps_cut", |counts| counts.naps_cut),
    ("naps_short", |counts| counts.naps_short),
    ("slept_short", |counts| counts.slept_short),
    // Allocations that had to reclaim for themselves, and how many of them did so while a thread worked
    // that had slept so.
    ("direct", |counts| counts.direct),
    ("direct_after", |counts| counts.direct_after),
];

/// stutter: what the probe maps, and how long it rests.
const PROBE: u64 = 128 * MIB;
const REST: Nanos = 5_000_000;
/// A record of who copies.
const RECORD: u64 = 128 << 10;
/// How much of memory is held, in quarters.
const HELD: u64 = 3;
/// How many times as large as memory the copied file is.
const TIMES_MEMORY: u64 = 2;
/// How long the full machine copies before anything counts, and then.
const COPY_WARM_UP: Nanos = 120 * SECOND;
const COPY_RUN: Nanos = 480 * SECOND;

/// The value that so many percent of all do not pass.
fn percentile(sorted: &[Nanos], percent: usize) -> f64 {
    let last = sorted.len().saturating_sub(1);
    let at = (2 * last * percent + 100) / 200;
    sorted.get(at).copied().unwrap_or(0) as f64
}

/// The latencies of what began from `from` on, in rising order.
fn measured<'a>(samples: impl Iterator<Item = &'a (Nanos, Nanos)>, from: Nanos) -> Vec<Nanos> {
    let late = samples.filter(|(began, _)| *began >= from);
    let mut all: Vec<Nanos> = late.map(|&(_, took)| took).collect();
    all.sort_unstable();
    all
}

/// simoop's figures: latencies in microseconds, and how often what happened on the full machine.
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
