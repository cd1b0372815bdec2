//! One modelled process with its driver: threads, pending events, and the core under test.
//!
//! The oracle knows the expected content of each page. A discard takes time: the event is read, the thread continues,
//! then the pages vanish. A read meanwhile may see either content.

use std::collections::VecDeque;
use std::ops::Range;

use foreswap_core::units::{Slot, Vpn};
use foreswap_core::world::Notice;
use foreswap_core::{Advice, Config, Entry, Hint, Mm, Outcome, Stored};

use super::mmu::View;
use super::space::{Ended, Mapping, Page, Space};
use super::system::System;

/// The expected content of a page.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    pub value: u64,
    /// Zero would be right too: a discard ran beside the write.
    pub maybe_zero: bool,
    /// A discard of the page is under way.
    pub discarding: bool,
    /// It was written while a discard was under way.
    pub written: bool,
    /// A change of the address space is under way here.
    pub changing: u8,
    /// A notice said that the content is lost.
    pub lost: bool,
    /// The kernel took the page away without an event, and it was not discarded since.
    pub taken: bool,
}

/// A thread that waits for a page.
#[derive(Clone, Copy)]
pub struct Wait {
    pub at: usize,
    pub write: Option<u64>,
}

/// An event of the address space that waits to be read.
#[derive(Clone)]
pub enum Event {
    Discard(Range<usize>),
    Unmap(Range<usize>),
    Remap(Range<usize>, usize),
}

/// Progress of a fork.
#[derive(PartialEq, Eq)]
pub enum Fork {
    No,
    Held,
    Taken(Vec<(Vpn, Stored)>),
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    Read(u64),
    Written,
    Waits,
    Sigbus,
    Segv,
}

pub struct Process {
    pub mm: Mm,
    pub config: Config,
    pub space: Space,
    pub cells: Vec<Cell>,
    /// The hint that each page's region must have, as far as the core knows of the page.
    pub hints: Vec<Hint>,
    pub threads: Vec<Option<Wait>>,
    /// Fault messages on their way to the driver.
    pub messages: Vec<usize>,
    /// Where in their pages touches are, in bytes.
    pub offset: u64,
    pub events: VecDeque<Event>,
    /// Events that were read and whose thread has not continued.
    pub acks: VecDeque<Event>,
    /// Discards whose pages are about to vanish.
    pub zaps: Vec<Range<usize>>,
    pub fork: Fork,
    pub sigbus: u64,
    /// Calls of the core.
    pub(super) calls: u64,
    pub(super) references: Vec<Slot>,
}

impl Process {
    pub fn new(sys: &mut System, config: Config, pages: usize, threads: usize) -> Self {
        // The model's pages cross the border of a leaf.
        let base = 512 * 107 - pages as u64 / 3;
        Process {
            mm: Mm::new(config, sys.limit),
            config,
            space: Space::new(sys, base, pages, config.frames + config.clusters * 512),
            cells: vec![Cell::default(); pages],
            hints: vec![Hint::Normal; pages],
            threads: vec![None; threads],
            messages: Vec::new(),
            offset: 0,
            events: VecDeque::new(),
            acks: VecDeque::new(),
            zaps: Vec::new(),
            fork: Fork::No,
            sigbus: 0,
            calls: 0,
            references: Vec::new(),
        }
    }

    /// Call the core, then check its state.
    pub fn call<T>(
        &mut self,
        sys: &mut System,
        call: impl FnOnce(&mut Mm, &mut View<'_>) -> T,
    ) -> T {
        sys.steps += 1;
        self.space.lenient |= self.fork != Fork::No;
        self.space.had = self.space.flights.len();
        let mut view = View {
            sys,
            space: &mut self.space,
        };
        let value = call(&mut self.mm, &mut view);
        self.space.lenient = false;
        self.space.existed = false;
        self.heed_notices(sys);
        self.check(sys);
        self.resume(sys);
        value
    }

    /// A page's content is lost if a notice says so. The core may not know yet that it moved.
    fn heed_notices(&mut self, sys: &mut System) {
        for (pid, notice) in sys.notices.drain(..) {
            assert_eq!(pid, self.space.pid);
            let page = match notice {
                Notice::ReadFailed { page, .. }
                | Notice::Corrupt { page, .. }
                | Notice::OutOfMemory { page }
                | Notice::Unaccounted { page } => page,
                _ => continue,
            };
            let mut at = self.space.at(page);
            for event in &self.events {
                if let Event::Remap(from, to) = event
                    && from.contains(&at)
                {
                    at = at - from.start + to;
                }
            }
            let cell = &mut self.cells[at];
            assert!(
                cell.taken || !matches!(notice, Notice::Unaccounted { .. }),
                "page {at} is missed, and nothing took it"
            );
            cell.lost = true;
        }
    }

    /// Threads whose page was woken try again.
    fn resume(&mut self, sys: &mut System) {
        let woken = std::mem::take(&mut self.space.woken);
        for page in &woken {
            let Some(at) = page.checked_sub(self.space.base) else {
                continue;
            };
            for thread in 0..self.threads.len() {
                if let Some(wait) = self.threads[thread]
                    && wait.at == at as usize
                {
                    self.threads[thread] = None;
                    // A message that was not read is withdrawn.
                    if let Some(old) = self.messages.iter().position(|m| *m == wait.at) {
                        self.messages.swap_remove(old);
                    }
                    self.access(sys, Some(thread), wait.at, wait.write);
                }
            }
        }
        self.space.woken = woken;
        self.space.woken.clear();
    }

    /// A thread (or, without one, the test itself) touches a page.
    pub fn access(
        &mut self,
        sys: &mut System,
        thread: Option<usize>,
        at: usize,
        write: Option<u64>,
    ) -> Access {
        sys.note(20, at as u64, write.unwrap_or(u64::MAX));
        let page = &mut self.space.pages[at];
        if page.mapping == Mapping::None {
            return Access::Segv;
        }
        if page.mapping == Mapping::Plain && page.present.is_none() {
            page.present = Some(0);
        }
        let cell = &mut self.cells[at];
        let Some(content) = page.present else {
            if page.poisoned {
                assert!(cell.lost, "SIGBUS at {at} without a reason");
                self.sigbus += 1;
                return Access::Sigbus;
            }
            if let Some(thread) = thread {
                self.threads[thread] = Some(Wait { at, write });
            }
            self.messages.push(at);
            return Access::Waits;
        };
        if let Some(value) = write {
            page.present = Some(value);
            // The content before a discard no longer counts.
            cell.value = value;
            cell.maybe_zero = cell.discarding;
            cell.written = cell.discarding;
            return Access::Written;
        }
        if content == 0 && cell.maybe_zero {
            if !cell.discarding {
                cell.value = 0;
                cell.maybe_zero = false;
            }
        } else {
            assert_eq!(content, cell.value, "page {at} reads wrong");
            if !cell.discarding {
                cell.maybe_zero = false;
            }
        }
        Access::Read(content)
    }

    /// The driver reads a fault message.
    pub fn read_message(&mut self, sys: &mut System, n: usize) {
        let at = self.messages.swap_remove(n);
        let page = self.space.vpn(at);
        let address = page.address() + self.offset;
        self.call(sys, |mm, w| {
            if mm.on_fault(w, address) == Outcome::Unmanaged {
                use foreswap_core::world::Mmu as _;
                w.wake(page);
            }
        });
    }

    /// The driver reads an event.
    pub fn read_event(&mut self, sys: &mut System) {
        let Some(event) = self.events.pop_front() else {
            return;
        };
        self.acks.push_back(event.clone());
        let space = &self.space;
        match &event {
            Event::Discard(range) => {
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

    /// A thread whose event was read continues.
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
            page.shared = false;
            // Touched, evicted and lost since the event was read: it stays lost.
            cell.lost &= self.mm.entry(self.space.vpn(at)) == Entry::Poisoned;
            cell.discarding = false;
            cell.taken = false;
            if !cell.written {
                cell.value = 0;
                cell.maybe_zero = false;
            }
            cell.written = false;
        }
        self.changing(&range, false);
    }

    fn changing(&mut self, range: &Range<usize>, changing: bool) {
        for cell in &mut self.cells[range.clone()] {
            if changing {
                cell.changing += 1;
            } else {
                cell.changing -= 1;
            }
        }
    }

    pub fn busy(&self, range: &Range<usize>) -> bool {
        self.cells[range.clone()]
            .iter()
            .any(|cell| cell.changing > 0)
    }

    /// No event is anywhere.
    pub fn settled(&self) -> bool {
        self.events.is_empty() && self.acks.is_empty() && self.zaps.is_empty()
    }

    fn send(&mut self, event: Event) {
        self.space.changing += 1;
        self.events.push_back(event);
    }

    /// mmap where nothing is mapped.
    pub fn map(&mut self, range: Range<usize>) {
        for at in range {
            if self.space.pages[at].mapping == Mapping::None {
                self.space.pages[at] = Page {
                    mapping: Mapping::Plain,
                    ..Page::default()
                };
                let changing = self.cells[at].changing;
                self.cells[at] = Cell {
                    changing,
                    ..Cell::default()
                };
            }
        }
    }

    /// The engine adopts plain mappings.
    pub fn adopt(&mut self, sys: &mut System, range: Range<usize>) {
        let mut present = Vec::new();
        for at in range.clone() {
            let page = &mut self.space.pages[at];
            assert_ne!(page.mapping, Mapping::None);
            page.mapping = Mapping::Managed;
            if page.present.is_some() {
                present.push(self.space.range(&(at..at + 1)));
            }
        }
        let range = self.space.range(&range);
        self.space.lenient = true;
        self.call(sys, |mm, w| mm.adopt(w, range, &present));
    }

    pub fn discard(&mut self, range: Range<usize>) {
        for cell in &mut self.cells[range.clone()] {
            cell.discarding = true;
            cell.maybe_zero = true;
            cell.written = false;
        }
        self.changing(&range, true);
        self.send(Event::Discard(range));
    }

    pub fn unmap(&mut self, range: Range<usize>) {
        for at in range.clone() {
            self.space.pages[at] = Page::default();
            let changing = self.cells[at].changing;
            self.cells[at] = Cell {
                changing,
                ..Cell::default()
            };
        }
        self.changing(&range, true);
        self.send(Event::Unmap(range));
    }

    /// mremap with MREMAP_FIXED: mappings at the destination are unmapped.
    pub fn remap(&mut self, from: Range<usize>, to: usize) {
        let target = to..to + from.len();
        self.unmap(target.clone());
        for (source, target) in from.clone().zip(target) {
            self.space.pages[target] = std::mem::take(&mut self.space.pages[source]);
            let changing = self.cells[target].changing;
            self.cells[target] = Cell {
                changing: changing + 1,
                ..std::mem::take(&mut self.cells[source])
            };
        }
        self.changing(&from, true);
        self.send(Event::Remap(from.clone(), to));
        self.send(Event::Unmap(from));
    }

    /// The kernel takes pages back that MADV_FREE gave it; there is no event.
    pub fn silently_discard(&mut self, range: Range<usize>) {
        for at in range {
            let page = &mut self.space.pages[at];
            if page.mapping != Mapping::None && page.present.take().is_some() {
                page.shared = false;
                self.cells[at].value = 0;
                self.cells[at].maybe_zero = false;
                self.cells[at].taken = true;
            }
        }
    }

    /// The helper made pages movable that a fork shared.
    pub fn unshare(&mut self) {
        if let Some((page, n)) = self.space.unshare.pop() {
            let at = self.space.at(page);
            for page in self.space.pages.iter_mut().skip(at).take(n as usize) {
                page.shared = false;
            }
        }
    }

    pub fn complete(&mut self, sys: &mut System, n: usize) {
        match self.space.complete(sys, n) {
            Ended::Io(io, result) => self.call(sys, |mm, w| mm.on_io(w, io, result)),
            Ended::Digest(first) => self.call(sys, |mm, w| mm.on_digested(w, first)),
        }
        self.space.brought.clear();
    }

    pub fn run(&mut self, sys: &mut System) -> bool {
        self.call(sys, |mm, w| mm.run(w))
    }

    /// The supervisor's order for an area.
    pub fn drain(&mut self, sys: &mut System, area: u8) {
        self.call(sys, |mm, w| mm.drain(w, area));
    }

    pub fn use_area(&mut self, sys: &mut System, area: u8) {
        self.call(sys, |mm, _| mm.use_area(area));
    }

    pub fn forget_area(&mut self, sys: &mut System, area: u8) {
        self.call(sys, |mm, _| mm.forget_area(area));
    }

    /// One round of everything that is pending; `io` says whether devices make progress. Returns whether nothing is
    /// left to do.
    pub fn round(&mut self, sys: &mut System, io: bool) -> bool {
        sys.now += 1_000 + self.config.full_timeout / 16;
        self.read_event(sys);
        self.acknowledge();
        self.zap();
        self.unshare();
        if !self.messages.is_empty() {
            self.read_message(sys, 0);
        }
        if io && sys.at_once {
            self.work_off(sys);
        } else if io && !self.space.flights.is_empty() {
            self.complete(sys, 0);
        }
        if self.mm.must_retry() {
            self.call(sys, |mm, w| mm.retry(w));
        }
        if self.fork == Fork::Held {
            self.try_snapshot(sys);
        }
        let more = self.run(sys);
        !more
            && self.settled()
            && self.messages.is_empty()
            && self.space.flights.is_empty()
            && self.fork == Fork::No
            && self.threads.iter().all(Option::is_none)
            && !self.mm.must_retry()
            && !self.mm.is_stalled()
    }

    /// The program gives advice about a range.
    pub fn advise(&mut self, sys: &mut System, range: Range<usize>, advice: Advice) {
        if let Advice::Use(hint) = advice {
            for at in range.clone() {
                if self.mm.manages(self.space.vpn(at)) {
                    self.hints[at] = hint;
                }
            }
        }
        let range = self.space.range(&range);
        self.call(sys, |mm, w| mm.advise(w, &range, advice));
    }
}
