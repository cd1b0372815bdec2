//! Changes of a program's address space, as far as they are possible at that moment.

use std::ops::Range;

use foreswap_core::units::Slot;

use crate::events::Event;
use crate::process::{Cell, Fork, Process};
use crate::space::{Mapping, Page};
use crate::step::Act;
use crate::system::System;

/// `n` pages from `page` on, as far as they exist.
pub fn stretch(process: &Process, page: u16, n: u16) -> Range<usize> {
    let pages = process.cells.len();
    let start = usize::from(page) % pages;
    start..(start + usize::from(n.max(1))).min(pages)
}

/// The program discards pages, and the driver handles it at once.
pub fn give_back(process: &mut Process, sys: &mut System, range: Range<usize>) {
    let pages = &mut process.space.pages[range.clone()].iter();
    let fits = |page: &Page| {
        page.mapping == Mapping::Managed && !page.locked && !page.pinned && !page.guard
    };
    if process.settled() && pages.all(fits) {
        process.discard(range);
        process.read_event(sys);
        process.acknowledge();
        process.zap();
    }
}

/// The program changes its address space, if that is possible at this moment.
pub fn change(process: &mut Process, sys: &mut System, act: Act) {
    let (Act::Discard { page, n }
    | Act::Free { page, n }
    | Act::Guard { page, n, .. }
    | Act::Unmap { page, n }
    | Act::Remap { page, n, .. }
    | Act::Map { page, n }
    | Act::MapFile { page, n, .. }) = act
    else {
        return;
    };
    let mut range = stretch(process, page, n);
    if let Some(wait) = process.oldest_wait()
        && sys.chance.one_in(500)
    {
        // At the worst place: a page in transfer.
        range = stretch(process, wait.at as u16, n);
    }
    if process.is_bare() {
        return process.change_bare(sys, act, range);
    }
    // While a fork is prepared, other threads only discard.
    let forking = process.fork != Fork::No;
    let pages = &process.space.pages[range.clone()];
    let managed = pages.iter().all(|page| page.mapping == Mapping::Managed);
    let fixed = pages.iter().any(|page| page.locked || page.pinned);
    let busy = process.busy(&range) || process.events.len() > 2;
    match act {
        Act::Discard { .. } if !busy && !fixed && managed => process.discard(range),
        _ if forking => {}
        Act::Unmap { .. } if !busy => process.unmap(range),
        Act::Remap { to, .. } if !busy && managed => {
            let to = usize::from(to) % process.cells.len();
            let target = to..to + range.len();
            let apart = target.end <= range.start || range.end <= target.start;
            if apart && target.end <= process.cells.len() && !process.busy(&target) {
                process.remap(range, to);
            }
        }
        // The kernel refuses MADV_FREE in mappings of files.
        Act::Free { .. } if !busy && !fixed && !process.has_file(&range) => {
            process.silently_discard(range);
        }
        Act::Guard { on, told, .. } if !busy && !fixed && managed && process.settled() => {
            let told = on || told || process.has_file(&range);
            process.guard(sys, &range, on, told);
        }
        Act::MapFile { file, .. } if !busy && process.settled() => {
            process.map_file(sys, range, file.into());
        }
        Act::Map { .. } => {
            if !process.busy(&range) || sys.chance.one_in(300) {
                process.map(range.clone());
            }
            let pages = &process.space.pages[range.clone()];
            if process.settled() && pages.iter().all(|page| page.mapping != Mapping::None) {
                process.ring(sys, range);
            }
        }
        _ => {}
    }
}

impl Process {
    /// mmap of an unmapped range.
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

    /// mmap of a file, from its page `file` on, in place of what is unmapped. The driver is told before the thread goes on.
    pub fn map_file(&mut self, sys: &mut System, range: Range<usize>, file: u32) {
        let pages = &self.space.pages[range.clone()];
        if pages.iter().any(|page| page.mapping != Mapping::None) {
            return;
        }
        self.map(range.clone());
        for (at, index) in range.clone().zip(file..) {
            let cell = &mut self.cells[at];
            cell.file = Some(index);
            cell.value = cell.base();
        }
        self.adopt(sys, range.clone());
        let range = self.space.range(&range);
        self.call(sys, |mm, _| mm.map_file(&range, Slot::of_file(file)));
    }

    /// Whether a page of `range` is of a file.
    fn has_file(&self, range: &Range<usize>) -> bool {
        self.cells[range.clone()]
            .iter()
            .any(|cell| cell.file.is_some())
    }

    /// The doorbell tells of new mappings of a managed process: the driver adopts what the core takes.
    pub fn ring(&mut self, sys: &mut System, range: Range<usize>) {
        if self.mm.takes_new(&self.space.range(&range)) {
            self.adopt(sys, range);
        }
    }

    /// The engine adopts plain mappings.
    pub fn adopt(&mut self, sys: &mut System, range: Range<usize>) {
        let mut present = Vec::new();
        for at in range.clone() {
            let page = &mut self.space.pages[at];
            assert_ne!(page.mapping, Mapping::None, "page {at} is adopted");
            page.mapping = Mapping::Managed;
            if page.present.is_some() {
                present.push(self.space.range(&(at..at + 1)));
            }
        }
        let range = self.space.range(&range);
        self.space.lenient = true;
        self.call(sys, |mm, w| mm.adopt(w, range, &present));
    }

    /// madvise(MADV_DONTNEED).
    pub fn discard(&mut self, range: Range<usize>) {
        for cell in &mut self.cells[range.clone()] {
            cell.discarding = true;
            cell.maybe_zero = true;
            cell.written = false;
        }
        self.changing(&range, true);
        self.send(Event::Discard(range));
    }

    /// The driver installs guards or removes them; the core is told, except of removals behind its back.
    pub fn guard(&mut self, sys: &mut System, range: &Range<usize>, on: bool, told: bool) {
        for at in range.clone() {
            let (page, cell) = (&mut self.space.pages[at], &mut self.cells[at]);
            if on {
                *page = Page {
                    mapping: page.mapping,
                    guard: true,
                    ..Page::default()
                };
                *cell = Cell {
                    changing: cell.changing,
                    file: cell.file,
                    value: cell.base(),
                    ..Cell::default()
                };
            }
            page.guard = on;
        }
        let pages = self.space.range(range);
        match (on, told) {
            (true, _) => self.call(sys, |mm, w| mm.guard(w, &pages)),
            (false, true) => self.call(sys, |mm, _| mm.unguard(&pages)),
            (false, false) => {}
        }
    }

    /// munmap.
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

    /// mremap with MREMAP_FIXED: the destination is unmapped first.
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

    /// The kernel reclaims pages after MADV_FREE, without an event.
    pub fn silently_discard(&mut self, range: Range<usize>) {
        for at in range {
            let page = &mut self.space.pages[at];
            if page.mapping != Mapping::None && page.present.take().is_some() {
                (page.shared, page.id, page.wp) = (false, 0, false);
                self.cells[at].value = 0;
                self.cells[at].maybe_zero = false;
                self.cells[at].taken = true;
            }
        }
    }
}
