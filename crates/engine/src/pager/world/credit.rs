//! What a forked child has in memory and has not been charged.
//!
//! The pages that a child finds in memory are its parent's as well: they are there once, and the parent is
//! charged for them. Which of them are the child's alone, because it wrote to them or because its parent
//! did, gave them up or ended, the kernel tells for the price of a walk. So:
//!
//! - What the child writes to is charged before it is copied (`pager/copies.rs`). Before its engine was there,
//!   or where the kernel cannot protect pages, each fault that brought no data may have copied one.
//! - What the parent writes to it copies, and the page of before is the child's alone. So the parent protects its
//!   pages as well, and asks the child to pay before it writes. Until it knows of the child's debt each of its faults
//!   may have copied a page; when it has ended all are the child's.
//! - After a moment the child pays for the rest, as room comes about: it asks the others for its share, and
//!   what it holds above that it moves out. Then nothing that either does can pass the limit.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::Nanos;
use foreswap_core::world::Limit;

use rustix::io::Errno;

use super::{Linux, MOST_WANTED, now};
use crate::ledger::{Ledger, ProcId};
use crate::sys::host;
use crate::sys::uffd::Mode;

/// How long a child may share pages before it has to pay for them.
const GRACE: Nanos = 250_000_000;
/// More pages than anybody copies.
const ENDED: u64 = u64::MAX / 2;
/// Pages that a parent asks its children to pay for at a time.
const AT_ONCE: u32 = 256;

/// How many pages that a child shares with its parent either may have copied.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    child: Faults,
    parent: Faults,
    /// The parent's engine, as soon as it is known.
    engine: Option<Engine>,
}

/// The engine of the parent.
#[derive(Clone, Copy, Debug)]
struct Engine {
    ledger: &'static Ledger,
    record: ProcId,
    /// How many of the pages that it has copied were counted.
    counted: u64,
}

impl Engine {
    /// Pages that it has copied since the last time so that they could be evicted.
    fn more(&mut self) -> u64 {
        let all = self.ledger.stats(self.record).unshared.load(Relaxed);
        all.saturating_sub(core::mem::replace(&mut self.counted, all))
    }
}

/// The faults of a process, as far as they were counted.
#[derive(Clone, Debug, Default)]
struct Faults {
    pid: u32,
    counted: u64,
}

impl Faults {
    /// Those since the last time. All that there could be if the process has ended.
    fn more(&mut self) -> u64 {
        let faults = host::faults(self.pid).unwrap_or(u64::MAX);
        faults.saturating_sub(core::mem::replace(&mut self.counted, faults))
    }
}

impl Copying {
    /// From now on for the parent, from its birth on for the child.
    pub fn begin(child: u32, parent: u32) -> Self {
        let mut parent = Faults {
            pid: parent,
            counted: 0,
        };
        let _ = parent.more();
        let child = Faults {
            pid: child,
            counted: 0,
        };
        Copying {
            child,
            parent,
            engine: None,
        }
    }

    /// Also what the parent's engine copies, beyond those that it had copied when it forked.
    pub fn know_parent(&mut self, ledger: &'static Ledger, me: ProcId, copied: u64) {
        let mut records = ledger.records_in_use();
        let parent = records.find(|&record| ledger.pid(record) == self.parent.pid);
        // One that was bare when it forked left no word of itself.
        if let (Some(parent), None) = (parent, ledger.parent(me)) {
            ledger.set_parent(me, parent);
        }
        self.engine = parent.map(|record| Engine {
            ledger,
            record,
            counted: copied,
        });
    }

    /// Pages that may have been copied since the last time; by the parent alone if what the child copies is paid for
    /// beforehand.
    pub fn more(&mut self, is_protected: bool) -> u64 {
        let own = if is_protected { 0 } else { self.child.more() };
        let unshared = self.engine.as_mut().map_or(0, Engine::more);
        let parents = self.parent.more().saturating_add(unshared);
        let asks = |engine: Engine| engine.ledger.protects(engine.record);
        // A parent that has ended asks for nothing any more.
        let counts = parents > ENDED || !self.engine.is_some_and(asks);
        own.saturating_add(if counts { parents } else { 0 })
    }
}

/// A child's debt.
#[derive(Debug, Default)]
pub struct Credit {
    /// What is found in memory is put on it.
    open: bool,
    /// Pages that are in memory and not charged.
    owed: u64,
    /// Of them, those that may have been copied already, or are about to be.
    copied: u64,
    /// Of them, those that were copied to be moved out.
    unshared: u64,
    /// What has copied them.
    copying: Copying,
    /// When the rest is to be paid.
    until: Nanos,
}

impl Credit {
    /// From now on what is found is not charged.
    pub fn begin(&mut self, copying: Copying, copied: u64) {
        self.open = true;
        (self.copying, self.copied) = (copying, copied);
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
        self.pay();
        if self.owes() {
            // For the parent to see it.
            self.ledger.raise_pressure();
        }
    }

    /// Register memory of the program, all of it in the same way.
    pub fn register(&self, start: usize, len: usize) -> Result<(), Errno> {
        let mode = match self.is_protected {
            true => Mode::MISSING | Mode::WP,
            false => Mode::MISSING,
        };
        self.program.register(start, len, mode)
    }

    fn count_copies(&mut self) {
        let copied = self.credit.copying.more(self.is_protected);
        self.credit.copied = self.credit.copied.saturating_add(copied);
    }

    /// Charge `n` of the pages that are owed, if there is room for them, or `anyway`.
    pub fn pay_for(&mut self, n: u64, anyway: bool) -> bool {
        let n = n.min(self.credit.owed);
        let paid = self.try_charge(n) || self.ledger.try_charge(self.me, n);
        if !paid && anyway {
            self.ledger.charge_anyway(self.me, n);
        }
        if paid || anyway {
            self.credit.owed -= n;
            self.ledger.pays(self.me, n);
        }
        paid || anyway
    }

    /// Some pages are not paid for.
    pub fn owes(&self) -> bool {
        self.credit.owed > 0
    }

    /// What is missing to pay what is due, as far as it is this process' share.
    pub fn missing_to_pay(&self) -> u64 {
        let charged = self.ledger.process_charged(self.me);
        let missing = self.fair_share().saturating_sub(charged);
        self.credit.due().min(missing).min(MOST_WANTED)
    }

    /// Charge what is due, as far as there is room for it, and all where there is plenty. Tells the supervisor and the parent what is left.
    pub fn pay(&mut self) {
        if self.credit.owed > 0 {
            self.count_copies();
        }
        let asked = self.ledger.asked(self.me);
        self.credit.copied = self.credit.copied.saturating_add(asked.into());
        // All there is: what all have together may be the limit, with nothing to spare.
        let room = self
            .ledger
            .limit_pages()
            .saturating_sub(self.ledger.charged_pages());
        let due = match room / 2 > self.credit.owed {
            true => self.credit.owed,
            false => self.credit.due().min(room),
        };
        if due > 0 && self.ledger.try_charge(self.me, due) {
            self.credit.owed -= due;
            self.ledger.pays(self.me, due);
            self.credit.copied = self.credit.copied.saturating_sub(due);
        }
        let due = self.credit.due();
        self.ledger.set_owed(self.me, self.credit.owed, due, asked);
    }
}

/// A child that was asked to pay.
#[derive(Clone, Copy, Debug)]
struct Asked {
    child: ProcId,
    /// What it had paid for before.
    paid: u32,
}

/// A parent's view of the children that share pages with it.
#[derive(Debug, Default)]
pub struct Debtors {
    /// They have debts.
    children: Vec<ProcId>,
    /// The one that was asked and has not paid for as much yet.
    asked: Option<Asked>,
    /// Pages that may be copied, as they are paid for.
    paid: u64,
}

impl Linux {
    /// Look whether some children share what is not paid for.
    pub fn find_debtors(&mut self) {
        self.debtors.children.clear();
        self.debtors.children.extend(self.ledger.debtors(self.me));
    }

    /// Pages are shared with children that have not paid for them.
    pub fn has_debtors(&self) -> bool {
        !self.debtors.children.is_empty()
    }

    /// Whether `n` pages that children share may be copied, as one of these has paid for them, which is asked for that, or
    /// `anyway`.
    pub fn may_copy(&mut self, n: u64, anyway: bool) -> bool {
        let debtors = &mut self.debtors;
        let Some(&first) = debtors.children.first() else {
            return true;
        };
        if let Some(Asked { child, paid }) = debtors.asked {
            // Whatever it paid for, there is room made for as much.
            let has_paid =
                self.ledger.is_even(child) || self.ledger.paid(child).wrapping_sub(paid) >= AT_ONCE;
            if anyway || has_paid || !debtors.children.contains(&child) {
                debtors.asked = None;
                debtors.paid += u64::from(AT_ONCE);
            }
        }
        if debtors.asked.is_none() && debtors.paid < u64::from(AT_ONCE / 2) {
            let paid = self.ledger.paid(first);
            debtors.asked = Some(Asked { child: first, paid });
            self.ledger.ask_to_pay(first, AT_ONCE);
        }
        let may = debtors.paid >= n;
        debtors.paid -= if may { n } else { 0 };
        may
    }

    /// `n` pages are copied so that they can be moved out: what is left of them is a child's alone.
    pub(super) fn leaves(&mut self, n: u32) {
        if let Some(&child) = self.debtors.children.first() {
            self.ledger.ask_to_pay(child, n);
        }
    }
}
