//! How much a UFFDIO_MOVE that stopped early has truly moved.
//!
//! Kernels that move pages in batches (6.18 is one) try again by themselves when another processor
//! changes a page's mapping at that moment: a write that unshares it after a fork, for one. What the
//! second try moves they leave out of the count; then they find the destination in use and say so.
//! Whoever believes the count takes the page for absent on one side and the frame for empty on the
//! other, and the page's content is lost. So after each answer that may hide such pages the page
//! tables are asked: a page that is no longer at its source and is at its destination has moved.

use core::ops::Range;

use linux_raw_sys::general::__NR_mincore;
use rustix::io::Errno;

use crate::sys::syscall::syscall;

const PAGE: usize = 4096;

/// Where a page stands, as far as private anonymous memory goes.
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
        // SAFETY: the kernel writes one byte, for one page; what the address is it finds out itself.
        let asked = unsafe { syscall(__NR_mincore, [page, PAGE, &raw mut state as usize]) };
        return match asked {
            Ok(_) if state & 1 != 0 => Presence::Present,
            Ok(_) => Presence::Absent,
            Err(Errno::AGAIN) => continue,
            Err(_) => Presence::Unmapped,
        };
    }
}

/// Bytes at the start of `source` that have moved to `destination` on, where the first page that was
/// not counted is the first of both. One side is memory that only the caller moves pages to or from.
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
