//! The resources that the processes of a run share, as the core uses them: slots (see [`ProcessMap`]) and the limit.
//!
//! [`ProcessMap`]: crate::ledger::ProcessMap

use foreswap_core::units::Slot;
use foreswap_core::world::{Limit, Sharing, SwapMap};

use rustix::io::Errno;

use super::Linux;
use super::seat::Seat;
use crate::pager::copies::Protection;
use crate::sys::uffd::Mode;

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

    fn tier(&self, area: u8) -> u8 {
        self.map.tier(area)
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

    fn get(&mut self, first: Slot, n: u32) {
        self.map.get(first, n);
    }

    fn put(&mut self, slot: Slot) {
        self.map.put(slot);
    }

    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        self.map.share(slots);
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
        self.account.available(&self.seat())
    }

    fn try_charge(&mut self, n: u64) -> bool {
        self.account.try_charge(&mut self.seat(), n)
    }

    fn try_charge_last(&mut self) -> bool {
        self.ledger.try_charge(self.me, 1)
    }

    fn charge_existing(&mut self, n: u64) {
        self.account.charge_existing(&mut self.seat(), n);
    }

    fn uncharge(&mut self, n: u64) {
        self.account.uncharge(&mut self.seat(), n);
    }

    fn shares_found(&self) -> bool {
        self.account.debt().is_open()
    }

    fn on_copied(&mut self, n: u64) {
        self.account.on_copied(&mut self.seat(), n);
    }

    fn let_go(&mut self, n: u64) {
        self.account.let_go(&mut self.seat(), n);
    }

    fn sharing(&self) -> Sharing {
        self.account.sharing()
    }

    fn excess(&self) -> u64 {
        self.account.excess(&self.seat())
    }
}

impl Linux {
    /// The ledger as this process sees it.
    pub fn seat(&self) -> Seat {
        Seat {
            ledger: self.ledger,
            me: self.me,
        }
    }

    /// Some pages that forks share are write-protected.
    pub fn is_protected(&self) -> bool {
        matches!(self.protection, Protection::Partial | Protection::Whole)
    }

    /// Pages are write-protected from now on, or no longer.
    pub fn set_protection(&mut self, protection: Protection) {
        self.protection = protection;
        self.was_protected |= self.is_protected();
    }

    /// Register memory of the program, always in the same mode, or the kernel would not join its mappings. It keeps a mode
    /// that memory once had.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mode = match self.was_protected {
            true => Mode::MISSING | Mode::WP,
            false => Mode::MISSING,
        };
        self.program.register(start, len, mode)
    }

    /// Look for copies of shared pages, and pay for them as far as there is room; `shared` pages are shared.
    pub fn pay(&mut self, shared: u64) {
        if self.account.owes() {
            let is_whole = self.protection == Protection::Whole;
            let copied = self.copying.more(is_whole);
            self.account.on_due(copied);
        }
        self.account.pay(&mut self.seat(), shared);
    }

    /// All pages of this forked child were found: the copies so far are charged.
    pub fn begin_to_pay(&mut self, shared: u64) {
        self.account.close_debt();
        self.pay(shared);
        if self.account.owes() {
            if !self.copying.has_parent() {
                // Nobody is charged for the pages. A parent that ends later is noticed by the supervisor.
                self.account.on_due(u64::MAX);
                self.pay(shared);
            }
            // Make the others look at it.
            self.ledger.raise_pressure();
        }
    }
}
