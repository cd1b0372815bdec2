//! The debt of a forked child: pages in its memory that it has not been charged for.
//!
//! The pages that a child finds in memory are also its parent's. They exist once, and the parent is charged for them.
//! A page becomes the child's alone when the child writes to it, or when the parent writes to it, discards it or
//! ends. The kernel reports this only through a walk of the page tables. Therefore:
//!
//! - A write of the child is charged before it copies (`pager/copies.rs`). Before the child's engine has started, or
//!   if the kernel cannot protect pages, each fault that brought no data may have copied a page.
//! - A write of the parent copies, and leaves the old page to the child alone. The parent protects its pages too, and
//!   asks the child to pay before the write. Until it knows of the child's debt, each of its faults may have copied a
//!   page. When the parent has ended, all pages are the child's.
//! - After a grace period the child pays for the rest, as room becomes available: it asks the others for its share,
//!   and evicts pages above it. Then no write of either side can exceed the limit.

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
/// More pages than any process copies.
const ENDED: u64 = u64::MAX / 2;
/// Pages that a parent asks a child to pay for at a time.
const AT_ONCE: u32 = 256;

/// The number of pages shared by child and parent that either may have copied.
#[derive(Clone, Debug, Default)]
pub struct Copying {
    child: Faults,
    parent: Faults,
    /// The parent's engine, once it is known.
    engine: Option<Engine>,
}

/// The engine of the parent.
#[derive(Clone, Copy, Debug)]
struct Engine {
    ledger: &'static Ledger,
    record: ProcId,
    /// The number of its copied pages that were counted.
    counted: u64,
}

impl Engine {
    /// Pages copied for eviction since the last call.
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
    /// Faults since the last call; `ENDED` if the process has ended.
    fn more(&mut self) -> u64 {
        let faults = host::faults(self.pid).unwrap_or(u64::MAX);
        faults.saturating_sub(core::mem::replace(&mut self.counted, faults))
    }
}

impl Copying {
    /// Counts from now on for the parent, from its birth on for the child.
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

    /// Also count the copies of the parent's engine, beyond its count at the fork.
    pub fn know_parent(&mut self, ledger: &'static Ledger, me: ProcId, copied: u64) {
        let mut records = ledger.records_in_use();
        let parent = records.find(|&record| ledger.pid(record) == self.parent.pid);
        // A parent that was bare when it forked left no snapshot that names its record.
        if let (Some(parent), None) = (parent, ledger.parent(me)) {
            ledger.set_parent(me, parent);
        }
        self.engine = parent.map(|record| Engine {
            ledger,
            record,
            counted: copied,
        });
    }

    /// Pages that may have been copied since the last call; only by the parent if the child's copies are paid in
    /// advance.
    pub fn more(&mut self, is_protected: bool) -> u64 {
        let own = if is_protected { 0 } else { self.child.more() };
        let unshared = self.engine.as_mut().map_or(0, Engine::more);
        let parents = self.parent.more().saturating_add(unshared);
        let asks = |engine: Engine| engine.ledger.protects(engine.record);
        // An ended parent makes no requests.
        let counts = parents > ENDED || !self.engine.is_some_and(asks);
        own.saturating_add(if counts { parents } else { 0 })
    }
}

/// A child's debt.
#[derive(Debug, Default)]
pub struct Credit {
    /// Pages found in memory are added to the debt.
    open: bool,
    /// Pages in memory that are not charged.
    owed: u64,
    /// Of these, pages that may have been copied already, or are about to be.
    copied: u64,
    /// Of these, pages that were copied for eviction.
    unshared: u64,
    /// The counters of copies.
    copying: Copying,
    /// When the rest is due.
    until: Nanos,
}

impl Credit {
    /// From now on, pages found in memory are not charged.
    pub fn begin(&mut self, copying: Copying, copied: u64) {
        self.open = true;
        (self.copying, self.copied) = (copying, copied);
    }

    /// `n` pages were found. Returns whether they are on credit.
    pub(super) fn takes(&mut self, n: u64) -> bool {
        self.owed += if self.open { n } else { 0 };
        self.open
    }

    /// `n` pages are copied for eviction, which needs no room.
    pub(super) fn unshares(&mut self, n: u64) {
        self.unshared = (self.unshared + n).min(self.owed);
    }

    /// `n` pages have gone, of a process that is charged for `paid`. Returns the estimated number of them that were
    /// paid for.
    pub(super) fn forgives(&mut self, n: u64, paid: u64) -> u64 {
        let unpaid = n.min(self.unshared).max(n.saturating_sub(paid));
        let unpaid = unpaid.min(self.owed);
        self.unshared -= unpaid.min(self.unshared);
        self.owed -= unpaid;
        n - unpaid
    }

    /// Pages that are due now.
    pub(super) fn due(&self) -> u64 {
        match self.owed > 0 && now() >= self.until {
            true => self.owed,
            false => self.copied.min(self.owed),
        }
    }
}

impl Linux {
    /// All pages were found: the copies of the child so far are charged, the rest later.
    pub fn begin_to_pay(&mut self) {
        self.credit.open = false;
        self.credit.until = now() + GRACE;
        self.pay();
        if self.owes() {
            // Make the parent look at it.
            self.ledger.raise_pressure();
        }
    }

    /// Register memory of the program, always in the same mode.
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

    /// Charge `n` of the owed pages, if there is room for them, or `anyway`.
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

    /// Pages missing to pay the due debt, within the fair share of this process.
    pub fn missing_to_pay(&self) -> u64 {
        let charged = self.ledger.process_charged(self.me);
        let missing = self.fair_share().saturating_sub(charged);
        self.credit.due().min(missing).min(MOST_WANTED)
    }

    /// Charge the due pages as far as there is room, and all pages if there is plenty. Reports the rest to the
    /// supervisor and the parent.
    pub fn pay(&mut self) {
        if self.credit.owed > 0 {
            self.count_copies();
        }
        let asked = self.ledger.asked(self.me);
        self.credit.copied = self.credit.copied.saturating_add(asked.into());
        // All room counts: the processes together may use the whole limit.
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
    /// The number of pages that it had paid for before.
    paid: u32,
}

/// A parent's view of the children that share pages with it.
#[derive(Debug, Default)]
pub struct Debtors {
    /// The children with debts.
    children: Vec<ProcId>,
    /// The child that was asked and has not paid yet.
    asked: Option<Asked>,
    /// Pages that are paid for and may be copied.
    paid: u64,
}

impl Linux {
    /// Find the children that share unpaid pages.
    pub fn find_debtors(&mut self) {
        self.debtors.children.clear();
        self.debtors.children.extend(self.ledger.debtors(self.me));
    }

    /// Some children share unpaid pages.
    pub fn has_debtors(&self) -> bool {
        !self.debtors.children.is_empty()
    }

    /// Whether `n` pages shared by children may be copied: a child has paid for them (and is asked to if not), or
    /// `anyway`.
    pub fn may_copy(&mut self, n: u64, anyway: bool) -> bool {
        let debtors = &mut self.debtors;
        let Some(&first) = debtors.children.first() else {
            return true;
        };
        if let Some(Asked { child, paid }) = debtors.asked {
            // Whichever pages it paid for, there is room for as many.
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

    /// `n` pages are copied for eviction: the originals are a child's alone.
    pub(super) fn leaves(&mut self, n: u32) {
        if let Some(&child) = self.debtors.children.first() {
            self.ledger.ask_to_pay(child, n);
        }
    }
}
