//! A machine with nodes, zones and a page cache, on which the core's background reclaim runs.
//!
//! On the machine of [`super::machine`] the core manages the memory of tasks. Here the core decides when a node's
//! background reclaim works, naps and sleeps ([`foreswap_core::linux_kswapd`]), and whether an allocation takes its page,
//! wakes reclaim or reclaims directly. Around it is the environment of a kernel: nodes of zones ([`zones`]), lists of
//! pages in use ([`lists`]), the locks of both ([`locks`]), files in memory with readahead and writeback ([`files`]),
//! the disk's I/O scheduler ([`scheduler`]), each node's thread and the scan of a list's end ([`reclaim`]). Tasks
//! execute their programs ([`tasks`]) in batches of a CPU's frames, and others run in between.
//!
//! There is a CPU for each runnable task. If the workload also keeps all CPUs busy, each task shares its CPU with a
//! computing task, slice by slice; other waits for CPUs are not modelled. Anonymous pages stay, as in a kernel while
//! there are enough inactive file pages; a run without enough ends with an error.

mod files;
mod lists;
mod locks;
mod prices;
pub mod program;
mod reclaim;
mod scheduler;
mod tasks;
#[cfg(test)]
mod tests;
mod zones;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::linux_kswapd::{Allocation, Zone, allocate};
use foreswap_core::units::Nanos;

use super::device::Device;
use super::machine::{Setup, SimError};
use super::parameters::Parameters;
use files::Files;
use lists::Pages;
use locks::Locks;
use prices::Prices;
use program::Program;
use reclaim::Background;
use tasks::Task;
use zones::{FrameId, HIGHEST, HUGE, Memory};

/// Frames that a CPU takes from a zone at a time (the kernel's per-CPU lists).
const BATCH: u64 = 31;
/// The slice of a task on a CPU with a waiting task, and of that one after it: half of the period in which Linux runs
/// each of them once, on eight CPUs and more (`sched_latency_ns`).
const SLICE: Nanos = 12_000_000;
/// How often writeback looks for old dirty pages, on the full machine.
const PERIOD: Nanos = 5_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    /// A task continues.
    Task(u32),
    /// A task has waited long enough for the disk, unless it waits for something else since then.
    Enough(u32, Nanos),
    /// A node's thread continues, unless it was woken or put to sleep since.
    Background(u32, u64),
    /// Writeback continues.
    Flush,
    /// Writeback looks for old pages.
    Period,
}

/// Event counts, beside the core's.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Allocations with direct reclaim.
    pub direct: u64,
    /// Pages freed by it.
    pub direct_freed: u64,
    /// Pages that the nodes' threads freed.
    pub background_freed: u64,
    /// Pages scanned by both.
    pub scanned: u64,
    /// Pages that reclaim wrote itself.
    pub written: u64,
    /// Waits of a thread for pages under writeback.
    pub stalls: u64,
    /// Waits of a task for a congested device.
    pub congested: u64,
    /// Direct reclaims while a thread worked that had slept while its node was short.
    pub direct_after: u64,
    /// Naps of the nodes' threads that ran out, and those among them after which the node was short: no zone above
    /// its high watermark.
    pub naps: u64,
    /// As above.
    pub naps_short: u64,
    /// Of these, naps after which the thread went to sleep nevertheless.
    pub slept_short: u64,
    /// Naps ended by a request.
    pub naps_cut: u64,
    /// Huge pages allocated, and failed allocations of one.
    pub huge: u64,
    /// As above.
    pub no_huge: u64,
}

/// A running machine.
pub struct Machine<P> {
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    prices: Prices,
    idle: [(Nanos, Nanos); 3],
    /// The scale of the machine.
    scale: u64,
    memory: Memory,
    pages: Pages,
    files: Files,
    device: Device,
    background: Vec<Background>,
    locks: Locks,
    tasks: Vec<Task<P>>,
    running: usize,
    /// Each CPU has a computing task; other tasks there get every second slice.
    busy: bool,
    gates: Vec<u64>,
    taken: Vec<FrameId>,
    /// Tasks that wait for a congested disk.
    congested: Vec<u32>,
    /// The counts so far.
    pub counts: Counts,
}

impl<P: Program> Machine<P> {
    /// A machine with files of these sizes in pages, and one task per program, on the given node (numbers beyond the
    /// last wrap around). With `busy`, a computing task also runs on each CPU.
    ///
    /// # Errors
    ///
    /// The machine is too small.
    pub fn new(
        parameters: &Parameters,
        setup: &Setup,
        files: &[u32],
        programs: Vec<(usize, P)>,
        gates: usize,
        busy: bool,
    ) -> Result<Self, SimError> {
        let memory = Memory::new(parameters, setup.headroom)?;
        let pages = Pages::new(&memory);
        let nodes = memory.nodes.len();
        let background = (0..nodes).map(|_| Background::new(setup.defects));
        let tasks: Vec<Task<P>> = programs
            .into_iter()
            .map(|(node, program)| Task::new(node % nodes, program))
            .collect();
        let device = Device::new(&parameters.device);
        let mut machine = Machine {
            now: 1,
            order: 0,
            events: BinaryHeap::new(),
            prices: Prices::new(&parameters.costs),
            idle: parameters.idle,
            scale: parameters.scale,
            files: Files::new(files, device.pages(), parameters.scale),
            memory,
            pages,
            device,
            background: background.collect(),
            locks: Locks::new(nodes, parameters.locks.handover),
            running: tasks.len(),
            tasks,
            busy,
            gates: vec![0; gates],
            taken: Vec::new(),
            congested: Vec::new(),
            counts: Counts::default(),
        };
        for task in 0..machine.tasks.len() as u32 {
            machine.plan(0, Event::Task(task));
        }
        for node in 0..nodes as u32 {
            machine.plan(0, Event::Background(node, 0));
        }
        machine.plan(PERIOD / parameters.scale, Event::Period);
        Ok(machine)
    }

    /// The virtual clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The programs, in their original order.
    pub fn programs(&self) -> impl Iterator<Item = &P> {
        self.tasks.iter().map(|task| &task.program)
    }

    /// Runs until `until` is true.
    ///
    /// # Errors
    ///
    /// Memory is used up, or tasks wait for an event that never comes.
    pub fn run(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), SimError> {
        while !until(self) {
            let event = self.events.peek().map(|Reverse(event)| event.0);
            match (event, self.device.next_end()) {
                (Some(at), end) if end.is_none_or(|end| at <= end) => {
                    if let Some(Reverse((now, _, event))) = self.events.pop() {
                        self.now = now;
                        self.on_event(event)?;
                    }
                }
                (_, Some(_)) => {
                    if let Some((now, io)) = self.device.end() {
                        self.now = now;
                        self.on_completion(io.0);
                    }
                }
                _ => return Err(SimError::Stuck { at: self.now }),
            }
        }
        Ok(())
    }

    fn plan(&mut self, after: Nanos, event: Event) {
        self.order += 1;
        let entry = (self.now + after, self.order, event);
        self.events.push(Reverse(entry));
    }

    fn on_event(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Task(task) => self.on_task(task as usize)?,
            Event::Enough(task, since) => self.enough(task, since),
            Event::Background(node, turn) => self.on_background(node as usize, turn),
            Event::Flush => self.on_flush(),
            Event::Period => {
                if self.running == 0 {
                    return Ok(());
                }
                self.flush();
                self.plan(PERIOD / self.scale, Event::Period);
            }
        }
        Ok(())
    }

    /// The zones of all nodes.
    fn zones(&self) -> impl Iterator<Item = &Zone> {
        self.memory.nodes.iter().flatten()
    }

    /// How long `time` of CPU takes for an actor that has used this much of its slice.
    fn on_cpu(&self, used: &mut Nanos, time: Nanos) -> Nanos {
        if !self.busy {
            return time;
        }
        *used += time;
        let turns = *used / SLICE;
        *used %= SLICE;
        time + turns * SLICE
    }

    /// The cost to wake an actor that has slept since then.
    fn wake_up(&self, since: Nanos) -> Nanos {
        if self.busy {
            return self.prices.switch;
        }
        let slept = self.now.saturating_sub(since);
        let states = self.idle.iter().rev();
        let exit = states.clone().find(|(after, _)| slept >= *after);
        self.prices.switch + exit.map_or(0, |(_, exit)| *exit)
    }

    /// Takes up to a batch of frames for a task on `node` into `taken`. Returns the wait for the locks of zone and
    /// lists. None: it has to reclaim first.
    fn take(&mut self, node: usize, count: u64) -> Option<Nanos> {
        self.taken.clear();
        let nodes = self.memory.nodes.len();
        let near = move |n: usize| (node + n) % nodes;
        let mut found = None;
        for at in (0..nodes).map(near) {
            if let Allocation::Take(zone) = allocate(&self.memory.nodes[at], 0, HIGHEST) {
                found = Some((at, zone));
                break;
            }
        }
        if found.is_none() {
            // All zones are below low: every node's thread is woken.
            for at in (0..nodes).map(near) {
                self.ask(at);
            }
            for at in (0..nodes).map(near) {
                match allocate(&self.memory.nodes[at], 0, HIGHEST) {
                    Allocation::Take(zone) | Allocation::TakeAndWake(zone) => {
                        found = Some((at, zone));
                        break;
                    }
                    Allocation::Reclaim => {}
                }
            }
        }
        let (at, zone) = found?;
        let count = count.min(BATCH);
        self.memory.take(at, zone, count, &mut self.taken);
        // Work under the locks is part of the cost of each page.
        let held = self.taken.len() as u64 * self.prices.look;
        let now = self.now;
        let waited = self.locks.zone(at, zone, [now, now], held);
        let listed = now + waited + held;
        Some(waited + self.locks.lists_later(at, [now, listed], held))
    }

    /// Takes a whole block for a huge page, if there is one above min. Neither reclaims nor wakes a node's thread, as
    /// Linux since 4.6 for a program that has not asked for huge pages.
    fn take_huge(&mut self, node: usize) -> Option<u32> {
        let nodes = self.memory.nodes.len();
        for at in (0..nodes).map(|n| (node + n) % nodes) {
            let zone = match allocate(&self.memory.nodes[at], HUGE, HIGHEST) {
                Allocation::Take(zone) | Allocation::TakeAndWake(zone) => zone,
                Allocation::Reclaim => continue,
            };
            if let Some(block) = self.memory.take_huge(at, zone) {
                self.counts.huge += 1;
                return Some(block);
            }
        }
        self.counts.no_huge += 1;
        None
    }
}
