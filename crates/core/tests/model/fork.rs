//! The steps of a fork as a driver takes them, and the end of a process.

use std::ops::Range;

use foreswap_core::units::{Slot, Vpn};
use foreswap_core::{Advice, Stored};

use super::process::{Fork, Process};
use super::space::Mapping;
use super::system::System;

impl Process {
    /// Begin a fork; [`Process::try_snapshot`] continues it.
    pub fn hold(&mut self, sys: &mut System) {
        self.fork = Fork::Held;
        self.space.returned.clear();
        self.call(sys, |mm, _| mm.hold());
    }

    pub fn try_snapshot(&mut self, sys: &mut System) {
        if self.call(sys, |mm, w| mm.is_quiet(w)) && self.settled() {
            let mut pages = Vec::new();
            // Pages that came back before do not count.
            self.space.returned.clear();
            self.call(sys, |mm, w| {
                mm.unmapped(&mut pages);
                mm.share(w, &pages);
            });
            self.fork = Fork::Taken(pages);
        }
    }

    /// Memory that was discarded after the snapshot reads as zeros in the child as well.
    pub fn forget_snapshot(&mut self, sys: &mut System, range: &Range<Vpn>) {
        let Fork::Taken(pages) = &mut self.fork else {
            return;
        };
        let shares = &mut self.space.shares;
        pages.retain(|(page, stored)| {
            let keep = !range.contains(page);
            if let (false, Stored::In(slot)) = (keep, stored) {
                let at = shares.iter().position(|s| s == slot);
                shares.swap_remove(at.expect("a share"));
                sys.put(*slot);
            }
            keep
        });
    }

    /// The fork itself: a child with a memory manager of its own.
    pub fn forked(&mut self, sys: &mut System) -> Option<Process> {
        let Fork::Taken(snapshot) = std::mem::replace(&mut self.fork, Fork::No) else {
            return None;
        };
        let mut child = Process::new(sys, self.config, self.cells.len(), self.threads.len());
        for page in &mut self.space.pages {
            page.shared |= page.present.is_some();
        }
        child.space.pages.clone_from(&self.space.pages);
        for page in &mut child.space.pages {
            // Locks and pins are not inherited.
            page.locked = false;
            page.pinned = false;
        }
        child.cells.clone_from(&self.cells);
        child.hints.clone_from(&self.hints);
        for slot in self.space.shares.drain(..) {
            *child.space.refs_mut(slot) += 1;
        }
        let regions = self.mm.regions().map(|vma| (vma.range.clone(), vma.hint));
        let regions: Vec<_> = regions.collect();
        let mut present = Vec::new();
        for (at, page) in child.space.pages.iter().enumerate() {
            if page.mapping == Mapping::Managed && page.present.is_some() {
                present.push(child.space.range(&(at..at + 1)));
            }
        }
        let returned = std::mem::take(&mut self.space.returned);
        child.space.lenient = true;
        child.fork = Fork::Held;
        child.call(sys, |mm, w| {
            for (range, hint) in &regions {
                mm.adopt(w, range.clone(), &[]);
                mm.advise(w, range, Advice::Use(*hint));
            }
            for &(page, stored) in &snapshot {
                let back = returned.contains(&page) && present.iter().any(|r| r.start == page);
                mm.inherit(w, page, stored, back);
            }
            let Some((first, _)) = regions.first() else {
                return;
            };
            mm.adopt(w, first.clone(), &present);
        });
        child.fork = Fork::No;
        if let Some(area) = sys.draining {
            child.drain(sys, area);
        }
        self.call(sys, |mm, _| mm.release());
        Some(child)
    }

    /// The process ends: the supervisor cleans up after it.
    pub fn exit(mut self, sys: &mut System) {
        if let Fork::Taken(_) = self.fork {
            for slot in self.space.shares.drain(..) {
                sys.put(slot);
            }
        }
        for flight in self.space.flights.iter().filter(|flight| flight.write) {
            for i in 0..flight.frames.len() {
                let area = &mut sys.areas[usize::from(flight.slot.area)];
                area.writing[flight.slot.index as usize + i] -= 1;
            }
        }
        for (area, refs) in (0u8..).zip(&self.space.refs) {
            let state = &mut sys.areas[usize::from(area)];
            for claim in &mut state.claims {
                if *claim == Some(self.space.pid) {
                    *claim = None;
                }
            }
            for (index, &n) in (0u32..).zip(refs) {
                for _ in 0..n {
                    sys.put(Slot { area, index });
                }
            }
        }
        sys.charged -= self.space.charged;
        sys.pressure[self.space.pid] = 0;
    }
}
