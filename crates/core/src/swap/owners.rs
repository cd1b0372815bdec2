//! The page of each slot: the reverse map for readahead by slot.
//!
//! A record is a hint. It is made when a page gets its slot and when a page with a slot moves, and never removed. Its
//! reader checks the page table, so a stale record costs a page of readahead and nothing else. Only that policy pays
//! for the memory: 8 bytes per slot, in clusters that exist once one of their slots was ours.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::units::{LEAF_PAGES, Slot, Vpn};

const NOBODY: Vpn = Vpn(u64::MAX);

/// The page that was last known in each slot.
#[derive(Default)]
pub struct Owners {
    /// By area and cluster.
    clusters: BTreeMap<(u8, u32), Box<[Vpn; LEAF_PAGES]>>,
    /// A policy asks for them.
    enabled: bool,
}

impl Owners {
    /// No page is in a slot. `enabled`: a policy asks for the page of each slot.
    pub fn new(enabled: bool) -> Self {
        Owners {
            enabled,
            ..Owners::default()
        }
    }

    /// A policy asks for the page of each slot from now on.
    pub fn enable(&mut self) {
        self.enabled = true;
    }

    /// `page` is in `slot` from now on, or will be when a write is done.
    pub fn note(&mut self, slot: Slot, page: Vpn) {
        if !self.enabled {
            return;
        }
        let cluster = self
            .clusters
            .entry((slot.area, slot.cluster()))
            .or_insert_with(|| Box::new([NOBODY; LEAF_PAGES]));
        cluster[slot.index as usize % LEAF_PAGES] = page;
    }

    /// The page that was last known in `slot`.
    pub fn get(&self, slot: Slot) -> Option<Vpn> {
        let cluster = self.clusters.get(&(slot.area, slot.cluster()))?;
        let page = cluster[slot.index as usize % LEAF_PAGES];
        (page != NOBODY).then_some(page)
    }

    /// Bytes of memory that the records take.
    #[cfg(test)]
    fn bytes(&self) -> u64 {
        self.clusters.len() as u64 * (size_of::<[Vpn; LEAF_PAGES]>() as u64 + 24)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_slot_of_each_area_has_its_own_record() {
        let mut owners = Owners::new(true);
        let slot = |area, index| Slot { area, index };
        let all = [
            slot(0, 0),
            slot(0, 511),
            slot(0, 512),
            slot(1, 0),
            slot(15, u32::MAX),
        ];
        for (n, &slot) in (0..).zip(&all) {
            assert_eq!(owners.get(slot), None);
            owners.note(slot, Vpn(n));
        }
        for (n, &slot) in (0..).zip(&all) {
            assert_eq!(owners.get(slot), Some(Vpn(n)));
        }
        assert_eq!(owners.get(slot(0, 1)), None);
        assert_eq!(owners.bytes(), 4 * (4096 + 24));
    }
}
