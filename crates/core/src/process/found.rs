//! Memory that came unnoticed: its pages exist before this process is charged for them.

use crate::units::Nanos;

/// How long found pages wait for room while none is made.
const PATIENCE: Nanos = 200_000_000;

/// The pages that came unnoticed and are not charged yet.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Pages found now came unnoticed.
    open: bool,
    unpaid: u64,
    /// The fewest unpaid pages since more were found.
    fewest: u64,
    /// When some began to wait, or their number last fell.
    since: Nanos,
}

impl Found {
    /// Pages found until [`Self::close`] came unnoticed.
    pub fn open(&mut self, now: Nanos) {
        self.open = true;
        if self.unpaid == 0 {
            self.since = now;
        }
    }

    /// All of them were found.
    pub fn close(&mut self) {
        self.open = false;
        self.fewest = self.unpaid;
    }

    /// `n` pages were found. Returns whether they came unnoticed.
    pub fn takes(&mut self, n: u64) -> bool {
        self.unpaid += if self.open { n } else { 0 };
        self.open
    }

    /// `n` pages of the process are gone: their memory pays for as many that are unpaid. Returns how many pages that
    /// leaves.
    pub fn on_gone(&mut self, n: u64) -> u64 {
        let paid = n.min(self.unpaid);
        self.settle(paid);
        n - paid
    }

    /// `n` unpaid pages are charged now.
    pub fn settle(&mut self, n: u64) {
        self.unpaid -= n;
    }

    /// Whether no room is made any more.
    pub fn waits_in_vain(&mut self, now: Nanos) -> bool {
        if self.unpaid < self.fewest {
            (self.fewest, self.since) = (self.unpaid, now);
        }
        self.unpaid > 0 && now.saturating_sub(self.since) >= PATIENCE
    }

    /// Pages that are not charged.
    pub fn unpaid(&self) -> u64 {
        self.unpaid
    }
}
