//! The shared state of all processes: the clock, the limit, the swap areas, and random failures.
//!
//! The content of a page is one number. Freed slots, new frames and failed transfers contain [`GARBAGE`], which is
//! never a page's content: its use is detected.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use foreswap_core::units::{LEAF_PAGES, Nanos, Slot};
use foreswap_core::world::{Digest, Notice};
use serde::{Deserialize, Serialize};

use crate::chance::{Chance, mix};
use crate::family::Words;
use crate::leaving::Leaving;

/// Contents that are a multiple of this are same-filled, unless a test says otherwise ([`System::ordinary`]).
const FILLED: u64 = 64;
/// The last notices that are kept.
const TOLD: usize = 1024;
/// This many consecutive pages get the same content: several huge pages.
const WHILE: u64 = 2048;
/// Content that was never written.
pub const GARBAGE: u64 = 0xdead_0000_0000_0000;
/// In calls and I/Os up to this many pages, each page may fail separately.
const LONG: usize = 64;
/// The owner of clusters that are full of other users' pages.
pub const FOREIGN: usize = usize::MAX;
/// Calls of the world in one call of the core above which the core counts as hanging.
const MOST_CALLS: u32 = 10_000_000;

/// Random failures, in cases out of 1000.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chaos {
    /// Reads that fail.
    pub read_error: u32,
    /// Writes that fail.
    pub write_error: u32,
    /// Writes for which the file system has no room.
    pub no_space: u32,
    /// Writes of which the compressing area (the first, if this is not 0) refuses pages.
    pub refuse: u32,
    /// Pages read with wrong bytes.
    pub corrupt: u32,
    /// Pages whose write is lost although the device reports it as done.
    pub lost_write: u32,
    /// I/Os that are split by a short transfer.
    pub short: u32,
    /// I/Os that take seconds.
    pub stall: u32,
    /// I/Os refused by a full queue.
    pub queue_full: u32,
    /// MMU calls that return EAGAIN.
    pub again: u32,
    /// Those among them that return it after some pages.
    pub partial: u32,
    /// The system has no memory.
    pub no_memory: u32,
    /// Pages that cannot be moved in (EBUSY).
    pub busy: u32,
}

impl Chaos {
    /// Each rate, to be cleared one by one.
    pub fn rates(&mut self) -> [&mut u32; 13] {
        [
            &mut self.read_error,
            &mut self.write_error,
            &mut self.no_space,
            &mut self.refuse,
            &mut self.corrupt,
            &mut self.lost_write,
            &mut self.short,
            &mut self.stall,
            &mut self.queue_full,
            &mut self.again,
            &mut self.partial,
            &mut self.no_memory,
            &mut self.busy,
        ]
    }
}

/// One swap area.
pub struct Area {
    /// Use count of each slot.
    pub counts: Vec<u16>,
    /// The core's digests of slots.
    pub digests: Vec<u64>,
    /// The content of each slot.
    pub content: Vec<u64>,
    /// Writes in flight, by slot.
    pub writing: Vec<u8>,
    /// The owner of each cluster.
    pub claims: Vec<Option<usize>>,
    /// Slots in use in each cluster.
    pub cluster_used: Vec<u32>,
    /// Slots in use.
    pub used: u64,
    /// The device is gone: every I/O fails.
    pub dead: bool,
}

impl Area {
    /// An unused area.
    pub fn new(slots: u32) -> Self {
        let (n, clusters) = (slots as usize, (slots as usize).div_ceil(LEAF_PAGES));
        Area {
            counts: vec![0; n],
            digests: vec![0; n],
            content: vec![GARBAGE; n],
            writing: vec![0; n],
            claims: vec![None; clusters],
            cluster_used: vec![0; clusters],
            used: 0,
            dead: false,
        }
    }
}

/// The shared state.
pub struct System {
    /// Virtual time.
    pub now: Nanos,
    /// The limit, in pages.
    pub limit: u64,
    /// The charge.
    pub charged: u64,
    /// Processes of a family share pages without being charged for them.
    pub families: bool,
    /// The messages of the processes to each other, by process.
    pub ledger: Vec<Words>,
    /// Pages that nobody was asked to pay for.
    pub unasked: u64,
    /// Pages that forks shared so far.
    pub ids: u64,
    /// The permitted excess of the charge over the limit, explained by observed events.
    pub excused: u64,
    /// The pages that each process should give back because another needs them.
    pub pressure: Vec<u64>,
    /// All areas that ever were.
    pub areas: Vec<Area>,
    /// The writable areas, in the order in which they are filled.
    pub order: Vec<u8>,
    /// A write failed, or an area refused a page: processes skip that area for some time, or for good.
    pub write_failed: bool,
    /// By process: its core believes that no area accepts a page.
    pub out_of_slots: Vec<bool>,
    /// The area being emptied.
    pub draining: Option<u8>,
    /// The present failure rates.
    pub chaos: Chaos,
    /// The first area compresses.
    pub compressing: bool,
    /// Unreadable slots.
    pub bad_sectors: BTreeSet<Slot>,
    /// Slots whose content was spoiled since the last write and whose read failed: the core may report them.
    pub spoiled: BTreeSet<Slot>,
    /// Ended processes whose pages the device still writes.
    pub leaving: Vec<Leaving>,
    /// Seeded anew at each step.
    pub chance: Chance,
    /// Notices since the last check, with the process.
    pub notices: Vec<(usize, Notice)>,
    /// The last notices.
    pub told: VecDeque<Notice>,
    /// A content with any of these bits is of an ordinary page; any other is same-filled.
    pub ordinary: u64,
    /// Processes that are not simulated have random faults.
    pub others_fault_at_random: bool,
    /// The process to which the limit gave way last, and the time.
    pub yielded: Option<(usize, Nanos)>,
    /// The process that has reported random faults last, and the time.
    pub random_faults: Option<(usize, Nanos)>,
    /// The driver sees that an I/O has ended while the core works; all in flight have.
    pub ends_show: bool,
    /// Readahead windows by size.
    pub windows: BTreeMap<u64, u64>,
    /// Another user has taken the free slots of the areas.
    pub foreign: bool,
    /// A hash over all calls of the world.
    pub trace: u64,
    /// Calls of the world in the current call of the core.
    pub calls: u32,
}

impl System {
    /// A machine with empty areas.
    pub fn new(limit: u64, areas: &[u32], chaos: Chaos) -> Self {
        System {
            now: 1,
            limit,
            charged: 0,
            families: false,
            ledger: Vec::new(),
            unasked: 0,
            ids: 0,
            excused: 0,
            pressure: Vec::new(),
            areas: areas.iter().map(|&slots| Area::new(slots)).collect(),
            order: (0..areas.len() as u8).collect(),
            write_failed: false,
            out_of_slots: Vec::new(),
            draining: None,
            chaos,
            compressing: chaos.refuse > 0,
            bad_sectors: BTreeSet::new(),
            spoiled: BTreeSet::new(),
            leaving: Vec::new(),
            chance: Chance::new(0),
            notices: Vec::new(),
            told: VecDeque::new(),
            ordinary: FILLED - 1,
            others_fault_at_random: false,
            random_faults: None,
            yielded: None,
            ends_show: false,
            windows: BTreeMap::new(),
            foreign: false,
            trace: 0,
            calls: 0,
        }
    }

    /// Whether an area compresses, and may refuse pages.
    pub fn compresses(&self, area: u8) -> bool {
        area == 0 && self.compressing
    }

    /// The page of a call or an I/O that may fail by chance: `None` means any; in a long call it is a single one, and
    /// huge pages get through whole.
    pub fn trouble(&mut self, pages: usize) -> Option<usize> {
        (pages > LONG).then(|| self.chance.below(pages as u64) as usize)
    }

    /// A notice of a process, for tests and reports.
    pub fn tell(&mut self, notice: Notice) {
        if self.told.len() == TOLD {
            self.told.pop_front();
        }
        self.told.push_back(notice);
    }

    /// A call of the world, for the trace.
    pub fn note(&mut self, what: u64, a: u64, b: u64) {
        self.trace = (self.trace.rotate_left(5) ^ what ^ (a << 8) ^ (b << 40))
            .wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.calls += 1;
        assert!(self.calls < MOST_CALLS, "the core does not come to an end");
    }

    /// The charge above the limit has a reason.
    pub fn excuse(&mut self) {
        self.excused = self.excused.max(self.charged.saturating_sub(self.limit));
    }

    /// Use count of a slot.
    pub fn count(&self, slot: Slot) -> u16 {
        self.areas[usize::from(slot.area)].counts[slot.index as usize]
    }

    /// One more user of a slot.
    pub fn get(&mut self, slot: Slot) {
        let area = &mut self.areas[usize::from(slot.area)];
        let at = slot.index as usize;
        area.counts[at] += 1;
        if area.counts[at] == 1 {
            area.used += 1;
            area.cluster_used[slot.cluster() as usize] += 1;
        }
    }

    /// One user less.
    pub fn put(&mut self, slot: Slot) {
        let area = &mut self.areas[usize::from(slot.area)];
        let at = slot.index as usize;
        assert!(
            area.counts[at] > 0,
            "{slot:?} is put more often than it was taken"
        );
        area.counts[at] -= 1;
        if area.counts[at] == 0 {
            area.used -= 1;
            area.cluster_used[slot.cluster() as usize] -= 1;
            area.content[at] = GARBAGE;
        }
    }

    /// A cluster with a free slot for `who`; preferably an empty one.
    pub fn claim(&mut self, area: u8, who: usize) -> Option<u32> {
        let area = &mut self.areas[usize::from(area)];
        let room = |&c: &usize| {
            let slots = (area.counts.len() - c * LEAF_PAGES).min(LEAF_PAGES);
            area.claims[c].is_none() && (area.cluster_used[c] as usize) < slots
        };
        let cluster = (0..area.claims.len()).filter(room);
        let cluster = cluster.min_by_key(|&c| area.cluster_used[c] > 0)?;
        area.claims[cluster] = Some(who);
        Some(cluster as u32)
    }

    /// Claim an empty cluster.
    pub fn claim_empty(&mut self, area: u8, who: usize) -> Option<u32> {
        let area = &mut self.areas[usize::from(area)];
        let whole = area.counts.len() / LEAF_PAGES;
        let is_empty = |&c: &usize| area.claims[c].is_none() && area.cluster_used[c] == 0;
        let cluster = (0..whole).find(is_empty)?;
        area.claims[cluster] = Some(who);
        Some(cluster as u32)
    }

    /// Whether `pid` may still put pages on some area.
    pub fn has_room(&self, pid: usize) -> bool {
        self.order.iter().any(|&area| {
            let area = &self.areas[usize::from(area)];
            let ours = |claim: &Option<usize>| claim.is_none_or(|who| who == pid);
            let room = |c: usize| {
                let slots = (area.counts.len() - c * LEAF_PAGES).min(LEAF_PAGES);
                (area.cluster_used[c] as usize) < slots
            };
            let mut claims = area.claims.iter().enumerate();
            !area.dead && claims.any(|(c, claim)| ours(claim) && room(c))
        })
    }

    /// Adds or replaces an area; `at` is its place in the order.
    pub fn set_area(&mut self, area: usize, slots: u32, at: usize) {
        if area == self.areas.len() {
            self.areas.push(Area::new(slots));
        } else {
            self.areas[area] = Area::new(slots);
        }
        for slots in [&mut self.bad_sectors, &mut self.spoiled] {
            slots.retain(|slot| usize::from(slot.area) != area);
        }
        self.order.insert(at.min(self.order.len()), area as u8);
    }

    /// The area to empty: a random one, the fullest, or the one being filled.
    pub fn area_to_empty(&mut self) -> u8 {
        let any = self.chance.below(self.areas.len() as u64) as u8;
        let fullest = (0u8..).zip(&self.areas).max_by_key(|(_, area)| area.used);
        let filled = |area: &&u8| {
            let area = &self.areas[usize::from(**area)];
            area.used + (LEAF_PAGES as u64) < area.counts.len() as u64
        };
        let filled = self.order.iter().find(filled).copied();
        let fullest = fullest.map(|(area, _)| area);
        self.chance
            .pick(&[Some(any), fullest, filled])
            .unwrap_or(any)
    }

    /// No page is put on `area` from now on.
    pub fn begin_drain(&mut self, area: u8) {
        self.order.retain(|other| *other != area);
        self.draining = Some(area);
    }

    /// The area is being emptied, and is empty.
    pub fn is_emptied(&self) -> bool {
        self.draining
            .is_some_and(|area| self.areas[usize::from(area)].used == 0)
    }

    fn slots_of(&self, area: usize, cluster: usize) -> impl Iterator<Item = Slot> + use<> {
        let first = cluster * LEAF_PAGES;
        let last = self.areas[area].counts.len().min(first + LEAF_PAGES);
        let area = area as u8;
        (first as u32..last as u32).map(move |index| Slot { area, index })
    }

    /// Another user takes all free slots of unclaimed clusters.
    pub fn foreign_fill(&mut self) {
        self.foreign = true;
        for area in 0..self.areas.len() {
            for cluster in 0..self.areas[area].claims.len() {
                if self.areas[area].claims[cluster].is_none() {
                    self.areas[area].claims[cluster] = Some(FOREIGN);
                    for slot in self.slots_of(area, cluster) {
                        if self.count(slot) == 0 {
                            self.get(slot);
                        }
                    }
                }
            }
        }
    }

    /// That user is gone; `held` is the use count of a slot by others.
    pub fn foreign_free(&mut self, held: impl Fn(Slot) -> u16) {
        self.foreign = false;
        for area in 0..self.areas.len() {
            for cluster in 0..self.areas[area].claims.len() {
                if self.areas[area].claims[cluster] == Some(FOREIGN) {
                    self.areas[area].claims[cluster] = None;
                    for slot in self.slots_of(area, cluster) {
                        if self.count(slot) > held(slot) + self.left(slot) {
                            self.put(slot);
                        }
                    }
                }
            }
        }
    }

    /// The content written as number `n`: mostly unique, at times the same word for a while.
    pub const fn content(n: u64) -> u64 {
        // Not the first ones: short programs get different pages.
        if n / WHILE % 8 == 7 {
            FILLED * (1 + n / WHILE)
        } else {
            n
        }
    }

    /// The content of a page of the only file. Some pages are holes, and some same-filled.
    pub const fn file_content(index: u32) -> u64 {
        match index % 16 {
            0 | 1 => 0,
            2 => 1,
            _ => mix(0xf11e ^ index as u64),
        }
    }

    /// Digest of a page's content for the core; different for different pages. Those without any of the bits of
    /// `ordinary` are same-filled.
    pub const fn digest(content: u64, ordinary: u64) -> Digest {
        match content {
            0 => Digest::Zero,
            _ if content & ordinary == 0 => Digest::Filled(content),
            _ => Digest::Hash(mix(content)),
        }
    }
}
