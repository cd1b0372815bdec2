//! Memory that is kept from children, in a process whose forks the kernel does not report.
//!
//! The kernel reports each fork (UFFD_EVENT_FORK) to an engine with CAP_SYS_PTRACE, which then serves the child. Without
//! that right, the child of a fork past the C library would find zeros for pages that are moved out. Before the first page
//! moves out, all managed memory is therefore kept from children (MADV_DONTFORK), and so is what is managed later: a touch
//! by such a child raises SIGSEGV instead. A fork by the C library asks the engine first, which gives all managed memory to
//! children until that fork is over. A child that another thread makes past the C library in that time finds the zeros
//! (docs/LIMITS.md).
//!
//! All of it is marked, because the kernel does not join mappings with different marks. The memory that the program itself
//! keeps from children stays so.

use std::ffi::c_void;

use foreswap_core::units::{PageRange, Vpn, overlap};
use rangemap::RangeSet;
use rustix::mm::{Advice, madvise};

use super::Linux;
use crate::pager::boot::{bytes_of, pages_of};
use crate::pager::moves::Move;
use crate::sys::maps;
use crate::sys::uffd::Features;

/// The memory that children do not get.
#[derive(Default)]
pub struct Kept {
    /// Pages may be out: `managed` is marked.
    is_on: bool,
    /// The managed memory.
    managed: RangeSet<Vpn>,
    /// The memory that the program keeps from children itself. Where it is not managed, it may be gone.
    own: RangeSet<Vpn>,
    /// A fork of the C library is in progress: its child gets the managed memory.
    given: bool,
}

impl Kept {
    /// Whether managed memory is kept from children.
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The managed memory in `range` is gone.
    pub fn forget(&mut self, range: &PageRange) {
        if !range.is_empty() {
            self.managed.remove(range.clone());
            self.own.remove(range.clone());
        }
    }

    /// Managed memory has moved, and the kernel's marks with it. Memory that stays at the old place (MREMAP_DONTUNMAP) has
    /// them too, and is not managed any more.
    pub fn moves(&mut self, moved: &Move) {
        if self.is_on {
            self.mark(&moved.from, Advice::LinuxDoFork);
        }
        for set in [&mut self.managed, &mut self.own] {
            let known: Vec<PageRange> = set.overlapping(&moved.from).cloned().collect();
            set.remove(moved.from.clone());
            set.remove(moved.target());
            for part in &known {
                set.extend(moved.after(&overlap(part, &moved.from)));
            }
        }
    }

    /// Marks the part of `range` that is managed.
    fn mark(&self, range: &PageRange, advice: Advice) {
        for managed in self.managed.overlapping(range) {
            for part in self.own.gaps(&overlap(managed, range)) {
                advise(&part, advice);
            }
        }
    }

    fn mark_all(&self, advice: Advice) {
        self.mark(&(Vpn(0)..Vpn(u64::MAX)), advice);
    }
}

impl Linux {
    /// Whether forks past the C library are not reported.
    fn misses_forks(&self) -> bool {
        !self.program.features().contains(Features::EVENT_FORK)
    }

    /// Pages are about to move out. False: the program changes its mappings at this moment.
    pub(super) fn keep_from_children(&mut self) -> bool {
        if self.kept.is_on || !self.misses_forks() {
            return true;
        }
        if !self.kept.given {
            self.kept.mark_all(Advice::LinuxDontFork);
        }
        if self.program.mmap_changing() {
            // Other memory may be in the place of some.
            self.kept.mark_all(Advice::LinuxDoFork);
            return false;
        }
        self.kept.is_on = true;
        true
    }

    /// `range` was registered, and is managed from now on. The program may have kept from children what was there before:
    /// `known` is what was managed already.
    pub fn keep_managed(&mut self, range: &PageRange, known: impl FnOnce() -> Vec<PageRange>) {
        if range.is_empty() || !self.misses_forks() {
            return;
        }
        if self.kept.own.overlaps(range) {
            let known: RangeSet<Vpn> = known().into_iter().collect();
            for new in known.gaps(range) {
                self.kept.own.remove(new.clone());
                self.find_own(&new);
            }
        }
        self.kept.managed.insert(range.clone());
        if self.kept.is_on && !self.kept.given {
            self.kept.mark(range, Advice::LinuxDontFork);
        }
    }

    /// `regions` are registered; some of their pages are out if `lacks`.
    pub fn keep_inherited(&mut self, regions: &[PageRange], lacks: bool) {
        self.kept.is_on = lacks && self.misses_forks();
        for region in regions {
            self.keep_managed(region, Vec::new);
        }
    }

    /// `range` is not managed any more, and still there.
    pub fn let_children_have(&mut self, range: &PageRange) {
        if self.kept.is_on {
            self.kept.mark(range, Advice::LinuxDoFork);
        }
        self.kept.forget(range);
    }

    /// The C library forks.
    pub fn give_to_child(&mut self) {
        self.kept.given = true;
        if self.kept.is_on {
            self.kept.mark_all(Advice::LinuxDoFork);
        }
    }

    /// That fork is over.
    pub fn give_no_more(&mut self) {
        self.kept.given = false;
        if self.kept.is_on {
            self.kept.mark_all(Advice::LinuxDontFork);
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
        self.kept.own.remove(range.clone());
        if self.kept.is_on && !self.kept.given {
            self.kept.mark(range, Advice::LinuxDontFork);
        }
    }

    /// Reads from the kernel's map what of `range` the program keeps from children.
    pub fn find_own(&mut self, range: &PageRange) {
        if !self.misses_forks() {
            return;
        }
        let Kept {
            is_on,
            managed,
            own,
            ..
        } = &mut self.kept;
        for found in maps::kept_from_children().unwrap_or_default() {
            let part = overlap(&pages_of(&found), range);
            if part.is_empty() {
                continue;
            }
            match is_on {
                // The engine's marks are in the map, too.
                true => own.extend(managed.gaps(&part)),
                false => own.insert(part),
            }
        }
    }
}

/// Gives `range` to children, or keeps it from them.
pub fn advise(range: &PageRange, advice: Advice) {
    let bytes = bytes_of(range);
    // A part that is not mapped any more counts as an error after the rest was done.
    // SAFETY: changes nothing in this process.
    let _ = unsafe { madvise(bytes.start as *mut c_void, bytes.len(), advice) };
}
