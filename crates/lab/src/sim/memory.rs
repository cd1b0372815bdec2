//! The core's world: the pages of all tasks, the frames, the swap area and its map.
//!
//! Every operation changes the state at once, and leaves its costs behind: a list of [`Step`]s, CPU time, locks,
//! transfers and wake-ups, which the caller of the core then executes on the virtual clock. The content of a page is
//! a number that identifies its last writer: a mistaken page is detected.

mod area;
mod mmu;

use foreswap_core::units::{Frame, LEAF_PAGES, Nanos, Slot, Vpn};
use foreswap_core::world::{Done, IoId, Notice, Stop};

use std::collections::BTreeMap;

use super::device::Transfer;
use super::lock::LockId;
use super::lru::Lru;
use super::parameters::{Costs, Locks};
use crate::page_tables::{Clusters, HUGE, Table};

/// One step of a task, or of the system's own work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// CPU time.
    Cpu(Nanos),
    /// Take a lock and hold it for this time.
    Lock(LockId, Nanos),
    /// Submit a transfer to the device.
    Submit(IoId),
    /// Wake the waiters of the page.
    Wake(Vpn),
}

/// The content of an unmapped page.
const ABSENT: u64 = u64::MAX;
/// The content of unused memory.
const GARBAGE: u64 = u64::MAX - 1;

/// How the locks of swap are taken on eviction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugeSwap {
    /// A huge page is split before it gets its slots: one slot, one entry of the swap cache at a time.
    #[default]
    SplitFirst,
    /// A huge page gets a cluster of slots and its entries in the swap cache together.
    SplitAfter,
    /// The core manages memory in huge pages where it is touched in order, and never splits them: a huge page takes
    /// its cluster by one lookup, is one entry of the swap cache, one write and one read.
    Whole,
}

/// The eviction order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The order of the core's own clock hand.
    Clock,
    /// The order of a kernel's lists, see [`super::lru`].
    Lru,
}

/// A transfer between its submission and its completion.
#[derive(Clone, Debug)]
pub struct Flight {
    /// The request to the device.
    pub transfer: Transfer,
    slot: Slot,
    frames: Vec<Frame>,
    data: Vec<u64>,
}

#[derive(Debug)]
struct Area {
    counts: Vec<u16>,
    digests: Vec<u64>,
    content: Vec<u64>,
    claimed: Vec<bool>,
    cluster_used: Vec<u16>,
    used: u64,
    /// The position of the search for an empty cluster.
    next: usize,
}

/// Slots for which the lock has not been taken yet: single ones, or clusters whose slots were taken, or given back,
/// in order.
#[derive(Clone, Copy, Debug, Default)]
struct Slots {
    single: u32,
    clusters: u32,
    /// The run that may become a cluster: its next slot, and its length.
    next: u32,
    run: u32,
}

impl Slots {
    fn add(&mut self, index: u32, whole: bool) {
        self.single += 1;
        let begins = index.is_multiple_of(HUGE);
        self.run = match begins || self.run > 0 && index == self.next {
            true => u32::from(!begins) * self.run + 1,
            false => 0,
        };
        self.next = index + 1;
        if whole && self.run == HUGE && self.single >= HUGE {
            self.single -= HUGE;
            self.clusters += 1;
        }
    }
}

/// All memory of the machine.
#[derive(Debug)]
pub struct Memory {
    /// The virtual clock.
    pub now: Nanos,
    base: u64,
    /// Content of each page of the tasks; dense, from `base` on.
    pages: Vec<u64>,
    frames: Vec<u64>,
    /// The mapping of each leaf of the tasks' pages, and of each cluster of frames.
    leaves: Vec<Table>,
    clusters: Clusters,
    area: Area,
    /// The area accepts no more pages.
    pub closed: bool,
    limit: u64,
    charged: u64,
    depth: usize,
    flights: BTreeMap<IoId, Flight>,
    costs: Costs,
    locks: Locks,
    huge_swap: HugeSwap,
    /// The eviction order, if the machine's kernel decides it.
    lru: Option<Lru>,
    /// Slots taken and given back, and pages that entered the swap cache on their way out or passed it otherwise, for
    /// which the lock has not been taken yet.
    taken: Slots,
    returned: Slots,
    leaving: u32,
    entries: u32,
    steps: Vec<Step>,
    /// The page on which a task faults at present.
    pub faulting: Option<Vpn>,
    /// Readahead windows by size.
    pub windows: BTreeMap<u64, u64>,
    /// The core's notices.
    pub notices: Vec<Notice>,
}

/// The parts of the memory.
pub struct Shape<'a> {
    /// First page that tasks use.
    pub base: Vpn,
    /// The regions of the tasks, in order of address.
    pub regions: &'a [foreswap_core::units::PageRange],
    /// Pages used by all tasks together.
    pub pages: u64,
    /// Frames for single pages, and clusters of frames for huge ones.
    pub frames: u32,
    pub clusters: u32,
    /// Slots of the area.
    pub slots: u64,
    /// The limit, in pages.
    pub limit: u64,
    /// The queue depth.
    pub depth: usize,
    /// How huge pages are evicted.
    pub huge_swap: HugeSwap,
    /// The eviction order.
    pub order: Order,
}

impl Memory {
    /// Untouched memory.
    pub fn new(shape: &Shape<'_>, costs: Costs, locks: Locks) -> Self {
        let slots = shape.slots as usize;
        let clusters = Clusters::new(shape.frames, shape.clusters);
        Memory {
            now: 1,
            base: shape.base.0,
            pages: vec![ABSENT; shape.pages as usize],
            frames: vec![ABSENT; clusters.frames()],
            leaves: vec![Table::None; (shape.pages as usize).div_ceil(LEAF_PAGES)],
            clusters,
            area: Area {
                counts: vec![0; slots],
                digests: vec![0; slots],
                content: vec![GARBAGE; slots],
                claimed: vec![false; slots.div_ceil(LEAF_PAGES)],
                cluster_used: vec![0; slots.div_ceil(LEAF_PAGES)],
                used: 0,
                next: 0,
            },
            closed: false,
            limit: shape.limit,
            charged: 0,
            depth: shape.depth,
            flights: BTreeMap::new(),
            costs,
            locks,
            huge_swap: shape.huge_swap,
            lru: (shape.order == Order::Lru).then(|| {
                let ends = shape.regions.iter();
                let ends = ends.map(|region| (region.end.0 - shape.base.0) as usize);
                Lru::new(shape.pages as usize, ends)
            }),
            taken: Slots::default(),
            returned: Slots::default(),
            leaving: 0,
            entries: 0,
            steps: Vec::new(),
            faulting: None,
            windows: BTreeMap::new(),
            notices: Vec::new(),
        }
    }

    /// The costs of the core's actions since the last call.
    pub fn take_steps(&mut self, steps: &mut Vec<Step>) {
        self.settle_locks();
        steps.append(&mut self.steps);
    }

    /// The content of a task's page; `None` if it is absent.
    pub fn read(&self, page: Vpn) -> Option<u64> {
        let content = *self.pages.get((page.0.checked_sub(self.base)?) as usize)?;
        (content != ABSENT).then_some(content)
    }

    /// A task touches a page that is present.
    pub fn touch(&mut self, page: Vpn) {
        let base = self.base;
        if let Some(lru) = &mut self.lru {
            lru.touch((page.0 - base) as usize);
        }
    }

    /// The next page to report to the core as cold.
    pub fn next_cold(&mut self) -> Option<Vpn> {
        let page = self.lru.as_mut()?.next_cold()?;
        Some(Vpn(self.base + page as u64))
    }

    fn came(&mut self, page: Vpn) {
        let base = self.base;
        if let Some(lru) = &mut self.lru {
            lru.came((page.0 - base) as usize);
        }
        self.steps.push(Step::Wake(page));
    }

    fn went(&mut self, page: Vpn) {
        let base = self.base;
        if let Some(lru) = &mut self.lru {
            lru.went((page.0 - base) as usize);
        }
    }

    /// A task writes to a page that is present.
    pub fn write(&mut self, page: Vpn, content: u64) {
        debug_assert!(content < GARBAGE);
        if let Some(place) = self.place(page) {
            *place = content;
        }
    }

    /// The pages of a region vanish, with their page tables.
    pub fn vanish(&mut self, range: &foreswap_core::units::PageRange) {
        for page in foreswap_core::units::pages(range) {
            if let Some(place) = self.place(page)
                && std::mem::replace(place, ABSENT) != ABSENT
            {
                self.went(page);
            }
        }
        // Each task's memory has leaves of its own.
        for page in (range.start.0..range.end.0).step_by(LEAF_PAGES) {
            self.set_table(Vpn(page), Table::None);
        }
    }

    /// A new limit, in pages.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Slots in use.
    pub fn slots_used(&self) -> u64 {
        self.area.used
    }

    /// Pages that are charged.
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Transfers in flight, those that were not handed to the device yet included.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// The transfer to submit to the device.
    pub fn transfer(&self, io: IoId) -> Option<Transfer> {
        self.flights.get(&io).map(|flight| flight.transfer)
    }

    /// A transfer is done: its bytes arrive.
    pub fn complete(&mut self, io: IoId) {
        let Some(flight) = self.flights.remove(&io) else {
            return;
        };
        for (i, frame) in flight.frames.iter().enumerate() {
            let index = flight.slot.index as usize + i;
            if flight.transfer.write {
                self.area.content[index] = flight.data[i];
            } else {
                self.frames[frame.0 as usize] = self.area.content[index];
            }
        }
    }

    fn place(&mut self, page: Vpn) -> Option<&mut u64> {
        let at = page.0.checked_sub(self.base)?;
        self.pages.get_mut(at as usize)
    }

    fn cpu(&mut self, time: Nanos) {
        match self.steps.last_mut() {
            Some(Step::Cpu(sum)) => *sum += time,
            _ => self.steps.push(Step::Cpu(time)),
        }
    }

    /// Take the locks of joint operations. Slots cached by a CPU wait until there is a batch of them.
    fn settle_locks(&mut self) {
        let together = match self.huge_swap {
            HugeSwap::SplitFirst | HugeSwap::Whole => 1,
            HugeSwap::SplitAfter => HUGE,
        };
        let Locks {
            slot,
            cache,
            slots_at_once: batch,
            ..
        } = self.locks;
        let steps = &mut self.steps;
        let mut take = |count: &mut u32, lock, hold: Nanos, least: u32, most: u32| {
            while *count >= least {
                let n = (*count).min(most);
                steps.push(Step::Lock(lock, hold * u64::from(n)));
                *count -= n;
            }
        };
        for (slots, most) in [
            (&mut self.taken, batch.max(together)),
            (&mut self.returned, batch),
        ] {
            take(&mut slots.clusters, LockId::Slots, slot, 1, 1);
            take(&mut slots.single, LockId::Slots, slot, batch, most);
        }
        take(&mut self.leaving, LockId::Cache, cache, 1, together);
        take(&mut self.entries, LockId::Cache, cache, 1, 1);
    }

    fn leaf(&mut self, page: Vpn) -> Option<&mut Table> {
        let at = page.0.checked_sub(self.base)? as usize / LEAF_PAGES;
        self.leaves.get_mut(at)
    }

    /// The mapping of a page's leaf.
    fn table(&mut self, page: Vpn) -> Table {
        self.leaf(page).map_or(Table::Small, |table| *table)
    }

    fn set_table(&mut self, page: Vpn, table: Table) {
        if let Some(leaf) = self.leaf(page) {
            *leaf = table;
        }
    }

    /// An operation on a single page and frame: huge pages that contain them are split.
    fn alone(&mut self, page: Option<Vpn>, frame: Option<Frame>) {
        let before = page.map(|page| self.table(page));
        if let Some(page) = page {
            self.set_table(page, Table::Small);
        }
        let behind = frame.map(|frame| self.clusters.get(frame));
        if let Some(frame) = frame {
            self.clusters.set(frame, Table::Small);
        }
        for table in [before, behind] {
            if table == Some(Table::Huge) {
                self.cpu(self.costs.unmap + self.costs.map * u64::from(HUGE));
            }
        }
    }

    fn each(&mut self, n: u32, mut one: impl FnMut(&mut Self, u32) -> Result<(), Stop>) -> Done {
        for i in 0..n {
            if let Err(stop) = one(self, i) {
                return Done::stopped(i, stop);
            }
        }
        Done::all(n)
    }

    fn absent(&mut self, page: Vpn) -> Result<&mut u64, Stop> {
        match self.place(page) {
            None => Err(Stop::Gone),
            Some(place) if *place == ABSENT => Ok(place),
            Some(_) => Err(Stop::Exists),
        }
    }

    fn begin(&mut self, io: IoId, slot: Slot, frames: &[Frame], write: bool) -> bool {
        if self.flights.len() >= self.depth {
            return false;
        }
        let pages = frames.len() as u32;
        if !write {
            let first = frames.first();
            let huge = first.is_some_and(|&first| self.clusters.are_one(first, pages));
            let entries = if huge { 1 } else { pages };
            self.cpu(self.costs.allocate * u64::from(entries));
            self.entries += entries;
        }
        self.settle_locks();
        self.cpu(self.costs.submit + self.costs.copy * u64::from(pages));
        self.steps.push(Step::Submit(io));
        let content = |frame: &Frame| self.frames[frame.0 as usize];
        let data = frames.iter().filter(|_| write).map(content).collect();
        let transfer = Transfer {
            write,
            first: slot.index.into(),
            pages,
        };
        let flight = Flight {
            transfer,
            slot,
            frames: frames.to_vec(),
            data,
        };
        self.flights.insert(io, flight);
        true
    }
}
