//! The debt of a forked child: pages in its memory that it has not been charged for.
//!
//! The pages that a child finds in memory are also its parent's. They exist once, and the parent is charged for them.
//! A page becomes the child's alone when the child writes to it, or when the parent writes to it, discards it or
//! ends. The kernel reports this only through a walk of the page tables. Therefore:
//!
//! - A write of the child is charged before it copies ([`super::Copies`]). Before the child's engine has started, or
//!   if the kernel cannot protect pages, each fault that brought no data may have copied a page.
//! - A write of the parent copies, and leaves the old page to the child alone. The parent protects its pages too, and
//!   asks the child to pay before the write ([`super::Debtors`]). Until it knows of the child's debt, each of its
//!   faults may have copied a page. When the parent has ended, all pages are the child's.
//! - After a grace period the child pays for the rest, as room becomes available: it asks the others for its share,
//!   and evicts pages above it. Then no write of either side can exceed the limit.

use crate::units::Nanos;

/// How long a child may share pages before it has to pay for them.
const GRACE: Nanos = 250_000_000;

/// A child's debt, in pages.
#[derive(Debug, Default)]
pub struct Debt {
    /// Pages found in memory are added to the debt.
    open: bool,
    /// Pages in memory that are not charged.
    owed: u64,
    /// Of these, pages that may have been copied already, or are about to be.
    copied: u64,
    /// Of these, pages that were copied for eviction.
    unshared: u64,
    /// When the rest is due.
    until: Nanos,
}

impl Debt {
    /// From now on, pages found in memory are not charged; `copied` of them may have been copied already.
    pub(super) fn begin(&mut self, copied: u64) {
        (self.open, self.copied) = (true, copied);
    }

    /// All pages were found. The grace period begins.
    pub(super) fn close(&mut self, now: Nanos) {
        (self.open, self.until) = (false, now + GRACE);
    }

    /// `n` pages were found. Returns whether they are part of the debt.
    pub(super) fn takes(&mut self, n: u64) -> bool {
        self.owed += if self.open { n } else { 0 };
        self.open
    }

    /// Up to `n` more pages may have been copied.
    pub(super) fn on_copied(&mut self, n: u64) {
        self.copied = self.copied.saturating_add(n);
    }

    /// `n` pages are copied for eviction, which needs no room.
    pub(super) fn on_unshared(&mut self, n: u64) {
        self.unshared = (self.unshared + n).min(self.owed);
    }

    /// `n` pages have gone, of a process that is charged for `paid`. Returns the estimated number of them that were
    /// paid for.
    pub(super) fn forgive(&mut self, n: u64, paid: u64) -> u64 {
        let unpaid = n.min(self.unshared).max(n.saturating_sub(paid));
        let unpaid = unpaid.min(self.owed);
        self.unshared -= unpaid.min(self.unshared);
        self.owed -= unpaid;
        n - unpaid
    }

    /// `n` pages of which a write made copies are paid for.
    pub(super) fn settle_copies(&mut self, n: u64) {
        self.owed -= n.min(self.owed);
    }

    /// `n` due pages are paid for.
    pub(super) fn settle_due(&mut self, n: u64) {
        self.owed -= n.min(self.owed);
        self.copied = self.copied.saturating_sub(n);
    }

    /// Pages in memory that are not charged.
    pub fn owed(&self) -> u64 {
        self.owed
    }

    /// Pages that are due now.
    pub(super) fn due(&self, now: Nanos) -> u64 {
        match self.owed > 0 && now >= self.until {
            true => self.owed,
            false => self.copied.min(self.owed),
        }
    }
}
