//! A parent's view of the children that share pages with it and have not paid for them.
//!
//! A write of the parent to a shared page copies it and leaves the old page to the child. The parent therefore asks a
//! child to pay before it lets the write through. Which pages the child pays for does not matter: there is room for
//! as many.

use alloc::vec::Vec;

use super::Ledger;

/// Pages that a parent asks a child to pay for at a time.
const AT_ONCE: u32 = 256;

/// A child that was asked to pay.
#[derive(Clone, Copy, Debug)]
struct Asked<P> {
    child: P,
    /// The number of pages that it had paid for before.
    paid: u32,
}

/// The children with debts, and the pages that they have paid for.
#[derive(Debug)]
pub struct Debtors<P> {
    children: Vec<P>,
    /// The child that was asked and has not paid yet.
    asked: Option<Asked<P>>,
    /// Pages that are paid for and may be copied.
    paid: u64,
}

impl<P> Default for Debtors<P> {
    fn default() -> Self {
        Debtors {
            children: Vec::new(),
            asked: None,
            paid: 0,
        }
    }
}

impl<P: Copy + PartialEq> Debtors<P> {
    /// Find the children that share unpaid pages.
    pub(super) fn find(&mut self, ledger: &impl Ledger<Process = P>) {
        self.children.clear();
        self.children.extend(ledger.debtors());
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.children.is_empty()
    }

    /// Whether `n` pages shared by children may be copied: a child has paid for them (and is asked to if not), or
    /// `anyway`.
    pub(super) fn may_copy(
        &mut self,
        ledger: &mut impl Ledger<Process = P>,
        n: u64,
        anyway: bool,
    ) -> bool {
        let Some(&first) = self.children.first() else {
            return true;
        };
        if let Some(Asked { child, paid }) = self.asked {
            let has_paid =
                ledger.is_even(child) || ledger.paid_by(child).wrapping_sub(paid) >= AT_ONCE;
            if anyway || has_paid || !self.children.contains(&child) {
                self.asked = None;
                self.paid += u64::from(AT_ONCE);
            }
        }
        if self.asked.is_none() && self.paid < u64::from(AT_ONCE / 2) {
            let paid = ledger.paid_by(first);
            self.asked = Some(Asked { child: first, paid });
            ledger.ask_to_pay(first, AT_ONCE);
        }
        let may = self.paid >= n;
        self.paid -= if may { n } else { 0 };
        may
    }

    /// `n` pages are copied for eviction: the originals are a child's alone.
    pub(super) fn leave(&self, ledger: &mut impl Ledger<Process = P>, n: u32) {
        if let Some(&child) = self.children.first() {
            ledger.ask_to_pay(child, n);
        }
    }
}
