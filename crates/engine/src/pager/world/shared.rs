//! The resources that the processes of a run share, as the core uses them: slots (see [`ProcessMap`]) and the limit.
//!
//! [`ProcessMap`]: crate::ledger::ProcessMap

use foreswap_core::units::Slot;
use foreswap_core::world::{Limit, SwapMap};

use super::{Linux, MOST_WANTED, SLACK};

impl SwapMap for Linux {
    fn nth(&self, n: u8) -> Option<u8> {
        self.map.nth(n)
    }

    fn slots(&self, area: u8) -> u32 {
        self.map.slots(area)
    }

    fn used(&self, area: u8) -> u64 {
        self.map.used(area)
    }

    fn compresses(&self, area: u8) -> bool {
        self.map.compresses(area)
    }

    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        self.map.claim_cluster(area)
    }

    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        self.map.claim_empty_cluster(area)
    }

    fn release_cluster(&mut self, area: u8, cluster: u32) {
        self.map.release_cluster(area, cluster);
    }

    fn count(&self, slot: Slot) -> u32 {
        self.map.count(slot)
    }

    fn get(&mut self, slot: Slot) {
        self.map.get(slot);
    }

    fn get_all(&mut self, first: Slot, n: u32) {
        self.map.get_all(first, n);
    }

    fn put(&mut self, slot: Slot) {
        self.map.put(slot);
    }

    fn share(&mut self, slot: Slot) {
        self.map.share(slot);
    }

    fn digest(&self, slot: Slot) -> u64 {
        self.map.digest(slot)
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.map.set_digest(slot, digest);
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
        if !self.credit.takes(n - paid) {
            self.ledger.charge_anyway(self.me, n - paid);
        }
    }

    fn uncharge(&mut self, n: u64) {
        let left = match self.owes() {
            true => {
                let paid = self.ledger.process_charged(self.me);
                self.credit.forgives(n, paid)
            }
            false => n,
        };
        // A debt for pages that are gone counts as paid.
        self.ledger.pays(self.me, n - left);
        self.ledger.uncharge(self.me, left);
    }

    fn excess(&self) -> u64 {
        let mine = self.ledger.process_charged(self.me);
        let found_unnoticed = self
            .shrink_to
            .map_or(0, |target| mine.saturating_sub(target));
        let (limit, charged) = (self.ledger.limit_pages(), self.ledger.charged_pages());
        let wanted = self
            .wanted_by_others
            .saturating_sub(limit.saturating_sub(charged));
        let owed = self.credit.due();
        let short = (charged + owed).saturating_sub(limit) + wanted;
        found_unnoticed.max(short.min((mine + owed).saturating_sub(self.fair_share())))
    }
}

impl Linux {
    /// Pages per process when all need more.
    pub(super) fn fair_share(&self) -> u64 {
        self.ledger.limit_pages() / u64::from(self.ledger.live().max(1))
    }

    /// Pages that this process can count on: its charge or its share of the limit, the larger of the two.
    pub fn share(&self) -> u64 {
        let has = self.ledger.process_charged(self.me);
        has.max(self.fair_share()).min(self.ledger.limit_pages())
    }

    /// A process that has its share leaves room to the others.
    fn kept_for_others(&self) -> u64 {
        let has_share =
            || self.ledger.process_charged(self.me) >= self.fair_share().saturating_sub(SLACK);
        if self.wanted_by_others > 0 && has_share() {
            self.wanted_by_others
        } else {
            0
        }
    }

    /// Report how many pages this process lacks of its share, if it is `needy`; `least` is the minimum to report.
    pub fn ask_for_share(&mut self, needy: bool, least: u64) {
        let missing = self
            .fair_share()
            .saturating_sub(self.ledger.process_charged(self.me));
        let much = self.fair_share() / 8;
        let wanted = if needy && missing > much && self.ledger.live() > 1 {
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
