//! Seed 002: processes write fresh memory until RAM and part of the swap area are full.
//!
//! The seed changes when a huge page is split, and thereby how often the locks of the area and of the swap cache are
//! taken: for each of its 512 pages, or once. The two variants differ in that here, on top of the core's own reclaim
//! of single pages.

use foreswap_core::units::PAGE_SIZE;

use super::experiment::Figures;
use crate::sim::machine::{Machine, Setup, SimError};
use crate::sim::parameters::Parameters;
use crate::work::usemem::{Order, Usemem};
use crate::work::{Layout, pages};

const SECOND: f64 = 1e9;
/// "16 processes sequentially allocate and write to anonymous pages".
const TASKS: u64 = 16;
/// "until RAM and part of the swap device is used up": the part is not stated; assumed as large as RAM.
const TIMES_MEMORY: u64 = 2;

/// Runs until this many processes have written and ended.
///
/// # Errors
///
/// The run ended early.
pub fn fill(machine: &Parameters, setup: &Setup, tasks: u64) -> Result<Machine<Usemem>, SimError> {
    let mut layout = Layout::default();
    let mut programs = Vec::new();
    for _ in 0..tasks {
        let region = layout.region(pages(machine.memory * TIMES_MEMORY / tasks));
        programs.push(Usemem::new(region, Order::Sequential, machine.costs.fill).and_ends());
    }
    let mut sim = Machine::new(machine, setup, layout.pages(), layout.regions(), programs);
    sim.run(Machine::is_done)?;
    Ok(sim)
}

/// The figures of one run.
pub fn swap_out(machine: &Parameters, setup: &Setup, _: u64) -> Result<Figures, SimError> {
    let sim = fill(machine, setup, TASKS)?;
    let seconds = sim.now() as f64 / SECOND;
    let kib = PAGE_SIZE as f64 / 1024.0;
    let written: u64 = sim.programs().map(Usemem::reported).sum();
    let writing = sim.programs().map(|program| program.written).max();
    let writing = writing.unwrap_or(sim.now()) as f64 / SECOND;
    let (_, cache) = sim.locks();
    let share = 100.0 * cache.waited as f64 / sim.busy() as f64;
    Ok(Figures::from([
        (
            "swap_out".into(),
            sim.mm.stats.swap_out as f64 * kib / seconds,
        ),
        ("throughput".into(), written as f64 * kib / writing),
        ("seconds".into(), seconds * machine.scale as f64),
        ("cache_lock".into(), share),
    ]))
}
