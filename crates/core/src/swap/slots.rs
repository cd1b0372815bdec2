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
