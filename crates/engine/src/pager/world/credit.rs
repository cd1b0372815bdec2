//! What a forked child has in memory and has not been charged.
//!
//! The pages that a child finds in memory are its parent's as well: they are there once, and the parent is
//! charged for them. Which of them are the child's alone, because it wrote to them or because its parent
//! did, gave them up or ended, the kernel tells for the price of a walk. So:
//!
//! - Each fault of the child that brought no data may have copied a page, and is charged to it.
//! - After a moment the child pays for the rest, as room comes about: it asks the others for its share, and
//!   what it holds above that it moves out. Then nothing that either does can pass the limit.

use foreswap_core::units::Nanos;
use foreswap_core::world::Limit;

use super::{Linux, now};
use crate::sys::host;

/// How long a child may share pages before it has to pay for them.
const GRACE: Nanos = 250_000_000;

/// A child's debt.
#[derive(Debug, Default)]
pub struct Credit {
    /// What is found in memory is put on it.
    open: bool,
    /// Pages that are in memory and not charged.
    owed: u64,
    /// Faults of the child that were charged.
    faults: u64,
    /// When the rest is to be paid.
    until: Nanos,
}

impl Credit {
    /// From now on what is found is not charged.
    pub fn begin(&mut self) {
        self.open = true;
    }

    /// `n` pages were found. Returns whether they are on credit.
    pub(super) fn takes(&mut self, n: u64) -> bool {
        self.owed += if self.open { n } else { 0 };
        self.open
    }

    /// `n` pages have gone. Returns how many of them were paid for, as far as is known.
    pub(super) fn forgives(&mut self, n: u64) -> u64 {
        let unpaid = n.min(self.owed);
        self.owed -= unpaid;
        n - unpaid
    }

    /// Pages that have to be paid for now.
    pub(super) fn due(&self) -> u64 {
        match self.owed > 0 && now() >= self.until {
            true => self.owed,
            false => 0,
        }
    }
}

impl Linux {
    /// All was found: what the child has copied so far is charged, the rest later.
    pub fn begin_to_pay(&mut self) {
        self.credit.open = false;
        self.credit.until = now() + GRACE;
        self.pay();
    }

    /// Some pages are not paid for.
    pub fn owes(&self) -> bool {
        self.credit.owed > 0
    }

    /// And it is time for that.
    pub fn has_to_pay(&self) -> bool {
        self.credit.due() > 0
    }

    /// Charge what the child may have copied since the last time, and of the rest what there is room for.
    pub fn pay(&mut self) {
        if self.credit.owed == 0 {
            return;
        }
        let faults = host::faults(self.pid).unwrap_or(u64::MAX);
        let since = faults - self.credit.faults.min(faults);
        self.credit.faults = faults;
        let copied = since.min(self.credit.owed);
        self.credit.owed -= copied;
        self.ledger.charge_anyway(self.me, copied);
        let payable = self.credit.due().min(self.available());
        if payable > 0 && self.ledger.try_charge(self.me, payable) {
            self.credit.owed -= payable;
        }
    }
}
