//! Seed 003: a guest has been hibernated, so that everything is on the swap area, and is resumed;
//! how long does swapoff take?
//!
//! The seed does not say what allocated the memory. That it was several at a time, of which not all kept
//! it to themselves, its histograms say: neighbours in memory are not always neighbours on the area,
//! and there are windows of four and eight pages in the base as well, which hits make, though the base
//! counts none as it goes through processes. It does as it goes through files: shared memory comes
//! first, by the very function that answers its faults (`shmem_unuse`). Taken is the plainest such work:
//! a process to each CPU, all with the same amount, one of which has it in shared memory.

use foreswap_core::Swapoff;

use super::experiment::Figures;
use crate::sim::machine::{Machine, Setup, SimError};
use crate::sim::parameters::Parameters;
use crate::work::usemem::{Order, Usemem};
use crate::work::{Layout, pages};

const SECOND: f64 = 1e9;
/// "allocate 85% of memory".
const ALLOCATED: (u64, u64) = (85, 100);
/// What stays in memory when the guest hibernates: the kernel's default size of the image, two fifths
/// of memory (`/sys/power/image_size`). The seed says that all pages are forced out; its histogram
/// has fewer calls than 85 % of memory has pages, as that default explains.
const IMAGE: (u64, u64) = (2, 5);

/// The time that swapoff takes, and the windows that readahead chose meanwhile.
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
        // As the kernel goes through files: it looks each page up, and waits for it.
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
