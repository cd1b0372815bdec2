//! Memory that is kept from children, in a process whose forks the kernel does not report.
//!
//! The kernel reports each fork (UFFD_EVENT_FORK) to an engine with CAP_SYS_PTRACE, which then serves the child. Without
//! that right, the child of a fork past the C library would find zeros for pages that are moved out. A mapping is
//! therefore kept from children (MADV_DONTFORK) before its first page moves out: a touch by such a child raises SIGSEGV,
//! and never gives a wrong byte. A fork by the C library asks the engine first, which gives all managed memory to
//! children until that fork is over.
//!
//! Whole mappings are marked, so that the kernel cuts none. The memory that the program itself keeps from children
//! stays so.

use std::ffi::c_void;

use foreswap_core::units::{PageRange, Vpn, overlap};
use rangemap::RangeSet;
use rustix::mm::{Advice, madvise};

use super::Linux;
use crate::pager::boot::{bytes_of, pages_of};
use crate::pager::moves::Move;
use crate::sys::mapping_at::MappingAt;
use crate::sys::maps;
use crate::sys::uffd::Features;

/// The memory that children do not get.
#[derive(Default)]
pub struct Kept {
    /// The marked memory.
    marked: RangeSet<Vpn>,
    /// The memory that the program keeps from children itself, as far as it is managed.
    own: RangeSet<Vpn>,
    /// A fork of the C library is in progress: its child gets the marked memory.
    given: bool,
    mapping_at: MappingAt,
}

impl Kept {
    /// Whether the program keeps memory from children itself.
    pub fn has_own(&self) -> bool {
        !self.own.is_empty()
    }

    /// The memory in `range` is gone.
    pub fn forget(&mut self, range: &PageRange) {
        if !range.is_empty() {
            self.marked.remove(range.clone());
            self.own.remove(range.clone());
        }
    }

    /// Memory has moved. The kernel's marks moved with it; memory that stays at the old place (MREMAP_DONTUNMAP) has them
    /// too, and is not managed any more.
    pub fn moves(&mut self, moved: &Move) {
        let was_marked = self.marked.overlaps(&moved.from);
        for set in [&mut self.marked, &mut self.own] {
            let known: Vec<PageRange> = set.overlapping(&moved.from).cloned().collect();
            set.remove(moved.from.clone());
            set.remove(moved.target());
            for part in &known {
                set.extend(moved.after(&overlap(part, &moved.from)));
            }
        }
        if was_marked {
            advise(&moved.from, Advice::LinuxDoFork);
        }
    }
}

impl Linux {
    /// Whether forks past the C library are not reported.
    fn misses_forks(&self) -> bool {
        !self.program.features().contains(Features::EVENT_FORK)
    }

    /// Keeps `n` pages from `page` on from children; they are about to move out. False: the program changes its mappings
    /// at this moment.
    pub(super) fn keep_from_children(&mut self, page: Vpn, n: u32) -> bool {
        if !self.misses_forks() {
            return true;
        }
        let (mut at, end) = (page, page.plus(n.into()));
        while at < end {
            let kept = &self.kept;
            if let Some(known) = kept.marked.get(&at).or_else(|| kept.own.get(&at)) {
                at = known.end;
                continue;
            }
            let Some(mapping) = self.mapping_at(at) else {
                // The move will find the same.
                return true;
            };
            at = mapping.end;
            if !self.kept.given {
                advise(&mapping, Advice::LinuxDontFork);
            }
            if self.program.mmap_changing() {
                // It may be another mapping at the same place.
                advise(&mapping, Advice::LinuxDoFork);
                return false;
            }
            self.kept.marked.insert(mapping);
        }
        true
    }

    fn mapping_at(&mut self, page: Vpn) -> Option<PageRange> {
        let address = page.address() as usize;
        let found = self.kept.mapping_at.find(address);
        let range = match found {
            Some(mapping) => Some(mapping.range),
            // The kernel may be older than the call.
            None => {
                let mappings = maps::read().ok()?.into_iter();
                let mut ranges = mappings.map(|vma| vma.range());
                ranges.find(|range| range.contains(&address))
            }
        };
        range.map(|range| pages_of(&range))
    }

    /// `regions` are registered, and pages of them are out already.
    pub fn keep_inherited(&mut self, regions: &[PageRange]) {
        if self.misses_forks() {
            for region in regions {
                advise(region, Advice::LinuxDontFork);
                self.kept.marked.insert(region.clone());
            }
        }
    }

    /// `range` is not managed any more, and still there.
    pub fn let_children_have(&mut self, range: &PageRange) {
        let marked: Vec<PageRange> = self.kept.marked.overlapping(range).cloned().collect();
        for part in marked {
            advise(&overlap(&part, range), Advice::LinuxDoFork);
        }
        self.kept.forget(range);
    }

    /// The C library forks, with these managed regions.
    pub fn give_to_child(&mut self, regions: impl Iterator<Item = PageRange>) {
        self.kept.given = true;
        if self.kept.marked.is_empty() {
            return;
        }
        let all: RangeSet<Vpn> = regions.collect();
        let own = self.kept.own.clone();
        for region in all.iter() {
            for part in own.gaps(region) {
                advise(&part, Advice::LinuxDoFork);
            }
        }
    }

    /// That fork is over.
    pub fn give_no_more(&mut self) {
        self.kept.given = false;
        for marked in self.kept.marked.iter() {
            advise(marked, Advice::LinuxDontFork);
        }
    }

    /// The program keeps `range` from children from now on (`keeps`), or gives it to them; the kernel has done so.
    pub fn on_fork_advice(&mut self, range: &PageRange, keeps: bool) {
        if range.is_empty() || !self.misses_forks() {
            return;
        }
        if keeps {
            self.kept.own.insert(range.clone());
            return;
        }
        let own = self.kept.own.overlapping(range);
        let own: Vec<PageRange> = own.map(|part| overlap(part, range)).collect();
        self.kept.own.remove(range.clone());
        // Pages of it may be out.
        self.kept.marked.extend(own);
        if !self.kept.given {
            let marked = self.kept.marked.overlapping(range);
            marked.for_each(|part| advise(&overlap(part, range), Advice::LinuxDontFork));
        }
    }

    /// The kernel keeps `range` from children, as its map says.
    pub fn on_found_kept(&mut self, range: &PageRange) {
        let Kept { marked, own, .. } = &mut self.kept;
        own.extend(marked.gaps(range));
    }

    /// `range` is about to be managed, and was not. What the program kept from children may have been replaced.
    pub fn find_kept(&mut self, range: &PageRange) {
        if range.is_empty() || !self.kept.own.overlaps(range) {
            return;
        }
        self.kept.own.remove(range.clone());
        for found in maps::kept_from_children().unwrap_or_default() {
            let part = overlap(&pages_of(&found), range);
            if !part.is_empty() {
                self.on_found_kept(&part);
            }
        }
    }
}

pub fn advise(range: &PageRange, advice: Advice) {
    let bytes = bytes_of(range);
    // A part that is not mapped any more counts as an error after the rest was done.
    // SAFETY: changes nothing in this process.
    let _ = unsafe { madvise(bytes.start as *mut c_void, bytes.len(), advice) };
}
