//! The pages that a UFFDIO_MOVE that stopped early has really moved.
//!
//! Kernels that move pages in batches (6.18 is one) retry by themselves if another processor changes a page's mapping
//! at that moment, for example a write that unshares it after a fork. They omit from the count the pages moved by the
//! second try; then they find the destination in use and report that. A caller that trusts the count takes the page
//! for absent on one side and the frame for empty on the other, and the content of the page is lost. After each
//! answer that may hide such pages, the page tables are therefore read: a page that is absent at its source and
//! present at its destination has moved.

use core::ops::Range;

use linux_raw_sys::general::__NR_mincore;
use rustix::io::Errno;

use crate::sys::syscall::syscall;

const PAGE: usize = 4096;

/// The state of a page of private anonymous memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Presence {
    Present,
    Absent,
    /// Nothing is mapped at the address.
    Unmapped,
}

fn presence(page: usize) -> Presence {
    let mut state = 0_u8;
    loop {
        // SAFETY: the kernel writes one byte, for one page, whatever the address is.
        let asked = unsafe { syscall(__NR_mincore, [page, PAGE, &raw mut state as usize]) };
        return match asked {
            Ok(_) if state & 1 != 0 => Presence::Present,
            Ok(_) => Presence::Absent,
            Err(Errno::AGAIN) => continue,
            Err(_) => Presence::Unmapped,
        };
    }
}

/// The number of bytes at the start of `source` that have moved to `destination`, both from the first uncounted page
/// on. One side is memory to or from which only the caller moves pages.
pub(super) fn moved_uncounted(source: Range<usize>, destination: usize) -> usize {
    let mut moved = 0;
    while source.start + moved < source.end
        && presence(source.start + moved) != Presence::Present
        // The program may have unmapped it again.
        && presence(destination + moved) != Presence::Absent
    {
        moved += PAGE;
    }
    moved
}
