//! Processes that share pages since a fork without being charged for them: see `foreswap_core::process`.
//!
//! The driver does as the engine does: it charges by the process' account, write-protects shared pages while somebody
//! owes for them, and lets writes through when they are paid for. The engine counts page faults instead of the copies
//! that are counted here. The rule ([`charged_for`]): at rest, no page is in memory that no process is charged for.

use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};

use foreswap_core::process::{Copy, FULL_WEIGHT, Ledger, LedgerMut, Opening, Protected};
use foreswap_core::units::{PageRange, Vpn};
use foreswap_core::{Mm, process};

use crate::process::{Fork, Process};
use crate::space::{Mapping, Space};
use crate::system::System;

/// Pages asked of the others when a thread waits.
const STALLED: u64 = 64;

/// The messages of a process to the others.
#[derive(Clone, Copy, Default)]
pub struct Words {
    live: bool,
    pub(crate) charged: u64,
    wanted: u64,
    /// How much its weight is below the full one.
    idleness: u64,
    asked: u64,
    owed: u64,
    due: u64,
    shared: u64,
    paid: u32,
    /// It asks for copies.
    protects: bool,
    /// Copies by its writes while it did not ask.
    pub(crate) unseen: u64,
}

/// The knowledge of a process of its family, beyond its account.
#[derive(Default)]
pub struct Member {
    /// Its writes that wait.
    pub copies: process::Copies,
    is_protected: bool,
    /// The parent, and its counts at the last look.
    parent: Option<usize>,
    parent_asked: bool,
    parents: u64,
    /// Its own copies at the last look.
    own: u64,
    /// The others know its debt.
    is_known: bool,
    /// The family's count of unasked pages for its next child.
    pub unasked: u64,
}

/// The ledger as one process sees it.
pub struct Seat<S> {
    /// The machine.
    pub sys: S,
    /// The process.
    pub pid: usize,
}

impl<S: Deref<Target = System>> Seat<S> {
    fn words(&self) -> &Words {
        &self.sys.ledger[self.pid]
    }
}

impl<S: DerefMut<Target = System>> Seat<S> {
    fn add(&mut self, n: u64) {
        self.sys.charged += n;
        self.sys.ledger[self.pid].charged += n;
    }
}

impl<S: Deref<Target = System>> Ledger for Seat<S> {
    type Process = usize;

    fn limit(&self) -> u64 {
        self.sys.limit
    }

    fn charged(&self) -> u64 {
        self.sys.charged
    }

    fn own(&self) -> u64 {
        self.words().charged
    }

    fn live(&self) -> u64 {
        self.sys.ledger.iter().filter(|words| words.live).count() as u64
    }

    fn weights_of_others(&self) -> u64 {
        let others = self.sys.ledger.iter().enumerate();
        let live = others.filter(|(pid, words)| *pid != self.pid && words.live);
        live.map(|(_, words)| FULL_WEIGHT - words.idleness).sum()
    }

    fn wanted_by_others(&self) -> u64 {
        let all: u64 = self.sys.ledger.iter().map(|words| words.wanted).sum();
        all - self.words().wanted
    }

    fn asked(&self) -> u64 {
        self.words().asked
    }

    fn unasked(&self) -> u64 {
        self.sys.unasked
    }

    fn debtors(&self) -> impl Iterator<Item = usize> {
        let others = self.sys.ledger.iter().enumerate();
        let owes = others.filter(|(pid, words)| *pid != self.pid && words.live && words.owed > 0);
        owes.map(|(pid, _)| pid)
    }

    fn owed_by(&self, debtor: usize) -> u64 {
        let words = &self.sys.ledger[debtor];
        words.owed.saturating_sub(words.due + words.asked)
    }

    fn paid_by(&self, debtor: usize) -> u32 {
        self.sys.ledger[debtor].paid
    }

    fn is_even(&self, debtor: usize) -> bool {
        let words = &self.sys.ledger[debtor];
        words.asked == 0 && words.due == 0
    }
}

impl<S: DerefMut<Target = System>> LedgerMut for Seat<S> {
    fn try_charge(&mut self, n: u64) -> bool {
        let fits = self.sys.charged + n <= self.sys.limit;
        if fits {
            self.add(n);
        }
        fits
    }

    fn charge_anyway(&mut self, n: u64) {
        self.add(n);
    }

    fn uncharge(&mut self, n: u64) {
        let own = self.own();
        assert!(
            own >= n,
            "{n} pages are given back, of {own} that were charged"
        );
        self.sys.charged -= n;
        self.sys.ledger[self.pid].charged -= n;
    }

    fn set_wanted(&mut self, n: u64, _anew: bool) {
        self.sys.ledger[self.pid].wanted = n;
    }

    fn set_weight(&mut self, weight: u64) {
        self.sys.ledger[self.pid].idleness = FULL_WEIGHT - weight;
    }

    fn set_debt(&mut self, owed: u64, due: u64, shared: u64, asked: u64) {
        let words = &mut self.sys.ledger[self.pid];
        (words.owed, words.due, words.shared) = (owed, due, shared);
        words.asked -= asked;
    }

    fn paid(&mut self, n: u64) {
        let words = &mut self.sys.ledger[self.pid];
        words.paid = words.paid.wrapping_add(n as u32);
    }

    fn ask_to_pay(&mut self, debtor: usize, n: u64) {
        self.sys.ledger[debtor].asked += n;
    }

    fn count_unasked(&mut self, n: u64) {
        self.sys.unasked += n;
    }
}

/// The pages of a process whose writes may wait.
struct Pages<'a> {
    mm: &'a mut Mm,
    space: &'a mut Space,
}

impl Protected for Pages<'_> {
    fn shared(&self, range: &PageRange) -> u64 {
        self.mm.shared_in(range)
    }

    fn unshare(&mut self, range: &PageRange) {
        self.mm.unshare(range);
    }

    fn open(&mut self, range: &PageRange, _: Vpn) -> Opening {
        if self.space.changing > 0 {
            return Opening::Again;
        }
        for page in range.start.0..range.end.0 {
            let at = page.checked_sub(self.space.base).map(|at| at as usize);
            if let Some(page) = at.and_then(|at| self.space.pages.get_mut(at)) {
                page.wp = false;
            }
            self.space.woken.push(page);
        }
        Opening::Done
    }
}

impl System {
    /// A process has begun.
    pub(crate) fn enter(&mut self, pid: usize) {
        self.ledger[pid].live = true;
    }

    /// A process has ended: the others of its family may still have pages that it was charged for, or was asked to pay
    /// for.
    pub(crate) fn pass_on(&mut self, pid: usize) {
        let mut left = self.ledger[pid].shared + self.ledger[pid].asked;
        self.ledger[pid] = Words::default();
        let seat = &mut Seat { sys: self, pid };
        for debtor in seat.debtors().collect::<Vec<_>>() {
            let pages = left.min(seat.owed_by(debtor));
            seat.ask_to_pay(debtor, pages);
            left -= pages;
        }
        seat.count_unasked(left);
    }
}

impl Space {
    /// A thread writes to the page: that copies it, if others have it too, and nobody has seen it.
    pub(crate) fn copies(&mut self, sys: &mut System, at: usize) {
        let page = &mut self.pages[at];
        page.shared = false;
        if std::mem::take(&mut page.id) > 0 && sys.families {
            sys.ledger[self.pid].unseen += 1;
        }
    }
}

impl Process {
    /// Writes wait until copies are paid for.
    pub(crate) fn waits_for_copies(&self) -> bool {
        !self.member.copies.is_empty()
    }

    /// A thread writes to a protected page.
    pub(crate) fn wait_for_copy(&mut self, at: usize, since: u64) {
        let page = self.space.vpn(at);
        self.member.copies.push(Copy { page, since });
    }

    /// The child shares all pages that are present with its parent.
    pub(crate) fn share_pages(&mut self, sys: &mut System, child: &mut Process) {
        for page in &mut self.space.pages {
            if page.present.is_some() && page.id == 0 {
                sys.ids += 1;
                page.id = sys.ids;
            }
        }
        for (page, of_child) in self.space.pages.iter().zip(&mut child.space.pages) {
            (of_child.id, of_child.wp) = (page.id, false);
        }
        let words = sys.ledger[self.space.pid];
        child.member.parent = Some(self.space.pid);
        child.member.parents = words.unseen;
        // Pages that were let through since the last fork are shared again.
        self.member.is_protected = false;
        sys.ledger[self.space.pid].protects = false;
    }

    /// Copies that nobody was asked to pay for, since the last look.
    fn unseen(&mut self, sys: &System) -> u64 {
        let member = &mut self.member;
        let own = sys.ledger[self.space.pid].unseen;
        let copied = own - std::mem::replace(&mut member.own, own);
        let copied = if member.is_protected { 0 } else { copied };
        let Some(parent) = member.parent else {
            return copied;
        };
        let words = sys.ledger[parent];
        if !words.live {
            // Its charge was passed on, if it knew of this child.
            return if member.is_known { copied } else { u64::MAX };
        }
        let unseen = std::mem::replace(&mut member.parents, words.unseen);
        let asked = member.parent_asked;
        member.parent_asked |= words.protects;
        let of_parent = match asked {
            true => 0,
            false => words.unseen - unseen,
        };
        copied + of_parent
    }

    /// The driver looks at its debts, and at those of the others.
    pub(crate) fn settle_debts(&mut self, sys: &mut System) {
        if !sys.families || self.fork != Fork::No {
            return;
        }
        let unseen = self.unseen(sys);
        let waits = self.mm.is_stalled() || !self.member.copies.is_empty();
        let needy = waits || self.mm.is_reclaiming();
        let shared = self.shared_pages();
        let pid = self.space.pid;
        let account = &mut self.space.account;
        let seat = &mut Seat {
            sys: &mut *sys,
            pid,
        };
        if account.owes() {
            account.on_due(unseen);
        }
        self.member.is_known = true;
        // What a process runs beside its faults is not simulated.
        let now = seat.sys.now;
        account.look_at_activity(seat, now, 0, needy);
        account.refresh(seat);
        account.pay(seat, shared);
        account.find_debtors(seat);
        account.ask(seat, needy, if waits { STALLED } else { 0 });
        self.space.charged = sys.ledger[pid].charged;
        self.look_at_grant(sys);
        let account = &mut self.space.account;
        let seat = &mut Seat {
            sys: &mut *sys,
            pid,
        };
        let is_shared = account.owes() || account.has_debtors();
        if is_shared != self.member.is_protected {
            self.member.is_protected = is_shared;
            seat.sys.ledger[pid].protects = is_shared;
            for page in &mut self.space.pages {
                page.wp = is_shared && page.mapping == Mapping::Managed && page.present.is_some();
            }
        }
    }

    /// Writes go on for whose copies there is room. As in the engine, the core has done its background work since the
    /// last call: it has given back the frames that came free for them.
    pub(crate) fn step_copies(&mut self, sys: &mut System) {
        if !sys.families || self.fork != Fork::No || self.member.copies.is_empty() {
            return;
        }
        let pid = self.space.pid;
        let seat = &mut Seat {
            sys: &mut *sys,
            pid,
        };
        let now = seat.sys.now;
        let pages = &mut Pages {
            mm: &mut self.mm,
            space: &mut self.space,
        };
        // Frames of due pages are not charged.
        let due = pages.space.account.debt().due();
        let free = pages.mm.free_frames().saturating_sub(due);
        let (before, asked) = (seat.sys.charged, pages.space.account.uncopied());
        let mut account = std::mem::take(&mut pages.space.account);
        let copies = &mut self.member.copies;
        copies.step(&mut account, seat, now, pages);
        self.space.account = account;
        self.space.charged = sys.ledger[pid].charged;
        let passed = sys.charged.saturating_sub(sys.limit);
        assert!(
            before > sys.limit || passed.min(asked) == 0 || free < passed,
            "{passed} pages were copied beyond the limit, beside {free} free frames"
        );
        sys.excuse();
        self.call(sys, |_, _| ());
    }
}

impl Process {
    /// Pages of its debt that it will pay for, once it has looked at what it was asked for and what was copied.
    fn will_pay(&self, sys: &System) -> u64 {
        let (debt, member) = (self.space.account.debt(), &self.member);
        let words = &sys.ledger[self.space.pid];
        let own = match member.is_protected {
            true => 0,
            false => words.unseen - member.own,
        };
        let of_parent = match member.parent.map(|parent| &sys.ledger[parent]) {
            None => 0,
            Some(parent) if !parent.live && !member.is_known => u64::MAX / 2,
            Some(parent) if !parent.live => 0,
            Some(_) if member.parent_asked => 0,
            Some(parent) => parent.unseen - member.parents,
        };
        let unasked = sys.unasked - debt.unasked();
        debt.owed()
            .min(debt.due() + words.asked + own + of_parent + unasked)
    }
}

/// The rule of families: each different page in memory is charged, or will be paid for.
pub(crate) fn charged_for(sys: &System, processes: &[Process]) {
    let mut shared = BTreeSet::new();
    let mut there = 0;
    for process in processes {
        there += process.space.frames.iter().flatten().count() as u64;
        for (page, cell) in process.space.pages.iter().zip(&process.cells) {
            // A discarded page stays for a moment.
            let kept = process.is_bare() || page.mapping == Mapping::Managed;
            let stays = cell.changing == 0 && kept;
            let is_there = stays && page.present.is_some();
            there += u64::from(is_there && (page.id == 0 || shared.insert(page.id)));
        }
    }
    let debts = processes.iter().map(|process| process.will_pay(sys));
    let debts: u64 = debts.sum();
    let uncharged: u64 = processes.iter().map(Process::uncharged).sum();
    assert!(
        there <= sys.charged + debts + uncharged,
        "{there} different pages are in memory, {} are charged and {debts} will be paid for: {}",
        sys.charged,
        processes
            .iter()
            .map(|process| process.account_state(sys))
            .collect::<Vec<_>>()
            .join("; "),
    );
}

impl Process {
    /// Its account, for messages.
    fn account_state(&self, sys: &System) -> String {
        let words = &sys.ledger[self.space.pid];
        let pages = || self.space.pages.iter();
        format!(
            "process {} (parent {:?}, bare: {}) has {} pages, {} of them shared, and {} charged; it owes {:?}, is asked for {} and published {} shared",
            self.space.pid,
            self.member.parent,
            self.is_bare(),
            pages().filter(|page| page.present.is_some()).count(),
            pages().filter(|page| page.id > 0).count(),
            words.charged,
            self.space.account.debt(),
            words.asked,
            words.shared,
        )
    }
}

#[cfg(test)]
mod tests;
