//! What the processes of a run share, as the core asks for it: slots and the limit.

use foreswap_core::units::Slot;
use foreswap_core::world::{Limit, SwapMap};

use super::{Linux, MOST_WANTED, SLACK};
use crate::ledger::{AreaId, ClusterIndex, SlotIndex};

impl SwapMap for Linux {
    fn nth(&self, n: u8) -> Option<u8> {
        self.order.get(usize::from(n)).copied()
    }

    fn slots(&self, area: u8) -> u32 {
        self.ledger.area_slots(AreaId(area))
    }

    fn used(&self, area: u8) -> u64 {
        let used = self.used[usize::from(area)];
        // Memory fills faster than the last look is old.
        let ram = self.ledger.ram(AreaId(area));
        ram.map_or(used, |ram| used.max(ram.filled_slots().into()))
    }

    fn compresses(&self, area: u8) -> bool {
        self.ledger.is_ram(AreaId(area))
    }

    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        self.ledger
            .claim_cluster(AreaId(area), self.me)
            .map(|cluster| cluster.0)
    }

    fn release_cluster(&mut self, area: u8, cluster: u32) {
        self.ledger
            .release_cluster(AreaId(area), self.me, ClusterIndex(cluster));
    }

    fn cluster_used(&self, area: u8, cluster: u32) -> u32 {
        self.ledger
            .cluster_used(AreaId(area), ClusterIndex(cluster))
    }

    fn count(&self, slot: Slot) -> u32 {
        self.ledger
            .slot_count(AreaId(slot.area), SlotIndex(slot.index))
    }

    fn get(&mut self, slot: Slot) {
        let taken = self
            .ledger
            .slot_get(self.me, AreaId(slot.area), SlotIndex(slot.index));
        debug_assert!(taken, "{slot:?} is ours already");
    }

    fn put(&mut self, slot: Slot) {
        self.ledger
            .slot_put(self.me, AreaId(slot.area), SlotIndex(slot.index));
    }

    fn share(&mut self, slot: Slot) {
        if let Some(snapshot) = &self.snapshot {
            let (area, slot) = (AreaId(slot.area), SlotIndex(slot.index));
            self.ledger.share(self.me, snapshot.child(), area, slot);
        }
    }

    fn digest(&self, slot: Slot) -> u64 {
        self.ledger.digest(AreaId(slot.area), SlotIndex(slot.index))
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.ledger
            .set_digest(AreaId(slot.area), SlotIndex(slot.index), digest);
    }
}

impl Limit for Linux {
    fn limit(&self) -> u64 {
        self.ledger.limit_pages()
    }

    fn available(&self) -> u64 {
        let taken = self.ledger.charged_pages() + SLACK + self.kept_for_others();
        self.ledger.limit_pages().saturating_sub(taken)
    }

    fn try_charge(&mut self, n: u64) -> bool {
        n <= self.available() && self.ledger.try_charge(self.me, n)
    }

    fn try_charge_last(&mut self) -> bool {
        self.ledger.try_charge(self.me, 1)
    }

    fn charge_existing(&mut self, n: u64) {
        let paid = n.min(self.prepaid);
        self.prepaid -= paid;
        self.ledger.charge_anyway(self.me, n - paid);
    }

    fn uncharge(&mut self, n: u64) {
        self.ledger.uncharge(self.me, n);
    }

    fn excess(&self) -> u64 {
        let mine = self.ledger.process_charged(self.me);
        let before_fork = self
            .shrink_to
            .map_or(0, |target| mine.saturating_sub(target));
        let (limit, charged) = (self.ledger.limit_pages(), self.ledger.charged_pages());
        let wanted = self
            .wanted_by_others
            .saturating_sub(limit.saturating_sub(charged));
        let short = charged.saturating_sub(limit) + wanted;
        before_fork.max(short.min(mine.saturating_sub(self.fair_share())))
    }
}

impl Linux {
    /// Pages that each process may have when all need more.
    fn fair_share(&self) -> u64 {
        self.ledger.limit_pages() / u64::from(self.ledger.live().max(1))
    }

    /// Who has its share leaves room to those who have not.
    fn kept_for_others(&self) -> u64 {
        let has_share =
            || self.ledger.process_charged(self.me) >= self.fair_share().saturating_sub(SLACK);
        if self.wanted_by_others > 0 && has_share() {
            self.wanted_by_others
        } else {
            0
        }
    }

    /// Tell the others how much is missing to our share, if we are `needy`; `least` if it is our
    /// all.
    pub fn ask_for_share(&mut self, needy: bool, least: u64) {
        let missing = self
            .fair_share()
            .saturating_sub(self.ledger.process_charged(self.me));
        let wanted = if needy && self.ledger.live() > 1 {
            missing.min(MOST_WANTED)
        } else {
            0
        };
        let wanted = wanted.max(least);
        if wanted > 0 || self.short {
            self.ledger.set_wanted(self.me, wanted);
            self.short = wanted > 0;
        }
    }
}
