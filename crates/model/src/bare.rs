//! A process whose memory is not managed yet: see `foreswap_core::process::Grant`.
//!
//! The driver does as the engine does: all memory that the program could touch is charged before it grows, and the core
//! knows of none of it. The process is armed when that is impossible, when others need the memory, or when copies of
//! shared pages have to be known. The rule is the one of families: no page is in memory that no process is charged for.

use std::ops::Range;

use foreswap_core::process::Grant;

use crate::family::Seat;
use crate::process::{Cell, Fork, Process};
use crate::space::{Mapping, Page};
use crate::step::Act;
use crate::system::System;

/// What the driver knows of a bare process.
#[derive(Default)]
pub struct Bare {
    pub(crate) grant: Grant,
    /// Pages that may still be mapped before the driver is told.
    allowance: u64,
    /// It grew while a fork was held, and is not charged for that yet.
    grew_under_fork: bool,
    /// The most pages that were present at a fork, if there was one.
    forked_with: Option<u64>,
}

impl Process {
    /// A process that begins bare, with these pages mapped.
    pub(crate) fn begin_bare(&mut self, sys: &mut System, mapped: Range<usize>) {
        self.bare = Some(Bare::default());
        self.map(mapped);
        self.extend_grant(sys);
    }

    /// Its memory is not managed.
    pub fn is_bare(&self) -> bool {
        self.bare.is_some()
    }

    /// Pages that the program could touch.
    fn touchable(&self) -> u64 {
        let pages = self.space.pages.iter();
        pages.filter(|page| page.mapping != Mapping::None).count() as u64
    }

    /// Pages that are charged, but not known to the core.
    pub(crate) fn granted(&self) -> u64 {
        let granted = self.bare.as_ref().map_or(0, |bare| bare.grant.pages());
        granted + self.space.account.prepaid()
    }

    /// Pages that the program may touch although they are not charged: the thread that mapped them waits, or has waited
    /// long enough.
    pub(crate) fn uncharged(&self) -> u64 {
        let grew = self.bare.as_ref().filter(|bare| bare.grew_under_fork);
        grew.map_or(0, |bare| {
            self.touchable().saturating_sub(bare.grant.pages())
        })
    }

    /// Pages that others may share, of those that this process is charged for.
    pub(crate) fn shared_pages(&self) -> u64 {
        match &self.bare {
            Some(bare) if bare.forked_with.is_some() => bare.grant.pages(),
            Some(_) => 0,
            None => self.mm.shared(),
        }
    }

    /// The process grew, or has begun: its memory is charged, or it is armed. Returns false if it has to wait.
    pub(crate) fn extend_grant(&mut self, sys: &mut System) -> bool {
        let need = self.touchable();
        let Some(bare) = &mut self.bare else {
            return true;
        };
        let pid = self.space.pid;
        let seat = &mut Seat {
            sys: &mut *sys,
            pid,
        };
        if let Some(spare) = bare.grant.extend(&self.space.account, seat, need) {
            (bare.allowance, bare.grew_under_fork) = (spare, false);
            self.space.charged = sys.ledger[pid].charged;
            return true;
        }
        if self.forks.is_held() {
            bare.grew_under_fork = true;
            return false;
        }
        self.arm(sys);
        true
    }

    /// From now on its memory is managed.
    pub(crate) fn arm(&mut self, sys: &mut System) {
        let Some(mut bare) = self.bare.take() else {
            return;
        };
        bare.grant.spend(&mut self.space.account);
        let mut at = 0;
        while at < self.space.pages.len() {
            let is_plain = |page: &Page| page.mapping == Mapping::Plain;
            let rest = &self.space.pages[at..];
            let n = rest.iter().take_while(|page| is_plain(page)).count();
            if n > 0 {
                self.adopt(sys, at..at + n);
            }
            at += n.max(1);
        }
        let pid = self.space.pid;
        if let Some(shared_then) = bare.forked_with {
            self.call(sys, |mm, _| mm.share_mapped());
            let shared = self.space.pages.iter().filter(|page| page.id > 0).count();
            let gone = shared_then.saturating_sub(shared as u64);
            self.space.account.on_gone(
                &mut Seat {
                    sys: &mut *sys,
                    pid,
                },
                gone,
            );
        }
        self.space.account.return_prepaid(&mut Seat {
            sys: &mut *sys,
            pid,
        });
        self.space.charged = sys.ledger[pid].charged;
        self.call(sys, |_, _| ());
    }

    /// Others need its memory, or copies have to be known.
    pub(crate) fn look_at_grant(&mut self, sys: &mut System) {
        if !self.is_bare() {
            return;
        }
        let pid = self.space.pid;
        let account = &self.space.account;
        let is_needed = account.excess(&Seat { sys: &*sys, pid }) > 0;
        if is_needed || account.owes() || account.has_debtors() {
            self.arm(sys);
        }
    }

    /// A bare process forks: the child assumes that all its memory is mapped.
    pub(crate) fn fork_bare(&mut self) -> Fork {
        self.forks.hold();
        let resident = self.space.pages.iter();
        let resident = resident.filter(|page| page.present.is_some()).count();
        if let Some(bare) = &mut self.bare {
            bare.forked_with = bare.forked_with.max(Some(resident as u64));
        }
        Fork::Taken(Vec::new())
    }

    /// The program changes the address space of a bare process: no event reports it.
    pub(crate) fn change_bare(&mut self, sys: &mut System, act: Act, range: Range<usize>) {
        let pages = &self.space.pages[range.clone()];
        let is_fixed = pages.iter().any(|page| page.locked || page.pinned);
        let is_mapped = pages.iter().all(|page| page.mapping == Mapping::Plain);
        match act {
            Act::Discard { .. } if is_mapped && !is_fixed => {
                for at in range {
                    let page = &mut self.space.pages[at];
                    (page.present, page.shared, page.id) = (None, false, 0);
                    self.cells[at] = Cell::default();
                }
            }
            Act::Free { .. } if !is_fixed => {
                self.silently_discard(range.clone());
                // Nothing is managed that could be missed.
                self.cells[range]
                    .iter_mut()
                    .for_each(|cell| cell.taken = false);
            }
            Act::Unmap { .. } => self.unmap_bare(range),
            Act::Remap { to, .. } if is_mapped => {
                let to = usize::from(to) % self.cells.len();
                let target = to..to + range.len();
                let apart = target.end <= range.start || range.end <= target.start;
                if apart && target.end <= self.cells.len() {
                    for (from, to) in range.zip(target) {
                        self.space.pages[to] = std::mem::take(&mut self.space.pages[from]);
                        self.cells[to] = std::mem::take(&mut self.cells[from]);
                    }
                }
            }
            Act::Map { .. } => {
                let before = self.touchable();
                self.map(range);
                let grown = self.touchable() - before;
                let allowed = self.bare.as_ref().map_or(0, |bare| bare.allowance);
                if grown > allowed {
                    if !self.extend_grant(sys) {
                        self.forks.delay_growth((), sys.now);
                    }
                } else if let Some(bare) = &mut self.bare {
                    bare.allowance -= grown;
                }
            }
            _ => {}
        }
    }

    fn unmap_bare(&mut self, range: Range<usize>) {
        for at in range {
            self.space.pages[at] = Page::default();
            self.cells[at] = Cell::default();
        }
    }

    /// Threads whose memory grew while a fork was held wait no longer.
    pub(crate) fn step_growth(&mut self, sys: &mut System) {
        if self.forks.delays_growth() && !self.forks.end_delay(sys.now).is_empty() {
            self.extend_grant(sys);
        }
    }
}
