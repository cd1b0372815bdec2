//! Which slots the next pages are written to.
//!
//! Each process allocates from clusters of 512 slots that it alone has claimed, so that no lock is
//! shared, what is evicted together lies together, and one write covers many pages. A cluster of our
//! own that has emptied comes first, then one that nobody uses, then the emptiest of ours.

use alloc::vec::Vec;

use crate::units::{LEAF_PAGES, Slot};
use crate::world::SwapMap;

/// Failed writes after which an area gets no more pages.
const WRITE_FAILURES: u32 = 16;

#[derive(Default)]
struct Area {
    /// Cluster in use and the slot in it where the search goes on.
    current: Option<(u32, u32)>,
    /// All clusters that we claimed.
    claimed: Vec<u32>,
    failures: u32,
    /// The file system has no room for more than what was written already.
    no_room: bool,
}

/// The slot allocator of one process.
#[derive(Default)]
pub struct Slots {
    areas: Vec<Area>,
}

impl Slots {
    /// Up to `max` free slots that follow each other, taken; `None` when every area is full.
    pub fn take(&mut self, map: &mut impl SwapMap, max: u32) -> Option<(Slot, u32)> {
        self.areas.resize_with(map.areas().into(), Area::default);
        (0..map.areas()).find_map(|area| self.take_from(map, area, max))
    }

    fn take_from(&mut self, map: &mut impl SwapMap, area: u8, max: u32) -> Option<(Slot, u32)> {
        let state = &mut self.areas[usize::from(area)];
        if state.failures >= WRITE_FAILURES {
            return None;
        }
        loop {
            let Some((cluster, next)) = state.current else {
                state.current = Some((state.pick(map, area)?, 0));
                continue;
            };
            let end = ((cluster + 1) * LEAF_PAGES as u32).min(map.slots(area));
            let base = cluster * LEAF_PAGES as u32;
            let free = |index: u32| map.count(Slot { area, index }) == 0;
            let Some(first) = (base + next..end).find(|&index| free(index)) else {
                state.current = None;
                continue;
            };
            let run = (first..end.min(first + max))
                .take_while(|&index| free(index))
                .count() as u32;
            for index in first..first + run {
                map.get(Slot { area, index });
            }
            state.current = Some((cluster, first + run - base));
            return Some((Slot { area, index: first }, run));
        }
    }

    /// No more than what was written fits: the file system is full.
    pub fn no_room(&mut self, area: u8) {
        if let Some(state) = self.areas.get_mut(usize::from(area)) {
            state.no_room = true;
        }
    }

    /// A write to `area` failed.
    pub fn write_failed(&mut self, area: u8) {
        if let Some(state) = self.areas.get_mut(usize::from(area)) {
            state.failures += 1;
        }
    }

    /// Let other processes have the clusters that have emptied.
    pub fn give_back(&mut self, map: &mut impl SwapMap) {
        for (area, state) in (0u8..).zip(&mut self.areas) {
            let current = state.current.map(|(cluster, _)| cluster);
            state.claimed.retain(|&cluster| {
                let keep = Some(cluster) == current || map.cluster_used(area, cluster) > 0;
                if !keep {
                    map.release_cluster(area, cluster);
                }
                keep
            });
        }
    }
}

impl Area {
    fn pick(&mut self, map: &mut impl SwapMap, area: u8) -> Option<u32> {
        let used = |cluster: &u32| map.cluster_used(area, *cluster);
        if let Some(&empty) = self.claimed.iter().find(|c| used(c) == 0) {
            return Some(empty);
        }
        if !self.no_room
            && let Some(cluster) = map.claim_cluster(area)
        {
            self.claimed.push(cluster);
            return Some(cluster);
        }
        let room = |c: &&u32| {
            let slots = (map.slots(area) - **c * LEAF_PAGES as u32).min(LEAF_PAGES as u32);
            map.cluster_used(area, **c) < slots
        };
        self.claimed
            .iter()
            .filter(room)
            .min_by_key(|c| map.cluster_used(area, **c))
            .copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    /// Areas as a plain table; clusters belong to us or to others.
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

    impl SwapMap for Map {
        fn areas(&self) -> u8 {
            self.counts.len() as u8
        }
        fn slots(&self, area: u8) -> u32 {
            self.counts[usize::from(area)].len() as u32
        }
        fn used(&self, area: u8) -> u64 {
            let used = |n: &&u32| **n > 0;
            self.counts[usize::from(area)].iter().filter(used).count() as u64
        }
        fn claim_cluster(&mut self, area: u8) -> Option<u32> {
            let ours = &mut self.ours[usize::from(area)];
            let at = ours.iter().position(Option::is_none)?;
            ours[at] = Some(true);
            Some(at as u32)
        }
        fn release_cluster(&mut self, area: u8, cluster: u32) {
            let ours = &mut self.ours[usize::from(area)][cluster as usize];
            assert_eq!(ours.take(), Some(true));
        }
        fn cluster_used(&self, area: u8, cluster: u32) -> u32 {
            let counts = &self.counts[usize::from(area)];
            let first = cluster as usize * LEAF_PAGES;
            let last = counts.len().min(first + LEAF_PAGES);
            counts[first..last].iter().filter(|n| **n > 0).count() as u32
        }
        fn count(&self, slot: Slot) -> u32 {
            self.counts[usize::from(slot.area)][slot.index as usize]
        }
        fn get(&mut self, slot: Slot) {
            assert_eq!(self.count(slot), 0, "{slot:?} is in use");
            let ours = self.ours[usize::from(slot.area)][slot.cluster() as usize];
            assert_eq!(ours, Some(true), "{slot:?} is not ours to take");
            self.counts[usize::from(slot.area)][slot.index as usize] = 1;
        }
        fn put(&mut self, slot: Slot) {
            self.counts[usize::from(slot.area)][slot.index as usize] -= 1;
        }
        fn share(&mut self, slot: Slot) {
            self.counts[usize::from(slot.area)][slot.index as usize] += 1;
        }
        fn digest(&self, _: Slot) -> u64 {
            0
        }
        fn set_digest(&mut self, _: Slot, _: u64) {}
    }

    /// Takes and puts by a small generator: what is taken was free and follows on, lies in the
    /// first area that has room, and `None` means that nothing of ours and no cluster is free.
    #[test]
    fn every_free_slot_can_be_taken_and_none_twice() {
        for seed in 1..40u64 {
            let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut below = |n: u64| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state % n
            };
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
        map.put(Slot { area: 0, index: 9 });
        let back = slots.take(&mut map, 4);
        assert_eq!(back, Some((Slot { area: 0, index: 9 }, 1)));
        for _ in 0..WRITE_FAILURES {
            slots.write_failed(1);
        }
        assert_eq!(slots.take(&mut map, 1), None);
    }
}
