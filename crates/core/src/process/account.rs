//! How much memory this process uses, asks of the others, and gives back to them.
//!
//! The limit is one for all processes of a run. A process may use all of it while no other lacks memory. When others
//! do, a process that has its fair share (the limit divided by the number of processes, of which those that sleep count
//! less: see `activity`) leaves the free pages to them, and evicts what it has above its share. While load control is on
//! ([`super::Load`]), it says what the share of each process is.

use super::activity::{Activity, FULL_WEIGHT};
use super::debt::Debt;
use super::debtors::Debtors;
use super::found::Found;
use super::ledger::{Ledger, LedgerMut};
use crate::units::Nanos;
use crate::world::Sharing;

/// Pages of the limit that no process charges in advance: room for charges that come at the same time.
const SLACK: u64 = 32;
/// The most pages that a process asks of the others at a time: those of a huge page (2 MiB).
const MOST_WANTED: u64 = 512;
/// The same for a process whose turn has come: 16 MiB, so that hundreds of MiB change hands within a second.
const MOST_GRANTED: u64 = 4096;
/// A process that lacks less than this part of its share asks for nothing.
const MUCH: u64 = 8;

/// The account of one process. `P` names a process in the ledger.
#[derive(Debug)]
pub struct Account<P> {
    /// Pages charged in advance and not used yet.
    prepaid: u64,
    /// Pages that came unnoticed, and wait for room.
    found: Found,
    /// Pages that other processes lacked at the last look.
    wanted_by_others: u64,
    /// The weights of the others at the last look; `None` before it.
    weights: Option<u64>,
    activity: Activity,
    /// The others were told that this process lacks pages.
    has_asked: bool,
    /// The charge of this process at that time.
    had: u64,
    /// Pages that waiting writes would copy, and for which there is no room.
    uncopied: u64,
    /// A fork is under way: its child may share all pages.
    forks: bool,
    debt: Debt,
    debtors: Debtors<P>,
}

impl<P> Default for Account<P> {
    fn default() -> Self {
        Account {
            prepaid: 0,
            found: Found::default(),
            wanted_by_others: 0,
            weights: None,
            activity: Activity::default(),
            has_asked: false,
            had: 0,
            uncopied: 0,
            forks: false,
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
        self.weights = Some(ledger.weights_of_others());
    }

    /// Pages that could be charged now. Pages that were found come first.
    pub fn available(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        self.room(ledger).saturating_sub(self.found.unpaid())
    }

    /// Pages of the limit that this process may take.
    fn room(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let taken = ledger.charged() + SLACK + self.kept_for_others(ledger);
        ledger.limit().saturating_sub(taken)
    }

    /// Charge `n` pages if they are available.
    pub fn try_charge(&self, ledger: &mut impl LedgerMut<Process = P>, n: u64) -> bool {
        n <= self.available(ledger) && ledger.try_charge(n)
    }

    /// Charge `n` pages that exist already: they are prepaid, or part of the debt, or came unnoticed and wait for room, or
    /// are charged whatever the limit.
    pub fn charge_existing(&mut self, ledger: &mut impl LedgerMut<Process = P>, n: u64) {
        let paid = n.min(self.prepaid);
        self.prepaid -= paid;
        if !self.debt.takes(n - paid) && !self.found.takes(n - paid) {
            ledger.charge_anyway(n - paid);
        }
    }

    /// `n` pages are gone that no other process shares.
    pub fn uncharge(&mut self, ledger: &mut impl LedgerMut<Process = P>, n: u64) {
        let left = self.found.on_gone(n);
        ledger.uncharge(self.debt.on_gone(left));
    }

    /// Pages that this process should evict: it found pages that are not charged, or it has more than its share and others
    /// lack them, or its writes wait for room to copy, which its free frames do not give them.
    pub fn excess(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let (limit, charged, found) = (ledger.limit(), ledger.charged(), self.found.unpaid());
        let free = limit.saturating_sub(charged);
        let wanted = self.wanted_by_others.saturating_sub(free);
        let uncharged = self.debt.due() + found;
        let short = (charged + uncharged).saturating_sub(limit) + wanted;
        let above_share = (ledger.own() + uncharged).saturating_sub(self.fair_share(ledger));
        // What it evicts pays for its found and due pages first.
        let for_copies = match self.uncopied {
            0 => 0,
            n => (charged + uncharged + n)
                .saturating_sub(limit)
                .min(ledger.own()),
        };
        found.max(short.min(above_share)).max(for_copies)
    }

    /// `n` charged pages will be found later ([`Self::charge_existing`]).
    pub fn prepay(&mut self, n: u64) {
        self.prepaid += n;
    }

    /// Charged pages that were not found yet.
    pub fn prepaid(&self) -> u64 {
        self.prepaid
    }

    /// No further page will be found: uncharge the pages that were charged in advance.
    pub fn return_prepaid(&mut self, ledger: &mut impl LedgerMut<Process = P>) {
        ledger.uncharge(core::mem::take(&mut self.prepaid));
    }
}

/// Memory that came unnoticed.
impl<P: Copy + PartialEq> Account<P> {
    /// Pages that are found until [`Self::close_found`] came unnoticed: they wait for room.
    pub fn open_found(&mut self, now: Nanos) {
        self.found.open(now);
    }

    /// All of them were found.
    pub fn close_found(&mut self) {
        self.found.close();
    }

    /// Pages that came unnoticed and are not charged yet.
    pub fn unpaid(&self) -> u64 {
        self.found.unpaid()
    }

    /// Charge the pages that came unnoticed, as far as there is room; all of them if no room is made any more.
    pub fn pay_for_found(&mut self, ledger: &mut impl LedgerMut<Process = P>, now: Nanos) {
        let n = self.found.unpaid().min(self.room(ledger));
        if n > 0 && ledger.try_charge(n) {
            self.found.settle(n);
        }
        if self.found.waits_in_vain(now) {
            self.charge_found(ledger);
        }
    }

    /// Charge them whatever the limit.
    fn charge_found(&mut self, ledger: &mut impl LedgerMut<Process = P>) {
        let n = self.found.unpaid();
        self.found.settle(n);
        ledger.charge_anyway(n);
    }
}

/// The fair share.
impl<P: Copy + PartialEq> Account<P> {
    /// Pages for this process when all need more.
    fn fair_share(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let share = || {
            let own = self.activity.weight();
            let equal = || ledger.live().saturating_sub(1) * FULL_WEIGHT;
            let others = self.weights.unwrap_or_else(equal);
            ledger.limit() * own / (own + others)
        };
        ledger.granted().unwrap_or_else(share)
    }

    /// At `now`, the process has run for `ran` in all; whether it has `faulted` since the last look.
    pub fn look_at_activity(
        &mut self,
        ledger: &mut impl LedgerMut<Process = P>,
        now: Nanos,
        ran: Nanos,
        faulted: bool,
    ) {
        let before = self.activity.weight();
        self.activity.look(now, ran, faulted);
        if self.activity.weight() != before {
            ledger.set_weight(self.activity.weight());
        }
    }

    /// Pages that this process can count on: its charge or its share of the limit, the larger of the two.
    pub fn share(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let share = self.fair_share(ledger);
        ledger.own().max(share).min(ledger.limit())
    }

    /// A process that has its share leaves room to the others.
    fn kept_for_others(&self, ledger: &impl Ledger<Process = P>) -> u64 {
        let has_share = || ledger.own() >= self.fair_share(ledger).saturating_sub(SLACK);
        if self.wanted_by_others > 0 && has_share() {
            self.wanted_by_others
        } else {
            0
        }
    }

    /// Tell the others how many pages this process lacks of its share, if it is `needy`, and for the pages that it has and
    /// is not charged for; at least `least`.
    pub fn ask(&mut self, ledger: &mut impl LedgerMut<Process = P>, needy: bool, least: u64) {
        let share = self.fair_share(ledger);
        let is_granted = ledger.granted().is_some();
        let most = if is_granted {
            MOST_GRANTED
        } else {
            MOST_WANTED
        };
        let missing = share.saturating_sub(ledger.own()).min(most);
        let lacks_much = is_granted || share.saturating_sub(ledger.own()) > share / MUCH;
        let for_use = match needy && lacks_much && ledger.live() > 1 {
            true => missing,
            false => 0,
        };
        let uncharged = self.debt.due() + self.found.unpaid();
        let wanted = for_use.max(missing.min(uncharged)).max(least);
        if wanted > 0 || self.has_asked {
            // What the others gave is taken: without a call, they would look at it again a quarter of a second later.
            let took = ledger.own() > core::mem::replace(&mut self.had, ledger.own());
            ledger.set_wanted(wanted, took && wanted > 0);
            self.has_asked = wanted > 0;
        }
    }
}

/// Pages that forks share: see [`Debt`].
impl<P: Copy + PartialEq> Account<P> {
    /// This process is a forked child: it owes for the pages that it finds in memory. `due` of them are to be paid for
    /// at once; `unasked` is the family's count at the fork ([`Self::begin_fork`] of the parent).
    pub fn begin_debt(&mut self, due: u64, unasked: u64) {
        self.debt.begin(unasked);
        self.debt.on_due(due);
    }

    /// This process is about to fork. The child may share all its pages at once, so the others must know of them now:
    /// this process may end before it looks at its debts again. For each of them, somebody must be charged. Returns the
    /// family's count of unasked pages for the child's [`Self::begin_debt`]: what is counted from now on, this process
    /// may not live to pay.
    pub fn begin_fork(&mut self, ledger: &mut impl LedgerMut<Process = P>) -> u64 {
        self.charge_found(ledger);
        self.forks = true;
        self.debt.on_unasked(ledger.unasked());
        self.publish(ledger, 0, 0);
        self.debt.unasked()
    }

    /// The fork is over, and the shared pages are marked.
    pub fn end_fork(&mut self) {
        self.forks = false;
    }

    /// Tell the others of the debt, and how many of the `shared` pages no other is charged for: this process is, or is
    /// about to be.
    fn publish(&self, ledger: &mut impl LedgerMut<Process = P>, shared: u64, asked: u64) {
        let paid = match self.forks {
            true => ledger.own() + self.debt.due(),
            false => shared.saturating_sub(self.debt.covered()),
        };
        ledger.set_debt(self.debt.owed(), self.debt.due(), paid, asked);
    }

    /// All pages were found.
    pub fn close_debt(&mut self) {
        self.debt.close();
    }

    /// The memory that the eviction of a shared page gives back.
    pub fn sharing(&self) -> Sharing {
        if self.debt.covered() > 0 && self.debt.due() == 0 {
            Sharing::Owed
        } else if self.has_debtors() {
            Sharing::Charged
        } else {
            Sharing::None
        }
    }

    /// Some pages are not paid for.
    pub fn owes(&self) -> bool {
        self.debt.owed() > 0
    }

    /// The debt.
    pub fn debt(&self) -> &Debt {
        &self.debt
    }

    /// Up to `n` pages of the debt are to be paid for: there may be copies of them that nobody has paid for, or nobody
    /// else is charged for them.
    pub fn on_due(&mut self, n: u64) {
        self.debt.on_due(n);
    }

    /// Charge the due pages as far as there is room, and all pages if there is plenty. Publishes the rest, and
    /// the part of the `shared` pages of this process that no other is charged for.
    pub fn pay(&mut self, ledger: &mut impl LedgerMut<Process = P>, shared: u64) {
        let asked = ledger.asked();
        // Others may owe for pages that this process was asked for too late.
        let left = self.debt.on_due(asked);
        self.debtors.ask(ledger, left);
        self.debt.on_unasked(ledger.unasked());
        // All room counts: the processes together may use the whole limit.
        let room = ledger.limit().saturating_sub(ledger.charged());
        if room / 2 > self.debt.owed() {
            self.debt.on_due(u64::MAX);
        }
        let due = self.debt.due().min(room);
        if due > 0 && ledger.try_charge(due) {
            self.debt.settle(due);
            ledger.paid(due);
        }
        self.publish(ledger, shared, asked);
    }

    /// Look for the members of the family that have debts.
    pub fn find_debtors(&mut self, ledger: &impl Ledger<Process = P>) {
        self.debtors.find(ledger);
    }

    /// There are some.
    pub fn has_debtors(&self) -> bool {
        !self.debtors.is_empty()
    }

    /// Pages that waiting writes would copy, and for which there was no room.
    pub fn uncopied(&self) -> u64 {
        self.uncopied
    }

    /// The writes that wait are tried again: those for which there is still no room will be counted.
    pub(super) fn retry_copies(&mut self) {
        self.uncopied = 0;
    }

    /// Whether a write may copy `n` shared pages now; `anyway`: it has waited long enough.
    pub fn may_copy(
        &mut self,
        ledger: &mut impl LedgerMut<Process = P>,
        n: u64,
        anyway: bool,
    ) -> bool {
        self.debt.on_unasked(ledger.unasked());
        let own = n.min(self.debt.covered());
        if own == 0 {
            let may = n == 0 || self.debtors.may_copy(ledger, n, anyway);
            if may {
                self.debt.on_own(n);
            }
            return may;
        }
        let is_paid = ledger.try_charge(own);
        if !is_paid && anyway {
            ledger.charge_anyway(own);
        }
        if is_paid || anyway {
            ledger.paid(self.debt.uncover(own));
            self.debt.on_own(n - own);
            self.debtors.ask(ledger, n - own);
        } else {
            self.uncopied += own;
        }
        is_paid || anyway
    }

    /// `n` shared pages are copied now: they are to be evicted, or were copied unseen.
    pub fn on_copied(&mut self, ledger: &mut impl LedgerMut<Process = P>, n: u64) {
        self.debt.on_unasked(ledger.unasked());
        let own = self.debt.on_copied(n);
        if own > 0 && ledger.try_charge(own) {
            self.debt.settle(own);
            ledger.paid(own);
        }
        self.debtors.ask(ledger, n - own);
    }

    /// Before the memory was managed, up to `n` pages that others may share were copied or let go.
    pub fn on_gone(&self, ledger: &mut impl LedgerMut<Process = P>, n: u64) {
        self.debtors.ask(ledger, n);
    }

    /// `n` mapped pages that others may share are gone here. What nobody is charged for any more is no page that others
    /// are charged for: a child that was forked since does not know of it.
    pub fn let_go(&mut self, ledger: &mut impl LedgerMut<Process = P>, n: u64) {
        self.debt.on_unasked(ledger.unasked());
        let left = n - self.debt.uncover(n);
        ledger.uncharge(self.debt.on_left(left));
        self.debtors.ask(ledger, left);
    }
}
