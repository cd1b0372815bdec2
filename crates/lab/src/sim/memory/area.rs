//! The swap area with its map, the limit, and the core's other queries.

use foreswap_core::units::{Frame, LEAF_PAGES, Nanos, Slot, Vpn};
use foreswap_core::world::{Clock, IoId, Limit, Notice, Store, SwapMap, World};

use super::{GARBAGE, HugeSwap, Memory};

impl Store for Memory {
    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, false)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, true)
    }
}

impl Memory {
    /// Claim the next suitable cluster, judged by its used slots and all its slots.
    fn claim_where(&mut self, will_do: impl Fn(usize, usize) -> bool) -> Option<u32> {
        let area = &mut self.area;
        let count = area.claimed.len();
        let cluster = (0..count).map(|n| (area.next + n) % count).find(|&c| {
            let slots = (area.counts.len() - c * LEAF_PAGES).min(LEAF_PAGES);
            !area.claimed[c] && will_do(area.cluster_used[c].into(), slots)
        })?;
        area.claimed[cluster] = true;
        area.next = cluster;
        Some(cluster as u32)
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
        let empty = self.claim_where(|used, _| used == 0);
        empty.or_else(|| self.claim_where(|used, slots| used < slots))
    }

    fn claim_empty_cluster(&mut self, _: u8) -> Option<u32> {
        self.claim_where(|used, slots| used == 0 && slots == LEAF_PAGES)
    }

    fn release_cluster(&mut self, _: u8, cluster: u32) {
        self.area.claimed[cluster as usize] = false;
    }

    fn count(&self, slot: Slot) -> u32 {
        self.area.counts[slot.index as usize].into()
    }

    fn get(&mut self, first: Slot, n: u32) {
        let whole = self.huge_swap == HugeSwap::Whole;
        for slot in (0..n).map(|i| first.plus(i)) {
            self.taken.add(slot.index, whole);
            self.area.counts[slot.index as usize] += 1;
        }
        self.area.cluster_used[first.cluster() as usize] += n as u16;
        self.area.used += u64::from(n);
    }

    fn put(&mut self, slot: Slot) {
        let whole = self.huge_swap == HugeSwap::Whole;
        self.returned.add(slot.index, whole);
        let count = &mut self.area.counts[slot.index as usize];
        debug_assert!(*count > 0, "{slot:?} is put more than it was taken");
        *count -= 1;
        if *count == 0 {
            self.area.cluster_used[slot.cluster() as usize] -= 1;
            self.area.used -= 1;
            self.area.content[slot.index as usize] = GARBAGE;
        }
    }

    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.area.counts[slot.index as usize] += 1;
        }
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
    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    fn window(&mut self, pages: u64) {
        *self.windows.entry(pages).or_default() += 1;
        let (base, faulting) = (self.base, self.faulting);
        // A kernel that reads ahead first puts its CPU's pages on the lists.
        if let (Some(page), Some(lru)) = (faulting.filter(|_| pages > 1), &mut self.lru) {
            lru.drain((page.0 - base) as usize);
        }
    }

    fn served(&mut self, _: Nanos) {}

    fn share_disk(&mut self, _: bool) -> bool {
        false
    }

    fn returns(&mut self, _: Vpn) {}
}

impl Clock for Memory {
    fn now(&self) -> Nanos {
        self.now
    }
}
