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

    /// Whether `n` shared pages may be copied: debtors have paid for as many (and are asked to if not), or owe nothing
    /// any more, or `anyway`.
    pub(super) fn may_copy(
        &mut self,
        ledger: &mut impl LedgerMut<Process = P>,
        n: u64,
        anyway: bool,
    ) -> bool {
        self.look_at_payment(ledger);
        if self.asked.is_none() && self.paid < n.max(AT_ONCE / 2) {
            self.ask_for_copies(ledger);
        }
        let waits = || !self.found.iter().all(|&debtor| ledger.is_even(debtor));
        if self.paid < n && !anyway && waits() {
            return false;
        }
        // What is copied before it is paid for is asked for on its own: the payment under way is for other pages. If the
        // known debtors owe no more, a child that has not published its debt yet may still share these pages.
        let unpaid = n.saturating_sub(self.paid);
        self.paid -= n - unpaid;
        self.ask(ledger, unpaid);
        true
    }

    /// The pages that the asked debtor has paid for may be copied, if it has paid for all.
    fn look_at_payment(&mut self, ledger: &impl Ledger<Process = P>) {
        let Some(asked) = self.asked else {
            return;
        };
        let paid = ledger.paid_by(asked.debtor).wrapping_sub(asked.before);
        let paid = asked.pages.min(paid.into());
        if paid == asked.pages || ledger.is_even(asked.debtor) {
            self.asked = None;
            self.paid += paid;
        }
    }

    /// Ask the debtor that owes most, if one owes anything that it was not asked for.
    fn ask_for_copies(&mut self, ledger: &mut impl LedgerMut<Process = P>) {
        let debts = self.found.iter();
        let debts = debts.map(|&debtor| (debtor, ledger.owed_by(debtor)));
        let largest = debts.max_by_key(|&(_, owed)| owed);
        if let Some((debtor, owed)) = largest.filter(|&(_, owed)| owed > 0) {
            let (before, pages) = (ledger.paid_by(debtor), owed.min(AT_ONCE));
            self.asked = Some(Asked {
                debtor,
                before,
                pages,
            });
            ledger.ask_to_pay(debtor, pages);
        }
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
