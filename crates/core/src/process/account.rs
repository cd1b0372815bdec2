//! How much memory this process uses, asks of the others, and gives back to them.
//!
//! The limit is one for all processes of a run. A process may use all of it while no other lacks memory. When others
//! do, a process that has its fair share (the limit divided by the number of processes) leaves the free pages to them,
//! and evicts what it has above its share.

use super::{Debt, Debtors, Ledger};
use crate::units::Nanos;

/// Pages of the limit that no process charges in advance: room for charges that come at the same time.
const SLACK: u64 = 32;
/// The most pages that a process asks of the others at a time (2 MiB): what a huge page needs.
const MOST_WANTED: u64 = 512;
/// A process that lacks less than this part of its share asks for nothing.
const MUCH: u64 = 8;

/// The account of one process. `P` names a process in the ledger.
#[derive(Debug)]
pub struct Account<P> {
    /// Pages charged in advance and not used yet.
    prepaid: u64,
    /// Charged pages should shrink to this number, to make room for memory that came unnoticed.
    target: Option<u64>,
    /// Pages that other processes lacked at the last look.
    wanted_by_others: u64,
    /// The others were told that this process lacks pages.
    has_asked: bool,
    debt: Debt,
    debtors: Debtors<P>,
}

impl<P> Default for Account<P> {
    fn default() -> Self {
        Account {
            prepaid: 0,
            target: None,
            wanted_by_others: 0,
            has_asked: false,
            debt: Debt::default(),
            debtors: Debtors::default(),
        }
    }
}

/// Charges.
impl<P: Copy + PartialEq> Account<P> {
    /// Look at the needs of the others, which are too costly to look at for each charge.
    pub fn refresh(&mut self, ledger: &impl Ledger<Process = P>) {
        self.wanted_by_others = ledger.wanted_by_others();
    }

    /// Pages that could be charged now.
    pub fn available(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let taken = ledger.charged() + SLACK + self.kept_for_others(ledger);
        ledger.limit().saturating_sub(taken)
    }

    /// Charge `n` pages if they are available.
    pub fn try_charge(&self, ledger: &mut impl Ledger<Process = P>, n: u64) -> bool {
        n <= self.available(ledger) && ledger.try_charge(n)
    }

    /// Charge `n` pages that exist already: they are prepaid, or part of the debt, or charged whatever the limit.
    pub fn charge_existing(&mut self, ledger: &mut impl Ledger<Process = P>, n: u64) {
        let paid = n.min(self.prepaid);
        self.prepaid -= paid;
        if !self.debt.takes(n - paid) {
            ledger.charge_anyway(n - paid);
        }
    }

    /// `n` pages are gone.
    pub fn uncharge(&mut self, ledger: &mut impl Ledger<Process = P>, n: u64) {
        let left = match self.owes() {
            true => self.debt.forgive(n, ledger.own()),
            false => n,
        };
        // A debt for pages that are gone counts as paid.
        ledger.paid(n - left);
        ledger.uncharge(left);
    }

    /// Pages that this process should evict.
    pub fn excess(&self, ledger: &impl Ledger<Process = P>, now: Nanos) -> u64 {
        let own = ledger.own();
        let found_unnoticed = self.target.map_or(0, |target| own.saturating_sub(target));
        let (limit, charged) = (ledger.limit(), ledger.charged());
        let free = limit.saturating_sub(charged);
        let wanted = self.wanted_by_others.saturating_sub(free);
        let due = self.debt.due(now);
        let short = (charged + due).saturating_sub(limit) + wanted;
        found_unnoticed.max(short.min((own + due).saturating_sub(Self::fair_share(ledger))))
    }

    /// `n` charged pages will be found later ([`Self::charge_existing`]).
    pub fn prepay(&mut self, n: u64) {
        self.prepaid += n;
    }

    /// Charged pages that were not found yet.
    pub fn prepaid(&self) -> u64 {
        self.prepaid
    }

    /// No further page will be found: uncharge what was charged in advance.
    pub fn return_prepaid(&mut self, ledger: &mut impl Ledger<Process = P>) {
        let unused = core::mem::take(&mut self.prepaid);
        self.uncharge(ledger, unused);
    }

    /// Make room for `missing` pages that came unnoticed.
    pub fn shrink_by(&mut self, ledger: &impl Ledger<Process = P>, missing: u64) {
        self.target = Some(ledger.own().saturating_sub(missing));
    }

    /// They have room now, or have gone.
    pub fn stop_shrinking(&mut self) {
        self.target = None;
    }

    /// Whether room is being made for pages that came unnoticed.
    pub fn shrinks(&self) -> bool {
        self.target.is_some()
    }
}

/// The fair share.
impl<P: Copy + PartialEq> Account<P> {
    /// Pages for each process when all need more.
    fn fair_share(ledger: &impl Ledger<Process = P>) -> u64 {
        ledger.limit() / ledger.live().max(1)
    }

    /// Pages that this process can count on: its charge or its share of the limit, the larger of the two.
    pub fn share(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let share = Self::fair_share(ledger);
        ledger.own().max(share).min(ledger.limit())
    }

    /// A process that has its share leaves room to the others.
    fn kept_for_others(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let has_share = || ledger.own() >= Self::fair_share(ledger).saturating_sub(SLACK);
        if self.wanted_by_others > 0 && has_share() {
            self.wanted_by_others
        } else {
            0
        }
    }

    /// Tell the others how many pages this process lacks of its share, if it is `needy`, and of its due debt; at least
    /// `least`.
    pub fn ask(
        &mut self,
        ledger: &mut impl Ledger<Process = P>,
        needy: bool,
        least: u64,
        now: Nanos,
    ) {
        let share = Self::fair_share(ledger);
        let missing = share.saturating_sub(ledger.own()).min(MOST_WANTED);
        let lacks_much = share.saturating_sub(ledger.own()) > share / MUCH;
        let for_use = match needy && lacks_much && ledger.live() > 1 {
            true => missing,
            false => 0,
        };
        let wanted = for_use.max(missing.min(self.debt.due(now))).max(least);
        if wanted > 0 || self.has_asked {
            ledger.set_wanted(wanted);
            self.has_asked = wanted > 0;
        }
    }
}

/// Debts of this process to its parent, and of its children to it.
impl<P: Copy + PartialEq> Account<P> {
    /// This process is a forked child: pages that it finds in memory are its parent's too. `copied` of them may have
    /// been copied already.
    pub fn begin_debt(&mut self, copied: u64) {
        self.debt.begin(copied);
    }

    /// All pages were found.
    pub fn close_debt(&mut self, now: Nanos) {
        self.debt.close(now);
    }

    /// Some pages are not paid for.
    pub fn owes(&self) -> bool {
        self.debt.owed() > 0
    }

    /// The debt.
    pub fn debt(&self) -> &Debt {
        &self.debt
    }

    /// Up to `n` pages that this process shares with its parent may have been copied, by either.
    pub fn on_copied(&mut self, n: u64) {
        self.debt.on_copied(n);
    }

    /// Charge the due pages as far as there is room, and all pages if there is plenty. Publishes the rest.
    pub fn pay(&mut self, ledger: &mut impl Ledger<Process = P>, now: Nanos) {
        let asked = ledger.asked();
        self.debt.on_copied(asked);
        // All room counts: the processes together may use the whole limit.
        let room = ledger.limit().saturating_sub(ledger.charged());
        let due = match room / 2 > self.debt.owed() {
            true => self.debt.owed(),
            false => self.debt.due(now).min(room),
        };
        if due > 0 && ledger.try_charge(due) {
            self.debt.settle_due(due);
            ledger.paid(due);
        }
        ledger.set_debt(self.debt.owed(), self.debt.due(now), asked);
    }

    /// Charge `n` of the owed pages for a write that copies them, if there is room, or `anyway`.
    pub fn pay_for(&mut self, ledger: &mut impl Ledger<Process = P>, n: u64, anyway: bool) -> bool {
        let n = n.min(self.debt.owed());
        let has_paid = ledger.try_charge(n);
        if !has_paid && anyway {
            ledger.charge_anyway(n);
        }
        if has_paid || anyway {
            self.debt.settle_copies(n);
            ledger.paid(n);
        }
        has_paid || anyway
    }

    /// Look for children that share pages with this process and have not paid for them.
    pub fn find_debtors(&mut self, ledger: &impl Ledger<Process = P>) {
        self.debtors.find(ledger);
    }

    /// There are such children.
    pub fn has_debtors(&self) -> bool {
        !self.debtors.is_empty()
    }

    /// Whether a write may copy `n` shared pages now; `anyway`: it has waited long enough. If the pages are shared with
    /// the parent and with children, a write makes one copy, not two.
    pub fn may_copy(
        &mut self,
        ledger: &mut impl Ledger<Process = P>,
        n: u64,
        anyway: bool,
    ) -> bool {
        match self.owes() {
            true => self.pay_for(ledger, n, anyway),
            false => self.debtors.may_copy(ledger, n, anyway),
        }
    }

    /// `n` shared pages are copied, to be evicted.
    pub fn on_unshare(&mut self, ledger: &mut impl Ledger<Process = P>, n: u32) {
        self.debt.on_unshared(n.into());
        self.debtors.leave(ledger, n);
    }
}
