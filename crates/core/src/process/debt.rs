//! The debt of a process: pages in its memory that it has not been charged for.
//!
//! The pages that a forked child finds in memory are also its parent's, and perhaps its siblings'. They exist once. All
//! processes that forks connect are a *family*. Each member has mapped pages that it may share with others. It is
//! charged for them, or owes for them. The sum of what all members are charged for is never less than the number of
//! different pages that they share:
//!
//! - A fork charges nothing: the child owes for all pages that it shares.
//! - A write to a shared page copies it: there is one page more, and one more is charged. A member that has pages which
//!   others are charged for pays for one of them. Another asks such a member to pay, whichever pages that pays for.
//! - When a shared page is gone from one member, the others may still have it. A member that has pages which others are
//!   charged for has one less. Another is charged for one page less, and asks such a member to pay for it.
//! - When a member ends, those with debts are asked to pay for the shared pages that it was charged for.
//!
//! The kernel reports no copy. Each member with shared pages therefore write-protects them, and a write waits until its
//! copy is paid for ([`super::Copies`]). Before it does, each of its faults that brought no data may have copied a page.

/// The debt of one process, in pages.
#[derive(Debug, Default)]
pub struct Debt {
    /// Pages found in memory are added to the debt.
    open: bool,
    /// Pages in memory that others are charged for.
    covered: u64,
    /// Pages in memory that this process has to be charged for, as soon as there is room.
    due: u64,
    /// Of these, pages that are this process' own: most were copied to be evicted, and are soon gone.
    own: u64,
    /// Pages that will be due when all were found.
    due_later: u64,
    /// The family's count of unasked pages at the last look.
    unasked: u64,
}

impl Debt {
    /// From now on, pages found in memory are not charged. `unasked`: the family's count at the fork.
    pub(super) fn begin(&mut self, unasked: u64) {
        (self.open, self.unasked) = (true, unasked);
    }

    /// All pages were found.
    pub(super) fn close(&mut self) {
        self.open = false;
        let due = core::mem::take(&mut self.due_later);
        self.on_due(due);
    }

    /// Whether pages found in memory are added to the debt.
    pub fn is_open(&self) -> bool {
        self.open
    }

    /// `n` pages were found. Returns whether they are part of the debt.
    pub(super) fn takes(&mut self, n: u64) -> bool {
        self.covered += if self.open { n } else { 0 };
        self.open
    }

    /// Others are not charged for `n` pages any more, or there are copies of them. Returns how many of these pages are
    /// not part of the debt.
    pub(super) fn on_due(&mut self, n: u64) -> u64 {
        if self.open {
            self.due_later = self.due_later.saturating_add(n);
            return 0;
        }
        let more = n.min(self.covered);
        self.covered -= more;
        self.due += more;
        n - more
    }

    /// The family's count of unasked pages is now this.
    pub(super) fn on_unasked(&mut self, unasked: u64) {
        let before = core::mem::replace(&mut self.unasked, unasked);
        self.on_due(unasked.wrapping_sub(before));
    }

    /// The family's count of unasked pages at the last look.
    pub fn unasked(&self) -> u64 {
        self.unasked
    }

    /// Up to `n` pages are no longer covered by others: they are gone, or are charged now. Returns how many.
    pub(super) fn uncover(&mut self, n: u64) -> u64 {
        let n = n.min(self.covered);
        self.covered -= n;
        n
    }

    /// `n` pages are copied to be evicted. Returns how many of the pages were covered by others; there may be no room
    /// for these copies.
    pub(super) fn on_copied(&mut self, n: u64) -> u64 {
        let covered = self.uncover(n);
        self.due += covered;
        self.own += covered;
        self.on_own(n - covered);
        covered
    }

    /// `n` shared pages that no other was charged for are this process' own now.
    pub(super) fn on_own(&mut self, n: u64) {
        self.own += n.min(self.due - self.own);
    }

    /// `n` own pages are gone. Returns how many of them were charged.
    pub(super) fn on_gone(&mut self, n: u64) -> u64 {
        let unpaid = n.min(self.own);
        self.own -= unpaid;
        self.due -= unpaid;
        n - unpaid
    }

    /// `n` shared pages that no other is charged for are gone. Returns how many of them were charged.
    pub(super) fn on_left(&mut self, n: u64) -> u64 {
        let unpaid = n.min(self.due - self.own);
        self.due -= unpaid;
        n - unpaid
    }

    /// `n` due pages are charged now.
    pub(super) fn settle(&mut self, n: u64) {
        self.due -= n;
        self.own = self.own.min(self.due);
    }

    /// Pages in memory that are not charged.
    pub fn owed(&self) -> u64 {
        self.covered + self.due
    }

    /// Of these, the pages that are to be charged.
    pub fn due(&self) -> u64 {
        self.due
    }

    /// And those that others are charged for.
    pub fn covered(&self) -> u64 {
        self.covered
    }
}
