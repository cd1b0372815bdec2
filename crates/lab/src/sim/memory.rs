//! The world that the core acts on: the pages of all tasks, the frames, the swap area and its map.
//!
//! Every act is done at once in the state, and leaves its price behind: a list of [`Step`]s, CPU
//! time, locks, transfers and wake-ups, which whoever called the core then goes through on the
//! virtual clock. The content of a page is a number that tells who wrote it last, so that a page that
//! comes back as another is seen.

use foreswap_core::units::{Frame, LEAF_PAGES, Nanos, Slot, Vpn};
use foreswap_core::world::{Digest, Done, IoId, Limit, Mmu, Notice, Stop, Store, SwapMap, World};

use std::collections::BTreeMap;

use super::device::Transfer;
use super::lock::LockId;
use super::lru::Lru;
use super::parameters::{Costs, Locks};

/// One thing on the way of a task, or of the system's own work, through time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// CPU time.
    Cpu(Nanos),
    /// Take a lock and hold it for so long.
    Lock(LockId, Nanos),
    /// Hand a transfer to the device.
    Submit(IoId),
    /// Who waits for the page goes on.
    Wake(Vpn),
}

/// What a page is where nothing is mapped.
const ABSENT: u64 = u64::MAX;
/// The content of memory that holds nothing.
const GARBAGE: u64 = u64::MAX - 1;

/// How the locks of swap are taken when pages go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugeSwap {
    /// A huge page is split before it gets its slots: one slot, one entry of the swap cache at a time.
    #[default]
    SplitFirst,
    /// A huge page gets a cluster of slots and its entries in the swap cache together.
    SplitAfter,
}

/// In what order pages go out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// As the core's own clock hand finds them.
    Clock,
    /// As a kernel's lists have them, see [`super::lru`].
    Lru,
}

/// A transfer between its submission and its end.
#[derive(Clone, Debug)]
pub struct Flight {
    /// What the device is asked for.
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
    /// Where the search for an empty cluster goes on.
    next: usize,
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
    area: Area,
    /// The area takes no more pages.
    pub closed: bool,
    limit: u64,
    charged: u64,
    depth: usize,
    flights: BTreeMap<IoId, Flight>,
    costs: Costs,
    locks: Locks,
    huge_swap: HugeSwap,
    /// In what order pages go, where the machine's kernel decides that.
    lru: Option<Lru>,
    /// Slots taken and given back, and pages that entered the swap cache on their way out or came and
    /// went otherwise, for which the lock is still to be taken.
    taken: u32,
    returned: u32,
    leaving: u32,
    entries: u32,
    steps: Vec<Step>,
    /// Readahead windows by size.
    pub windows: BTreeMap<u64, u64>,
    /// What the core had to say.
    pub notices: Vec<Notice>,
}

/// What memory is made of.
pub struct Shape<'a> {
    /// First page that tasks use.
    pub base: Vpn,
    /// What belongs to one task each, in order of address.
    pub regions: &'a [foreswap_core::units::PageRange],
    /// Pages that tasks use, all together.
    pub pages: u64,
    /// Frames.
    pub frames: u32,
    /// Slots of the area.
    pub slots: u64,
    /// The limit, in pages.
    pub limit: u64,
    /// I/Os at a time.
    pub depth: usize,
    /// How huge pages go out.
    pub huge_swap: HugeSwap,
    /// In what order pages go.
    pub order: Order,
}

impl Memory {
    /// Memory that nobody has touched.
    pub fn new(shape: &Shape<'_>, costs: Costs, locks: Locks) -> Self {
        let slots = shape.slots as usize;
        Memory {
            now: 1,
            base: shape.base.0,
            pages: vec![ABSENT; shape.pages as usize],
            frames: vec![ABSENT; shape.frames as usize],
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
            taken: 0,
            returned: 0,
            leaving: 0,
            entries: 0,
            steps: Vec::new(),
            windows: BTreeMap::new(),
            notices: Vec::new(),
        }
    }

    /// The price of what the core did since the last call.
    pub fn take_steps(&mut self, steps: &mut Vec<Step>) {
        self.settle_locks();
        steps.append(&mut self.steps);
    }

    /// What is in a page of a task; `None` where it is absent.
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

    /// The next page that the core should be told is cold.
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

    /// Pages of a range vanish.
    pub fn vanish(&mut self, range: &foreswap_core::units::PageRange) {
        for page in foreswap_core::units::pages(range) {
            if let Some(place) = self.place(page)
                && std::mem::replace(place, ABSENT) != ABSENT
            {
                self.went(page);
            }
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

    /// What is to be handed to the device.
    pub fn transfer(&self, io: IoId) -> Option<Transfer> {
        self.flights.get(&io).map(|flight| flight.transfer)
    }

    /// A transfer is done: its bytes are where they belong.
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

    /// Take the locks of what was done together. Slots that a CPU keeps for itself wait until there is
    /// a batch of them.
    fn settle_locks(&mut self) {
        let together = match self.huge_swap {
            HugeSwap::SplitFirst => 1,
            HugeSwap::SplitAfter => LEAF_PAGES as u32,
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
        take(
            &mut self.taken,
            LockId::Slots,
            slot,
            batch,
            batch.max(together),
        );
        take(&mut self.returned, LockId::Slots, slot, batch, batch);
        take(&mut self.leaving, LockId::Cache, cache, 1, together);
        take(&mut self.entries, LockId::Cache, cache, 1, 1);
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
            self.cpu(self.costs.allocate * u64::from(pages));
            self.entries += pages;
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

impl Mmu for Memory {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        let done = self.each(n, |m, i| {
            let place = m.place(page.plus(i.into())).ok_or(Stop::Gone)?;
            if *place == ABSENT {
                return Err(Stop::Absent);
            }
            let content = std::mem::replace(place, ABSENT);
            m.frames[frame.plus(i).0 as usize] = content;
            m.went(page.plus(i.into()));
            Ok(())
        });
        self.cpu(self.costs.unmap * u64::from(done.pages));
        self.leaving += done.pages;
        self.settle_locks();
        done
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        let done = self.each(n, |m, i| {
            let content = m.frames[frame.plus(i).0 as usize];
            *m.absent(page.plus(i.into()))? = content;
            m.frames[frame.plus(i).0 as usize] = ABSENT;
            Ok(())
        });
        self.cpu(self.costs.map * u64::from(done.pages));
        self.entries += done.pages;
        self.settle_locks();
        for i in 0..done.pages {
            self.came(page.plus(i.into()));
        }
        done
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        let content = self.frames[frame.0 as usize];
        match self.absent(page) {
            Err(stop) => Done::stopped(0, stop),
            Ok(place) => {
                *place = content;
                self.cpu(self.costs.zero + self.costs.allocate + self.costs.map);
                self.came(page);
                Done::all(1)
            }
        }
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        let done = self.each(n, |m, i| {
            *m.absent(page.plus(i.into()))? = 0;
            Ok(())
        });
        let each = self.costs.allocate + self.costs.zero + self.costs.map;
        self.cpu(each * u64::from(done.pages));
        for i in 0..done.pages {
            self.came(page.plus(i.into()));
        }
        done
    }

    /// The simulated programs are not meant to lose pages; the notice that comes with it ends the run.
    fn poison(&mut self, page: Vpn) -> Done {
        self.steps.push(Step::Wake(page));
        Done::all(1)
    }

    fn wake(&mut self, page: Vpn) {
        self.steps.push(Step::Wake(page));
    }

    fn unshare(&mut self, _: Vpn, _: u32) {}

    fn fill(&mut self, frame: Frame, n: u32) -> Done {
        for i in 0..n {
            self.frames[frame.plus(i).0 as usize] = GARBAGE;
        }
        Done::all(n)
    }

    fn release(&mut self, frame: Frame, n: u32) {
        for i in 0..n {
            self.frames[frame.plus(i).0 as usize] = ABSENT;
        }
    }

    fn clear(&mut self, frame: Frame) {
        self.cpu(self.costs.allocate + self.costs.zero);
        self.frames[frame.0 as usize] = 0;
    }

    /// Free of charge: the modelled kernel has a dirty bit in its stead.
    fn digest_of(&mut self, frame: Frame) -> Digest {
        match self.frames[frame.0 as usize] {
            0 => Digest::Zero,
            content => Digest::Hash(content),
        }
    }
}

impl Store for Memory {
    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, false)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, true)
    }
}

impl SwapMap for Memory {
    fn nth(&self, n: u8) -> Option<u8> {
        (n == 0 && !self.closed).then_some(0)
    }

    fn slots(&self, _: u8) -> u32 {
        self.area.counts.len() as u32
    }

    fn used(&self, _: u8) -> u64 {
        self.area.used
    }

    fn claim_cluster(&mut self, _: u8) -> Option<u32> {
        let count = self.area.claimed.len();
        let area = &self.area;
        let room = |c: &usize| {
            let slots = (area.counts.len() - c * LEAF_PAGES).min(LEAF_PAGES);
            !area.claimed[*c] && usize::from(area.cluster_used[*c]) < slots
        };
        let order = || (0..count).map(|n| (area.next + n) % count);
        let empty = order().find(|&c| !area.claimed[c] && area.cluster_used[c] == 0);
        let cluster = empty.or_else(|| order().find(room))?;
        self.area.claimed[cluster] = true;
        self.area.next = cluster;
        Some(cluster as u32)
    }

    fn release_cluster(&mut self, _: u8, cluster: u32) {
        self.area.claimed[cluster as usize] = false;
    }

    fn cluster_used(&self, _: u8, cluster: u32) -> u32 {
        self.area.cluster_used[cluster as usize].into()
    }

    fn count(&self, slot: Slot) -> u32 {
        self.area.counts[slot.index as usize].into()
    }

    fn get(&mut self, slot: Slot) {
        self.taken += 1;
        self.area.counts[slot.index as usize] += 1;
        self.area.cluster_used[slot.cluster() as usize] += 1;
        self.area.used += 1;
    }

    fn put(&mut self, slot: Slot) {
        self.returned += 1;
        let count = &mut self.area.counts[slot.index as usize];
        debug_assert!(*count > 0, "{slot:?} is put more than it was taken");
        *count -= 1;
        if *count == 0 {
            self.area.cluster_used[slot.cluster() as usize] -= 1;
            self.area.used -= 1;
            self.area.content[slot.index as usize] = GARBAGE;
        }
    }

    fn share(&mut self, slot: Slot) {
        self.area.counts[slot.index as usize] += 1;
    }

    fn digest(&self, slot: Slot) -> u64 {
        self.area.digests[slot.index as usize]
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.area.digests[slot.index as usize] = digest;
    }
}

impl Limit for Memory {
    fn limit(&self) -> u64 {
        self.limit
    }

    fn available(&self) -> u64 {
        self.limit.saturating_sub(self.charged)
    }

    fn try_charge(&mut self, n: u64) -> bool {
        let fits = self.available() >= n;
        self.charged += n * u64::from(fits);
        fits
    }

    fn charge_existing(&mut self, n: u64) {
        self.charged += n;
    }

    fn uncharge(&mut self, n: u64) {
        self.charged -= n;
    }

    fn excess(&self) -> u64 {
        self.charged.saturating_sub(self.limit)
    }
}

impl World for Memory {
    fn now(&self) -> Nanos {
        self.now
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    fn window(&mut self, pages: u64) {
        *self.windows.entry(pages).or_default() += 1;
    }

    fn returns(&mut self, _: Vpn) {}
}
