//! Seed 003: a guest has been hibernated, so that everything is on the swap area, and is resumed;
//! how long does swapoff take?

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
    let mut layout = Layout::default();
    let region = layout.region(pages(machine.memory * part / whole));
    let fill = Usemem::new(region, Order::Sequential, machine.costs.fill).once();
    let mut sim = Machine::new(machine, setup, layout.pages(), layout.regions(), vec![fill]);
    sim.run(Machine::is_done)?;
    let limit = machine.pages();
    let low = limit * IMAGE.0 / IMAGE.1;
    sim.set_limit(low);
    sim.run(|sim| sim.memory.charged() <= low && sim.memory.in_flight() == 0)?;
    sim.set_limit(limit);
    sim.memory.windows.clear();
    let begin = sim.now();
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
