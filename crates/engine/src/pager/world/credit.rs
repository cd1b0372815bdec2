//! What a forked child has in memory and has not been charged.
//!
//! The pages that a child finds in memory are its parent's as well: they are there once, and the parent is
//! charged for them. Which of them are the child's alone, because it wrote to them or because its parent
//! did, gave them up or ended, the kernel tells for the price of a walk. So:
//!
//! - What the child writes to is charged before it is copied (`pager/copies.rs`). Before its engine was there,
//!   or where the kernel cannot protect pages, each fault that brought no data may have copied one.
//! - After a moment the child pays for the rest, as room comes about: it asks the others for its share, and
//!   what it holds above that it moves out. Then nothing that either does can pass the limit.

use foreswap_core::units::Nanos;
use foreswap_core::world::Limit;

use rustix::io::Errno;

use super::{Linux, now};
use crate::sys::host;
use crate::sys::uffd::Mode;

/// How long a child may share pages before it has to pay for them.
const GRACE: Nanos = 250_000_000;

/// A child's debt.
#[derive(Debug, Default)]
pub struct Credit {
    /// What is found in memory is put on it.
    open: bool,
    /// Pages that are in memory and not charged.
    owed: u64,
    /// Of them, those that the child has copied unseen.
    copied: u64,
    /// Of them, those that were copied to be moved out.
    unshared: u64,
    /// Faults of the child that were counted.
    faults: u64,
    /// Unpaid pages are write-protected.
    pub is_protected: bool,
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

    /// `n` pages are copied so that they can be moved out, for which there need not be room.
    pub(super) fn unshares(&mut self, n: u64) {
        self.unshared = (self.unshared + n).min(self.owed);
    }

    /// `n` pages have gone, of a process that is charged for `paid`. Returns how many of them were paid for, as
    /// far as is known.
    pub(super) fn forgives(&mut self, n: u64, paid: u64) -> u64 {
        let unpaid = n.min(self.unshared).max(n.saturating_sub(paid));
        let unpaid = unpaid.min(self.owed);
        self.unshared -= unpaid.min(self.unshared);
        self.owed -= unpaid;
        n - unpaid
    }

    /// Pages that have to be paid for now.
    pub(super) fn due(&self) -> u64 {
        match self.owed > 0 && now() >= self.until {
            true => self.owed,
            false => self.copied.min(self.owed),
        }
    }
}

impl Linux {
    /// All was found: what the child has copied so far is charged, the rest later.
    pub fn begin_to_pay(&mut self) {
        self.credit.open = false;
        self.credit.until = now() + GRACE;
        self.count_copies();
        self.pay();
        self.tell_debt();
    }

    /// Register memory of the program, all of it in the same way.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mode = match self.credit.is_protected {
            true => Mode::MISSING | Mode::WP,
            false => Mode::MISSING,
        };
        self.program.register(start, len, mode)
    }

    /// Tell the supervisor what is not paid for, or it would be taken for memory that nobody manages.
    pub fn tell_debt(&self) {
        self.ledger.set_owed(self.me, self.credit.owed);
    }

    fn count_copies(&mut self) {
        let faults = host::faults(self.pid).unwrap_or(u64::MAX);
        self.credit.copied += faults.saturating_sub(self.credit.faults);
        self.credit.faults = faults;
    }

    /// Charge `n` of the pages that are owed, if there is room for them, or `anyway`.
    pub fn pay_for(&mut self, n: u64, anyway: bool) -> bool {
        let n = n.min(self.credit.owed);
        let paid = self.try_charge(n) || self.ledger.try_charge(self.me, n);
        if !paid && anyway {
            self.ledger.charge_anyway(self.me, n);
        }
        self.credit.owed -= if paid || anyway { n } else { 0 };
        paid || anyway
    }

    /// Some pages are not paid for.
    pub fn owes(&self) -> bool {
        self.credit.owed > 0
    }

    /// And it is time for that.
    pub fn has_to_pay(&self) -> bool {
        self.credit.due() > 0
    }

    /// Charge what is due, as far as there is room for it, and all where there is plenty.
    pub fn pay(&mut self) {
        if self.credit.owed == 0 {
            return;
        }
        if !self.credit.is_protected {
            self.count_copies();
        }
        let room = self.available();
        let due = match room / 2 > self.credit.owed {
            true => self.credit.owed,
            false => self.credit.due().min(room),
        };
        if due > 0 && self.ledger.try_charge(self.me, due) {
            self.credit.owed -= due;
            self.credit.copied = self.credit.copied.saturating_sub(due);
        }
    }
}
