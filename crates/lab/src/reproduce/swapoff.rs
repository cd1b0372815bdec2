//! Seed 003: a guest was hibernated, with everything on the swap area, and is resumed; the time of swapoff.
//!
//! The seed does not say which processes allocated the memory. Its histograms show that there were several, and that
//! some memory was shared. Neighbours in memory are not always neighbours on the area. The base also has windows of
//! four and eight pages, which result from hits, although it counts none while it visits processes. It does count
//! them while it visits files: shared memory comes first, through the function that answers its faults
//! (`shmem_unuse`). Assumed is the simplest such workload: one process per CPU, all of the same size, one of them in
//! shared memory.

use foreswap_core::Swapoff;

use super::experiment::Figures;
use crate::sim::machine::{Machine, Setup, SimError};
use crate::sim::parameters::Parameters;
use crate::work::usemem::{Order, Usemem};
use crate::work::{Layout, pages};

const SECOND: f64 = 1e9;
/// "allocate 85% of memory".
const ALLOCATED: (u64, u64) = (85, 100);
/// The memory kept when the guest hibernates: the kernel's default image size, two fifths of memory
/// (`/sys/power/image_size`). The seed says that all pages are forced out; its histogram has fewer calls than 85 % of
/// memory has pages, which that default explains.
const IMAGE: (u64, u64) = (2, 5);

/// The time of swapoff, and the windows that readahead chose meanwhile.
pub fn swapoff(machine: &Parameters, setup: &Setup, _: u64) -> Result<Figures, SimError> {
    let (part, whole) = ALLOCATED;
    let processes = u64::from(machine.cpus);
    let each = pages(machine.memory * part / whole / processes);
    let mut layout = Layout::default();
    let mut private = || Usemem::new(layout.region(each), Order::Sequential, machine.costs.fill);
    let mut programs = vec![private().and_again()];
    programs.extend((1..processes).map(|_| private().once()));
    let mut sim = Machine::new(machine, setup, layout.pages(), layout.regions(), programs);
    if let Some(shared) = layout.regions().first() {
        sim.mm.adopt(&mut sim.memory, shared.clone(), &[]);
        sim.mm.set_file(shared);
    }
    sim.hold();
    sim.run(Machine::is_quiet)?;
    let limit = machine.pages();
    let low = limit * IMAGE.0 / IMAGE.1;
    sim.set_limit(low);
    sim.run(|sim| sim.memory.charged() <= low && sim.memory.in_flight() == 0)?;
    sim.set_limit(limit);
    sim.memory.windows.clear();
    let begin = sim.now();
    if setup.swapoff != Swapoff::Stream {
        // As the kernel visits files: it looks each page up, and waits for it.
        sim.let_go();
        sim.run(Machine::is_done)?;
    }
    sim.swapoff();
    sim.run(|sim| sim.memory.slots_used() == 0)?;
    let took = (sim.now() - begin) as f64 / SECOND;
    let scale = machine.scale as f64;
    let mut figures = Figures::from([("seconds".into(), took * scale)]);
    for window in [1, 2, 4, 8] {
        // A window next to the area's header is a page shorter.
        let count = sim.memory.windows.get(&window).copied().unwrap_or(0);
        figures.insert(format!("window_{window}"), count as f64 * scale);
    }
    Ok(figures)
}
