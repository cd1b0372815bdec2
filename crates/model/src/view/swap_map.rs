//! The swap map of one process: each reference is counted by the machine as well.

use foreswap_core::units::Slot;
use foreswap_core::world::SwapMap;

use super::View;

impl SwapMap for View<'_> {
    fn nth(&self, n: u8) -> Option<u8> {
        self.sys.order.get(usize::from(n)).copied()
    }

    fn slots(&self, area: u8) -> u32 {
        self.sys.areas[usize::from(area)].counts.len() as u32
    }

    fn used(&self, area: u8) -> u64 {
        self.sys.areas[usize::from(area)].used
    }

    fn compresses(&self, area: u8) -> bool {
        self.sys.compresses(area)
    }

    fn tier(&self, area: u8) -> u8 {
        // Each is farther than the one before.
        area
    }

    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        let pid = self.space.pid;
        self.sys.claim(area, pid)
    }

    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        let pid = self.space.pid;
        self.sys.claim_empty(area, pid)
    }

    fn release_cluster(&mut self, area: u8, cluster: u32) {
        let claim = &mut self.sys.areas[usize::from(area)].claims[cluster as usize];
        let ours = Some(self.space.pid);
        assert_eq!(
            claim.take(),
            ours,
            "cluster {cluster} is not ours to release"
        );
    }

    fn count(&self, slot: Slot) -> u32 {
        self.sys.count(slot).into()
    }

    fn get(&mut self, first: Slot, n: u32) {
        assert_ne!(
            self.sys.draining,
            Some(first.area),
            "{first:?} is to be free"
        );
        for slot in (0..n).map(|i| first.plus(i)) {
            assert_eq!(self.sys.count(slot), 0, "{slot:?} is in use");
            let claims = &self.sys.areas[usize::from(slot.area)].claims;
            let ours = Some(self.space.pid);
            assert_eq!(
                claims[slot.cluster() as usize],
                ours,
                "{slot:?} is of no cluster of ours"
            );
            self.sys.get(slot);
            *self.space.refs_mut(slot) += 1;
        }
    }

    fn put(&mut self, slot: Slot) {
        let area = &self.sys.areas[usize::from(slot.area)];
        assert!(
            area.writing[slot.index as usize] == 0 || area.counts[slot.index as usize] > 1,
            "{slot:?} is freed while it is written"
        );
        let refs = self.space.refs_mut(slot);
        assert!(*refs > 0, "{slot:?} is not ours to put");
        *refs -= 1;
        let bad = self.space.bad_mut(slot);
        if *bad > 0 {
            assert_eq!(self.sys.draining, Some(slot.area), "{slot:?} is bad");
            *bad -= 1;
        }
        self.sys.put(slot);
    }

    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            assert!(self.sys.count(slot) > 0, "{slot:?} is shared and free");
            self.sys.get(slot);
            self.space.shares.push(slot);
        }
    }

    fn digest(&self, slot: Slot) -> u64 {
        assert!(
            self.sys.count(slot) > 0,
            "digest of {slot:?}, which is free"
        );
        self.sys.areas[usize::from(slot.area)].digests[slot.index as usize]
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.sys.areas[usize::from(slot.area)].digests[slot.index as usize] = digest;
        if !self.sys.spoiled.is_empty() {
            self.sys.spoiled.remove(&slot);
        }
    }
}
