//! The parts of the shared address space that the engine needs: its own mappings, and the modules whose code its
//! threads run.
//!
//! A program may unmap everything in its map (a process that is about to become something else, or a test of the
//! kernel). The kernel would not refuse, the engine would die, and the program with it, in another way than without
//! foreswap. The C library's `munmap` leaves these ranges out; the program has no use for them.

use core::ops::Range;

use super::{modules, own_memory};

/// The kernel's own module for the time, and its data before it.
const VDSO: usize = 2 * 4096;
const VDSO_DATA: usize = 16 * 4096;

/// The lowest part of `range` that is needed. Only after an engine has started: the modules are then known, and
/// nothing here takes a lock or allocates.
pub fn first_in(range: &Range<usize>) -> Option<Range<usize>> {
    let own = own_memory::ranges().map(|own| own.start..own.start + own.len);
    let part = |needed: Range<usize>| needed.start.max(range.start)..needed.end.min(range.end);
    own.chain(modules::loaded().of_engine())
        .chain(vdso())
        .map(part)
        .filter(|part| !part.is_empty())
        .min_by_key(|part| part.start)
}

fn vdso() -> Option<Range<usize>> {
    // SAFETY: looks a word up that the kernel left on the first stack, in the C library's copy of where that is.
    let at = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    (at > VDSO_DATA).then(|| at - VDSO_DATA..at + VDSO)
}
