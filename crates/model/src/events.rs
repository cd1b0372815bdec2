//! Changes of the address space on their way to the core: the event is read, its thread continues, and the pages of a
//! discard vanish even later. A read meanwhile may see either.

use std::ops::Range;

use foreswap_core::units::Nanos;
use foreswap_core::{Entry, Hint};

use crate::patience::Kept;
use crate::process::Process;
use crate::system::System;

/// The longest time of the kernel for a discard.
const ZAP: Nanos = 5_000_000_000;

/// An unread event of the address space.
#[derive(Clone)]
pub enum Event {
    /// madvise(MADV_DONTNEED).
    Discard(Range<usize>),
    /// munmap.
    Unmap(Range<usize>),
    /// mremap.
    Remap(Range<usize>, usize),
}

impl Process {
    /// A thread waits until the driver has read its event.
    pub(crate) fn send(&mut self, event: Event) {
        self.space.changing += 1;
        self.events.push_back(event);
    }

    /// The driver reads an event.
    pub fn read_event(&mut self, sys: &mut System) {
        let Some(event) = self.events.pop_front() else {
            return;
        };
        self.acks.push_back(event.clone());
        self.wait_anew(&event);
        let space = &self.space;
        match &event {
            Event::Discard(range) => {
                self.discards_since.get_or_insert(sys.now);
                let range = space.range(range);
                self.call(sys, |mm, w| mm.discard(w, &range));
                self.forget_snapshot(sys, &range);
            }
            Event::Unmap(range) => {
                self.hints[range.clone()].fill(Hint::Normal);
                let range = space.range(range);
                self.call(sys, |mm, w| mm.unmap(w, &range));
            }
            Event::Remap(from, to) => {
                self.hints.copy_within(from.clone(), *to);
                self.hints[from.clone()].fill(Hint::Normal);
                let (from, to) = (space.range(from), space.vpn(*to));
                self.call(sys, |mm, w| mm.remap(w, &from, to));
            }
        }
    }

    /// The program removes a page for which a thread waits: the thread faults anew, and its wait begins anew.
    fn wait_anew(&mut self, event: &Event) {
        let (range, target) = match event {
            Event::Discard(range) | Event::Unmap(range) => (range, 0..0),
            Event::Remap(from, to) => (from, *to..to + from.len()),
        };
        for wait in self.threads.iter_mut().flatten() {
            if range.contains(&wait.at) || target.contains(&wait.at) {
                wait.kept = Kept::default();
            }
        }
    }

    /// The thread of a read event continues.
    pub fn acknowledge(&mut self) {
        let Some(event) = self.acks.pop_front() else {
            return;
        };
        self.space.changing -= 1;
        match event {
            Event::Discard(range) => self.zaps.push(range),
            Event::Unmap(range) => self.changing(&range, false),
            Event::Remap(from, to) => self.changing(&(to..to + from.len()), false),
        }
    }

    /// The pages of a discard vanish.
    pub fn zap(&mut self) {
        if self.zaps.is_empty() {
            return;
        }
        let range = self.zaps.swap_remove(0);
        for at in range.clone() {
            let (page, cell) = (&mut self.space.pages[at], &mut self.cells[at]);
            page.present = None;
            page.poisoned = false;
            (page.shared, page.id, page.wp) = (false, 0, false);
            // Touched, evicted and lost since the event was read: it stays lost.
            cell.lost &= self.mm.entry(self.space.vpn(at)) == Entry::Poisoned;
            cell.discarding = false;
            cell.taken = false;
            if !cell.written {
                cell.value = cell.base();
                cell.maybe_zero = false;
            }
            cell.written = false;
        }
        self.changing(&range, false);
    }

    pub(crate) fn changing(&mut self, range: &Range<usize>, changing: bool) {
        for cell in &mut self.cells[range.clone()] {
            if changing {
                cell.changing += 1;
            } else {
                cell.changing -= 1;
            }
        }
    }

    /// A change of the address space is in progress in `range`.
    pub fn busy(&self, range: &Range<usize>) -> bool {
        self.cells[range.clone()]
            .iter()
            .any(|cell| cell.changing > 0)
    }

    /// No event is pending.
    pub fn settled(&self) -> bool {
        self.events.is_empty() && self.acks.is_empty() && self.zaps.is_empty()
    }

    /// No thread waits for a CPU for longer than this between the end of its wait and its discard.
    pub(crate) fn end_discards(&mut self, now: Nanos) {
        if self.zaps.is_empty() && self.acks.is_empty() {
            self.discards_since = None;
        }
        if self.discards_since.is_some_and(|since| now - since > ZAP) {
            while !self.acks.is_empty() {
                self.acknowledge();
            }
            while !self.zaps.is_empty() {
                self.zap();
            }
            self.discards_since = None;
        }
    }
}
