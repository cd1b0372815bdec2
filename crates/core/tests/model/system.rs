//! State that the modelled processes share: the clock, the limit, the swap areas and the failure rates.

use std::collections::{BTreeMap, BTreeSet};

use foreswap_core::units::{LEAF_PAGES, Nanos, Slot};
use foreswap_core::world::{Digest, Notice};

use super::rng::{Rng, mix};

/// The content of freed slots, new frames and failed transfers: never a page's value.
pub const GARBAGE: u64 = 0xdead_0000_0000_0000;
/// Claims the clusters that are full of other users' pages.
pub const FOREIGN: usize = usize::MAX;

/// Failure rates, in cases out of 1000.
#[derive(Clone, Copy, Default, Debug)]
pub struct Chaos {
    pub read_error: u32,
    pub write_error: u32,
    pub no_space: u32,
    /// Writes of which the compressing area refuses pages.
    pub refuse: u32,
    pub corrupt: u32,
    pub queue_full: u32,
    pub again: u32,
    pub partial: u32,
    pub no_memory: u32,
    pub busy: u32,
}

/// One swap area.
pub struct Area {
    pub counts: Vec<u16>,
    pub digests: Vec<u64>,
    pub content: Vec<u64>,
    /// Writes in flight, by slot.
    pub writing: Vec<u8>,
    /// The process that allocates from each cluster.
    pub claims: Vec<Option<usize>>,
    pub cluster_used: Vec<u32>,
    pub used: u64,
}

impl Area {
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
        }
    }
}

/// All shared state.
pub struct System {
    pub now: Nanos,
    pub limit: u64,
    pub charged: u64,
    /// How far the charge may be above the limit for known reasons.
    pub excused: u64,
    /// Pages that each process should give back because another needs them.
    pub pressure: Vec<u64>,
    pub areas: Vec<Area>,
    /// The areas that may be written to, the first to be filled first.
    pub order: Vec<u8>,
    /// The area that is being emptied.
    pub draining: Option<u8>,
    /// Other processes have random faults.
    pub others_miss: bool,
    /// The device works off one I/O after the other, and tells of their ends when none is left.
    pub at_once: bool,
    /// I/Os have ended as soon as they are in flight, but are told later.
    pub ends_show: bool,
    /// Clusters whose digests may be taken at once beside the core.
    pub helpers: usize,
    /// Readahead windows by size.
    pub windows: BTreeMap<u64, u64>,
    pub chaos: Chaos,
    /// Slots that can never be read.
    pub bad_sectors: BTreeSet<Slot>,
    pub rng: Rng,
    /// Digests are mixed values instead of the values themselves, and every fourth page is same-filled.
    pub mixing: bool,
    /// Notices since they were last looked at, with the process.
    pub notices: Vec<(usize, Notice)>,
    /// All notices.
    pub told: Vec<Notice>,
    /// Calls into the core.
    pub steps: u64,
    /// A hash over all calls of the world.
    pub trace: u64,
}

impl System {
    /// Digest of a page's content.
    pub fn digest(&self, content: u64) -> Digest {
        match content {
            0 => Digest::Zero,
            _ if self.mixing && content % 4 == 1 => Digest::Filled(content),
            _ if self.mixing => Digest::Hash(mix(content)),
            _ => Digest::Hash(content),
        }
    }

    pub fn new(seed: u64, limit: u64, areas: &[u32]) -> Self {
        System {
            now: 1,
            limit,
            charged: 0,
            excused: 0,
            pressure: Vec::new(),
            areas: areas.iter().map(|&slots| Area::new(slots)).collect(),
            order: (0..areas.len() as u8).collect(),
            draining: None,
            windows: BTreeMap::new(),
            others_miss: false,
            at_once: false,
            ends_show: false,
            helpers: 0,
            chaos: Chaos::default(),
            bad_sectors: BTreeSet::new(),
            rng: Rng::new(seed),
            mixing: false,
            notices: Vec::new(),
            told: Vec::new(),
            steps: 0,
            trace: 0,
        }
    }

    /// Whether an area compresses, and may refuse pages: the first one, if any does.
    pub fn compresses(&self, area: u8) -> bool {
        area == 0 && self.chaos.refuse > 0
    }

    /// A call of the world, for the trace.
    pub fn note(&mut self, what: u64, a: u64, b: u64) {
        self.trace = mix(self.trace ^ what ^ (a << 8) ^ (b << 40)).wrapping_add(b);
    }

    /// The charge above the limit has a reason.
    pub fn excuse(&mut self) {
        self.excused = self.excused.max(self.charged.saturating_sub(self.limit));
    }

    pub fn count(&self, slot: Slot) -> u16 {
        self.areas[usize::from(slot.area)].counts[slot.index as usize]
    }

    pub fn get(&mut self, slot: Slot) {
        let area = &mut self.areas[usize::from(slot.area)];
        let at = slot.index as usize;
        area.counts[at] += 1;
        if area.counts[at] == 1 {
            area.used += 1;
            area.cluster_used[slot.cluster() as usize] += 1;
        }
    }

    pub fn put(&mut self, slot: Slot) {
        let area = &mut self.areas[usize::from(slot.area)];
        let at = slot.index as usize;
        assert!(
            area.counts[at] > 0,
            "{slot:?} is put more than it was taken"
        );
        area.counts[at] -= 1;
        if area.counts[at] == 0 {
            area.used -= 1;
            area.cluster_used[slot.cluster() as usize] -= 1;
            area.content[at] = GARBAGE;
        }
    }

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

    /// Claim a whole cluster of which no slot is in use.
    pub fn claim_empty(&mut self, area: u8, who: usize) -> Option<u32> {
        let area = &mut self.areas[usize::from(area)];
        let whole = area.counts.len() / LEAF_PAGES;
        let is_empty = |&c: &usize| area.claims[c].is_none() && area.cluster_used[c] == 0;
        let cluster = (0..whole).find(is_empty)?;
        area.claims[cluster] = Some(who);
        Some(cluster as u32)
    }

    /// A further area, or one in the place of another; `at` is its place in the order.
    pub fn set_area(&mut self, area: usize, slots: u32, at: usize) {
        if area == self.areas.len() {
            self.areas.push(Area::new(slots));
        } else {
            self.areas[area] = Area::new(slots);
        }
        self.bad_sectors
            .retain(|slot| usize::from(slot.area) != area);
        self.order.insert(at.min(self.order.len()), area as u8);
    }

    /// `area` gets no more pages.
    pub fn begin_drain(&mut self, area: u8) {
        self.order.retain(|other| *other != area);
        self.draining = Some(area);
    }

    /// Another user takes all free slots (of one unclaimed cluster, and beyond).
    pub fn foreign_fill(&mut self) {
        for area in 0..self.areas.len() {
            for cluster in 0..self.areas[area].claims.len() {
                if self.areas[area].claims[cluster].is_some() {
                    continue;
                }
                self.areas[area].claims[cluster] = Some(FOREIGN);
                let slots = self.areas[area].counts.len();
                let first = cluster * LEAF_PAGES;
                for index in first..slots.min(first + LEAF_PAGES) {
                    if self.areas[area].counts[index] == 0 {
                        self.get(Slot {
                            area: area as u8,
                            index: index as u32,
                        });
                    }
                }
            }
        }
    }

    /// The other user is gone.
    pub fn foreign_free(&mut self, held: &dyn Fn(Slot) -> u16) {
        for area in 0..self.areas.len() {
            for cluster in 0..self.areas[area].claims.len() {
                if self.areas[area].claims[cluster] != Some(FOREIGN) {
                    continue;
                }
                self.areas[area].claims[cluster] = None;
                let slots = self.areas[area].counts.len();
                let first = cluster * LEAF_PAGES;
                for index in first..slots.min(first + LEAF_PAGES) {
                    let slot = Slot {
                        area: area as u8,
                        index: index as u32,
                    };
                    if self.count(slot) > held(slot) {
                        self.put(slot);
                    }
                }
            }
        }
    }
}
