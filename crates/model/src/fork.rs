//! The steps of a fork as a driver executes them, and the end of a process.

use std::ops::Range;

use foreswap_core::units::Vpn;
use foreswap_core::{Advice, Stored};

use crate::bare::Bare;
use crate::family::Seat;
use crate::process::{Fork, Process};
use crate::space::Mapping;
use crate::system::System;

impl Process {
    /// A thread is about to fork; [`Process::try_snapshot`] continues when it is its turn.
    pub fn hold(&mut self, sys: &mut System) {
        self.forking += 1;
        self.begin_fork(sys);
    }

    fn begin_fork(&mut self, sys: &mut System) {
        if !self.forks.begin(()) {
            return;
        }
        self.space.returned.clear();
        let pid = self.space.pid;
        self.member.unasked = self.space.account.begin_fork(&mut Seat {
            sys: &mut *sys,
            pid,
        });
        self.call(sys, |mm, _| mm.hold());
        self.fork = match self.is_bare() {
            true => self.fork_bare(),
            false => Fork::Held,
        };
    }

    /// Take the snapshot, if the core is quiet.
    pub fn try_snapshot(&mut self, sys: &mut System) {
        if self.call(sys, |mm, w| mm.is_quiet(w)) && self.settled() {
            let mut pages = Vec::new();
            // Earlier returns do not count.
            self.space.returned.clear();
            self.call(sys, |mm, w| {
                mm.unmapped(&mut pages);
                mm.share(w, &pages);
            });
            self.forks.hold();
            self.fork = Fork::Taken(pages);
        }
    }

    /// The fork is over; the next one begins.
    fn release(&mut self, sys: &mut System) {
        self.forking -= 1;
        let next = self.forks.release();
        self.space.account.end_fork();
        self.call(sys, |mm, _| mm.release());
        self.extend_grant(sys);
        if next.is_some() {
            self.begin_fork(sys);
        }
    }

    /// The kernel refuses the fork.
    pub(crate) fn fork_fails(&mut self, sys: &mut System) {
        self.fork = Fork::No;
        for slot in self.space.shares.drain(..) {
            sys.put(slot);
        }
        self.release(sys);
    }

    /// Pages discarded after the snapshot read as zeros in the child as well.
    pub fn forget_snapshot(&mut self, sys: &mut System, range: &Range<Vpn>) {
        let Fork::Taken(pages) = &mut self.fork else {
            return;
        };
        let shares = &mut self.space.shares;
        pages.retain(|(page, stored)| {
            let keep = !range.contains(page);
            if let (false, Stored::In(slot)) = (keep, stored) {
                let at = shares.iter().position(|s| s == slot);
                shares.swap_remove(at.expect("a share of the child to come"));
                sys.put(*slot);
            }
            keep
        });
    }

    /// The fork itself: a child with its own memory manager.
    pub fn forked(&mut self, sys: &mut System) -> Option<Process> {
        let Fork::Taken(snapshot) = std::mem::replace(&mut self.fork, Fork::No) else {
            return None;
        };
        let mut child = Process::new(sys, self.setup);
        for page in &mut self.space.pages {
            page.shared |= page.present.is_some();
        }
        child.space.pages.clone_from(&self.space.pages);
        self.share_pages(sys, &mut child);
        for page in &mut child.space.pages {
            // Locks and pins are not inherited.
            page.locked = false;
            page.pinned = false;
        }
        child.cells.clone_from(&self.cells);
        child.hints.clone_from(&self.hints);
        child.only_read(self.space.reads, self.space.protected);
        for slot in self.space.shares.drain(..) {
            *child.space.refs_mut(slot) += 1;
        }
        let of_files = self
            .mm
            .regions()
            .filter_map(|vma| Some((vma.range.clone(), vma.backing()?)));
        let of_files: Vec<_> = of_files.collect();
        let regions = self.mm.regions().map(|vma| (vma.range.clone(), vma.hint));
        let regions: Vec<_> = regions.collect();
        let mut present = Vec::new();
        for (at, page) in child.space.pages.iter().enumerate() {
            if page.mapping == Mapping::Managed && page.present.is_some() {
                present.push(child.space.range(&(at..at + 1)));
            }
        }
        let guards: Vec<_> = (0..child.space.pages.len())
            .filter(|&at| child.space.pages[at].guard)
            .map(|at| child.space.range(&(at..at + 1)))
            .collect();
        let returned = std::mem::take(&mut self.space.returned);
        child.space.lenient = true;
        child.fork = Fork::Held;
        if sys.families {
            child.space.account.begin_debt(0, self.member.unasked);
        }
        if self.is_bare() {
            child.bare = Some(Bare::default());
            child.extend_grant(sys);
        }
        child.call(sys, |mm, w| {
            for (range, hint) in &regions {
                mm.adopt(w, range.clone(), &[]);
                mm.advise(w, range, Advice::Use(*hint));
            }
            for &(page, stored) in &snapshot {
                let back = returned.contains(&page) && present.iter().any(|r| r.start == page);
                mm.inherit(w, page, stored, back);
            }
            if let Some((first, _)) = regions.first() {
                mm.adopt(w, first.clone(), &present);
            }
            for (range, first) in &of_files {
                mm.map_file(range, *first);
            }
            for guard in &guards {
                mm.guard(w, guard);
            }
        });
        child.fork = Fork::No;
        child.space.account.close_debt();
        if let Some(area) = sys.draining {
            child.call(sys, |mm, w| mm.drain(w, area));
        }
        self.release(sys);
        Some(child)
    }

    /// The process ends in some way: the supervisor cleans up after it.
    pub fn exit(mut self, sys: &mut System) {
        if let Fork::Taken(_) = self.fork {
            for slot in self.space.shares.drain(..) {
                sys.put(slot);
            }
        }
        sys.charged -= self.space.charged;
        sys.pressure[self.space.pid] = 0;
        sys.out_of_slots[self.space.pid] = false;
        sys.pass_on(self.space.pid);
        sys.leave(self.space);
    }
}
