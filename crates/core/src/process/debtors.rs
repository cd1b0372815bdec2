//! The members of a family that have not paid for pages that they share: see [`super::Debt`].

use alloc::vec::Vec;

use super::ledger::{Ledger, LedgerMut};

/// Pages that a debtor is asked to pay for at a time, for writes.
const AT_ONCE: u64 = 256;

/// A debtor that was asked to pay for writes.
#[derive(Clone, Copy, Debug)]
struct Asked<P> {
    debtor: P,
    /// The number of pages that it had paid for before.
    before: u32,
    /// The number of pages asked for.
    pages: u64,
}

/// The other members with debts, and the pages that they have paid for so that this process may copy them.
#[derive(Debug)]
pub struct Debtors<P> {
    found: Vec<P>,
    /// The debtor that was asked and has not paid yet.
    asked: Option<Asked<P>>,
    /// Pages that are paid for and may be copied.
    paid: u64,
}

impl<P> Default for Debtors<P> {
    fn default() -> Self {
        Debtors {
            found: Vec::new(),
            asked: None,
            paid: 0,
        }
    }
}

impl<P: Copy + PartialEq> Debtors<P> {
    /// Look for the debtors. The payments of one that has ended count no more.
    pub(super) fn find(&mut self, ledger: &impl Ledger<Process = P>) {
        let before = core::mem::take(&mut self.found);
        self.found.extend(ledger.debtors());
        if before.iter().any(|debtor| !self.found.contains(debtor)) {
            (self.asked, self.paid) = (None, 0);
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Whether `n` shared pages may be copied: debtors have paid for as many (and are asked to if not), or there is
    /// none, or `anyway`.
    pub(super) fn may_copy(
        &mut self,
        ledger: &mut impl LedgerMut<Process = P>,
        n: u64,
        anyway: bool,
    ) -> bool {
        if let Some(asked) = self.asked {
            let paid: u64 = ledger
                .paid_by(asked.debtor)
                .wrapping_sub(asked.before)
                .into();
            if paid >= asked.pages || ledger.is_even(asked.debtor) {
                self.asked = None;
                self.paid += paid.min(asked.pages);
            }
        }
        if self.asked.is_none() && self.paid < n.max(AT_ONCE / 2) {
            let debts = self
                .found
                .iter()
                .map(|&debtor| (debtor, ledger.owed_by(debtor)));
            let largest = debts.max_by_key(|&(_, owed)| owed);
            let Some((debtor, owed)) = largest.filter(|&(_, owed)| owed > 0) else {
                // All that they owe is being paid for.
                return anyway || self.found.iter().all(|&debtor| ledger.is_even(debtor));
            };
            let pages = owed.min(AT_ONCE);
            let before = ledger.paid_by(debtor);
            self.asked = Some(Asked {
                debtor,
                before,
                pages,
            });
            ledger.ask_to_pay(debtor, pages);
        }
        if self.paid < n && !anyway {
            return false;
        }
        // What is copied before it is paid for is asked for on its own: the payment under way is for other pages.
        let unpaid = n.saturating_sub(self.paid);
        self.paid -= n - unpaid;
        self.ask(ledger, unpaid);
        true
    }

    /// Ask debtors to pay for `n` pages that this process is no longer charged for, or has copied already. A debtor that
    /// is not known yet learns of the rest by the common count.
    pub(super) fn ask(&self, ledger: &mut impl LedgerMut<Process = P>, mut n: u64) {
        for &debtor in &self.found {
            let pages = n.min(ledger.owed_by(debtor));
            if pages > 0 {
                ledger.ask_to_pay(debtor, pages);
            }
            n -= pages;
        }
        if n > 0 {
            ledger.count_unasked(n);
        }
    }
}
