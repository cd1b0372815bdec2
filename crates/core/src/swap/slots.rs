//! Which slots the next pages are written to.
//!
//! Each process allocates from one cluster of 512 slots at a time, which only it has claimed. Processes therefore share
//! no lock, pages that are evicted together are adjacent, and one write covers many pages. A used-up cluster is
//! released at once: the next process that needs room finds the slots that have become free in it. No process starves
//! beside another's half-empty clusters.

use alloc::vec::Vec;

use crate::units::{LEAF_PAGES, Slot};
use crate::world::{IoResult, SwapMap};

/// Failed writes after which an area gets no more pages.
const WRITE_FAILURES: u32 = 16;
/// The system's error number for "no space left on device".
const ENOSPC: i32 = 28;
/// The system's error number for "connection reset": the server of the area went away in the middle of the write, which it may
/// still carry out.
const ECONNRESET: i32 = 104;
/// Requests that skip an area whose file system had no room, or whose server went away.
const REST: u32 = 16;

/// Pages that were read keep their slots while less than this many quarters of the area are used: two, and three where a
/// second write means compression, which costs more than the room.
const KEPT_QUARTERS: u64 = 2;
const KEPT_QUARTERS_COMPRESSED: u64 = 3;

/// Whether pages that were read from `area` keep their slots, to save a later write.
pub(crate) fn keeps(map: &impl SwapMap, area: u8) -> bool {
    let quarters = match map.compresses(area) {
        true => KEPT_QUARTERS_COMPRESSED,
        false => KEPT_QUARTERS,
    };
    map.used(area) * 4 < u64::from(map.slots(area)) * quarters
}

#[derive(Default)]
struct Area {
    /// The cluster in use and the slot in it where the search continues.
    current: Option<(u32, u32)>,
    failures: u32,
    /// Requests that still skip the area.
    rest: u32,
    /// It is being emptied: no slot is taken.
    closed: bool,
}

impl Area {
    fn is_usable(&self) -> bool {
        !self.closed && self.failures < WRITE_FAILURES
    }
}

/// The slot allocator of one process.
#[derive(Default)]
pub struct Slots {
    areas: Vec<Area>,
    /// The last try found no free slot.
    full: bool,
    /// Slots that failed. They keep their reference, and no process uses them again.
    bad: Vec<Slot>,
}

impl Slots {
    /// Take up to `max` consecutive free slots; `None` when every area is full.
    pub fn take(&mut self, map: &mut impl SwapMap, max: u32) -> Option<(Slot, u32)> {
        self.take_where(map, max, |_, _| true)
    }

    /// As [`Slots::take`], for pages that do not compress: from an area that does not compress, if one has room.
    pub fn take_uncompressed(&mut self, map: &mut impl SwapMap, max: u32) -> Option<(Slot, u32)> {
        self.take_where(map, max, |map, area| !map.compresses(area))
            .or_else(|| self.take(map, max))
    }

    /// Whether an area that does not compress has a slot for us. Slots may be free there but lie in clusters that other
    /// processes have claimed; the cluster of a slot that is found is ours.
    pub fn has_uncompressed(&mut self, map: &mut impl SwapMap) -> bool {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            if !map.compresses(area) && self.has_in(map, area) {
                return true;
            }
            n += 1;
        }
        false
    }

    fn has_in(&mut self, map: &mut impl SwapMap, area: u8) -> bool {
        let state = self.area(area);
        if !state.is_usable() || state.rest > 0 {
            return false;
        }
        loop {
            let (cluster, next) = match state.current {
                Some(current) => current,
                None => match map.claim_cluster(area) {
                    Some(cluster) => (cluster, 0),
                    None => return false,
                },
            };
            let base = cluster * LEAF_PAGES as u32;
            let end = (base + LEAF_PAGES as u32).min(map.slots(area));
            if (base + next..end).any(|index| map.count(Slot { area, index }) == 0) {
                state.current = Some((cluster, next));
                return true;
            }
            map.release_cluster(area, cluster);
            state.current = None;
        }
    }

    fn take_where<M: SwapMap>(
        &mut self,
        map: &mut M,
        max: u32,
        fits: impl Fn(&M, u8) -> bool,
    ) -> Option<(Slot, u32)> {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            let fits = fits(map, area);
            let taken = fits.then(|| self.take_from(map, area, max)).flatten();
            if taken.is_some() {
                return taken;
            }
            n += 1;
        }
        None
    }

    /// Take a whole slot cluster: returns the first of its 512 slots. `None` when no area has an empty one.
    pub fn take_cluster<M: SwapMap>(&mut self, map: &mut M) -> Option<Slot> {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            n += 1;
            let state = self.area(area);
            if !state.is_usable() || state.rest > 0 {
                state.rest = state.rest.saturating_sub(1);
                continue;
            }
            if let Some(cluster) = map.claim_empty_cluster(area) {
                let index = cluster * LEAF_PAGES as u32;
                let first = Slot { area, index };
                map.get(first, LEAF_PAGES as u32);
                map.release_cluster(area, cluster);
                return Some(first);
            }
        }
        None
    }

    fn area(&mut self, area: u8) -> &mut Area {
        let index = usize::from(area);
        if self.areas.len() <= index {
            self.areas.resize_with(index + 1, Area::default);
        }
        &mut self.areas[index]
    }

    /// Free slots of all open areas, for any process.
    pub fn room(&self, map: &impl SwapMap) -> u64 {
        let areas = (0..).map_while(|n| map.nth(n));
        areas
            .filter(|&area| {
                let state = self.areas.get(usize::from(area));
                state.is_none_or(Area::is_usable)
            })
            .map(|area| u64::from(map.slots(area)).saturating_sub(map.used(area)))
            .sum()
    }

    /// Take nothing from `area` any more.
    pub fn close(&mut self, map: &mut impl SwapMap, area: u8) {
        let state = self.area(area);
        state.closed = true;
        if let Some((cluster, _)) = state.current.take() {
            map.release_cluster(area, cluster);
        }
    }

    /// Take from `area` again.
    pub fn open(&mut self, area: u8) {
        self.area(area).closed = false;
        self.full = false;
    }

    /// `area` is gone; another one may get its number.
    pub fn forget(&mut self, area: u8) {
        *self.area(area) = Area::default();
    }

    fn take_from(&mut self, map: &mut impl SwapMap, area: u8, max: u32) -> Option<(Slot, u32)> {
        let state = self.area(area);
        if !state.is_usable() {
            return None;
        }
        if state.rest > 0 {
            state.rest -= 1;
            return None;
        }
        loop {
            let (cluster, next) = match state.current {
                Some(current) => current,
                None => (map.claim_cluster(area)?, 0),
            };
            let end = ((cluster + 1) * LEAF_PAGES as u32).min(map.slots(area));
            let base = cluster * LEAF_PAGES as u32;
            let free = |index: u32| map.count(Slot { area, index }) == 0;
            let Some(first) = (base + next..end).find(|&index| free(index)) else {
                map.release_cluster(area, cluster);
                state.current = None;
                continue;
            };
            let run = (first..end.min(first + max))
                .take_while(|&index| free(index))
                .count() as u32;
            state.current = Some((cluster, first + run - base));
            let first = Slot { area, index: first };
            map.get(first, run);
            return Some((first, run));
        }
    }

    /// Drop our reference to a slot, if there is one.
    pub fn put(&mut self, map: &mut impl SwapMap, slot: Option<Slot>) {
        if let Some(slot) = slot.filter(|slot| !slot.is_file()) {
            map.put(slot);
            self.full = false;
        }
    }

    /// At the last write no area accepted a page, and no slot is known to have become free since.
    pub fn are_full(&self) -> bool {
        self.full
    }

    /// No area accepted a page. Returns whether that is new.
    pub fn set_full(&mut self) -> bool {
        !core::mem::replace(&mut self.full, true)
    }

    /// The write of a page to `slot` was not accepted. If the slot failed, it is kept from reuse.
    pub fn on_not_written(&mut self, map: &mut impl SwapMap, slot: Slot, result: IoResult) {
        match result {
            IoResult::Failed(error) if error != ENOSPC => self.keep_bad(slot),
            _ => self.put(map, Some(slot)),
        }
    }

    /// A write to `area` has ended, and its slots are kept or put. `were_full`: no slot was free before.
    pub fn on_write_end(&mut self, area: u8, result: IoResult, were_full: bool) {
        match result {
            // Other processes may have made room.
            IoResult::Ok => self.full = false,
            IoResult::Refused(refusal) => {
                // The slots that were released are no room.
                self.full = were_full;
                if refusal.full {
                    self.no_room(area);
                }
            }
            // Neither says that the area is bad. A server is used again when it is back.
            IoResult::Failed(ENOSPC | ECONNRESET) => self.no_room(area),
            IoResult::Failed(_) => self.write_failed(area),
        }
    }

    /// Keep a slot that failed from reuse.
    pub fn keep_bad(&mut self, slot: Slot) {
        if !slot.is_file() {
            self.bad.push(slot);
        }
    }

    /// No slot of `area` will be used any more: drop the references to those that failed.
    pub fn put_bad(&mut self, map: &mut impl SwapMap, area: u8) {
        let on_area = |slot: &mut Slot| slot.area == area;
        for slot in self.bad.extract_if(.., on_area) {
            map.put(slot);
        }
    }

    /// The area's file system is full, or its server is away: the area gets no pages for a while.
    pub fn no_room(&mut self, area: u8) {
        if let Some(state) = self.areas.get_mut(usize::from(area)) {
            state.rest = REST;
        }
    }

    /// A write to `area` failed.
    pub fn write_failed(&mut self, area: u8) {
        if let Some(state) = self.areas.get_mut(usize::from(area)) {
            state.failures += 1;
        }
    }

    /// Release the clusters that we claimed and have not used, for other processes.
    pub fn give_back(&mut self, map: &mut impl SwapMap) {
        for (area, state) in (0u8..).zip(&mut self.areas) {
            if let Some((cluster, _)) = state.current.take() {
                map.release_cluster(area, cluster);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Areas as a plain table; clusters belong to us or to other processes.
    struct Map {
        counts: Vec<Vec<u32>>,
        ours: Vec<Vec<Option<bool>>>,
    }

    impl Map {
        fn new(areas: &[u32]) -> Self {
            let clusters = |n: &u32| vec![None; n.div_ceil(LEAF_PAGES as u32) as usize];
            Map {
                counts: areas.iter().map(|&n| vec![0; n as usize]).collect(),
                ours: areas.iter().map(clusters).collect(),
            }
        }
    }

    impl Map {
        fn cluster_used(&self, area: u8, cluster: u32) -> u32 {
            let counts = &self.counts[usize::from(area)];
            let first = cluster as usize * LEAF_PAGES;
            let last = counts.len().min(first + LEAF_PAGES);
            counts[first..last].iter().filter(|n| **n > 0).count() as u32
        }
    }

    impl SwapMap for Map {
        fn nth(&self, n: u8) -> Option<u8> {
            (usize::from(n) < self.counts.len()).then_some(n)
        }
        fn slots(&self, area: u8) -> u32 {
            self.counts[usize::from(area)].len() as u32
        }
        fn used(&self, area: u8) -> u64 {
            let used = |n: &&u32| **n > 0;
            self.counts[usize::from(area)].iter().filter(used).count() as u64
        }
        fn claim_cluster(&mut self, area: u8) -> Option<u32> {
            let clusters = self.ours[usize::from(area)].len() as u32;
            let room = |c: &u32| {
                let slots = self.slots(area) - c * LEAF_PAGES as u32;
                self.cluster_used(area, *c) < slots.min(LEAF_PAGES as u32)
            };
            let free = |c: &u32| self.ours[usize::from(area)][*c as usize].is_none();
            let cluster = (0..clusters).filter(free).filter(room);
            let cluster = cluster.min_by_key(|&c| self.cluster_used(area, c) > 0)?;
            self.ours[usize::from(area)][cluster as usize] = Some(true);
            Some(cluster)
        }
        fn release_cluster(&mut self, area: u8, cluster: u32) {
            let ours = &mut self.ours[usize::from(area)][cluster as usize];
            assert_eq!(ours.take(), Some(true));
        }
        fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
            let whole = 0..self.slots(area) / LEAF_PAGES as u32;
            let free = |c: &u32| self.ours[usize::from(area)][*c as usize].is_none();
            let cluster = whole
                .filter(free)
                .find(|&c| self.cluster_used(area, c) == 0)?;
            self.ours[usize::from(area)][cluster as usize] = Some(true);
            Some(cluster)
        }
        fn count(&self, slot: Slot) -> u32 {
            self.counts[usize::from(slot.area)][slot.index as usize]
        }
        fn get(&mut self, first: Slot, n: u32) {
            for slot in (0..n).map(|i| first.plus(i)) {
                assert_eq!(self.count(slot), 0, "{slot:?} is in use");
                let ours = self.ours[usize::from(slot.area)][slot.cluster() as usize];
                assert_eq!(ours, Some(true), "{slot:?} is not ours to take");
                self.counts[usize::from(slot.area)][slot.index as usize] = 1;
            }
        }
        fn put(&mut self, slot: Slot) {
            self.counts[usize::from(slot.area)][slot.index as usize] -= 1;
        }
        fn share(&mut self, slots: impl Iterator<Item = Slot>) {
            for slot in slots {
                self.counts[usize::from(slot.area)][slot.index as usize] += 1;
            }
        }
        fn digest(&self, _: Slot) -> u64 {
            0
        }
        fn set_digest(&mut self, _: Slot, _: u64) {}
    }

    /// A small generator: each call returns a number below its argument.
    fn random(seed: u64) -> impl FnMut(u64) -> u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        move |n| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        }
    }

    /// Random takes and puts. Slots that are taken were free and are consecutive, in the first area that
    /// has room; `None` means that neither a slot of ours nor a cluster is free.
    #[test]
    fn every_free_slot_can_be_taken_and_none_twice() {
        for seed in 1..40u64 {
            let mut below = random(seed);
            let mut map = Map::new(&[300, 1500, 40]);
            let mut slots = Slots::default();
            let mut taken: Vec<Slot> = Vec::new();
            for _ in 0..2_000 {
                match below(8) {
                    0..4 => {
                        let max = 1 + below(64) as u32;
                        let Some((first, n)) = slots.take(&mut map, max) else {
                            assert_eq!(taken.len(), 300 + 1500 + 40, "room was left");
                            continue;
                        };
                        assert!(n >= 1 && n <= max);
                        for area in 0..first.area {
                            assert_eq!(map.used(area), map.slots(area).into(), "priority");
                        }
                        assert_eq!(first.cluster(), first.plus(n - 1).cluster());
                        taken.extend((0..n).map(|i| first.plus(i)));
                    }
                    4..7 => {
                        for _ in 0..below(90).min(taken.len() as u64) {
                            let at = below(taken.len() as u64) as usize;
                            map.put(taken.swap_remove(at));
                        }
                    }
                    _ => slots.give_back(&mut map),
                }
                let used: u64 = (0..3).map(|area| map.used(area)).sum();
                assert_eq!(used, taken.len() as u64);
            }
        }
    }

    /// Whole clusters between single slots: each is free before and claimed by no process after, and `None` means that
    /// no cluster is empty except perhaps the one in use.
    #[test]
    fn whole_clusters_are_taken_as_long_as_there_are_empty_ones() {
        for seed in 1..20u64 {
            let mut below = random(seed);
            let mut map = Map::new(&[700, 4096]);
            let mut slots = Slots::default();
            let mut units: Vec<Slot> = Vec::new();
            let mut singles: Vec<Slot> = Vec::new();
            for _ in 0..300 {
                match below(4) {
                    0 => {
                        let Some((first, n)) = slots.take(&mut map, 1 + below(300) as u32) else {
                            continue;
                        };
                        singles.extend((0..n).map(|i| first.plus(i)));
                    }
                    1 => {
                        let Some(first) = slots.take_cluster(&mut map) else {
                            let empty = |area: u8| {
                                let whole = map.slots(area) / LEAF_PAGES as u32;
                                (0..whole)
                                    .filter(|&c| map.cluster_used(area, c) == 0)
                                    .filter(|&c| map.ours[usize::from(area)][c as usize].is_none())
                                    .count()
                            };
                            assert_eq!(empty(0) + empty(1), 0);
                            continue;
                        };
                        assert_eq!(first.index % LEAF_PAGES as u32, 0);
                        let cluster = first.cluster() as usize;
                        assert_eq!(map.ours[usize::from(first.area)][cluster], None);
                        assert_eq!(map.cluster_used(first.area, first.cluster()), 512);
                        units.push(first);
                    }
                    2 if !units.is_empty() => {
                        let first = units.swap_remove(below(units.len() as u64) as usize);
                        // A part of it at first, as a discard in a huge page does.
                        for i in (0..LEAF_PAGES as u32).rev() {
                            map.put(first.plus(i));
                        }
                    }
                    _ => {
                        for slot in singles.drain(..singles.len() / 2) {
                            map.put(slot);
                        }
                    }
                }
                let used: u64 = (0..2).map(|area| map.used(area)).sum();
                assert_eq!(used, (512 * units.len() + singles.len()) as u64);
            }
        }
    }

    #[test]
    fn a_closed_area_is_not_taken_from_until_it_is_opened() {
        let mut map = Map::new(&[1024, 1024]);
        let mut slots = Slots::default();
        assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(0));
        slots.close(&mut map, 0);
        assert_eq!(map.ours[0], [None, None], "its cluster is given back");
        assert_eq!(slots.room(&map), 1024);
        assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(1));
        slots.open(0);
        assert_eq!(slots.room(&map), 1014 + 1014);
        assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(0));
    }

    #[test]
    fn an_area_that_fails_or_has_no_room_is_left_alone() {
        let mut map = Map::new(&[2048, 2048]);
        let mut slots = Slots::default();
        assert_eq!(
            slots.take(&mut map, 512).map(|(s, n)| (s.area, n)),
            Some((0, 512))
        );
        slots.no_room(0);
        assert_eq!(slots.take(&mut map, 1).map(|(s, _)| s.area), Some(1));
        for _ in 0..REST {
            slots.take(&mut map, 1);
        }
        assert_eq!(slots.take(&mut map, 1).map(|(s, _)| s.area), Some(0));
        // A server that went away is no bad area, however many writes it had; but their slots are not used again.
        for _ in 0..2 * WRITE_FAILURES {
            let lost = IoResult::Failed(ECONNRESET);
            let taken = (0..=REST).find_map(|_| slots.take(&mut map, 1));
            let (slot, _) = taken.expect("an area that is used again");
            slots.on_not_written(&mut map, slot, lost);
            slots.on_write_end(slot.area, lost, false);
            assert!(slots.bad.contains(&slot) && map.count(slot) == 1);
        }
        for _ in 0..WRITE_FAILURES {
            slots.write_failed(1);
            slots.write_failed(0);
        }
        assert_eq!(slots.take(&mut map, 1), None);
    }
}
