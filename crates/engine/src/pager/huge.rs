//! Huge pages and the kernel: their source, their destination, and their recognition.
//!
//! The kernel moves a huge page whole if source and destination are aligned and the destination never had small
//! pages. It creates none in memory that is registered with a userfaultfd. Fresh huge pages therefore come from an
//! unregistered nursery of the engine, and go to a trash that is registered, on the quiet userfaultfd.

use foreswap_core::units::PAGE_SIZE;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::frames::{Arena, HUGE};
use crate::sys::maps::PageMap;
use crate::sys::own_memory::{self, Kind};
use crate::sys::uffd::Uffd;

/// Clusters for a limit in pages: a quarter of it, with a minimum.
pub const fn clusters(limit: u64) -> u32 {
    let wanted = limit / 4 * PAGE_SIZE as u64 / HUGE as u64;
    if wanted < 8 {
        8
    } else if wanted > 256 {
        256
    } else {
        wanted as u32
    }
}

/// The state for handling huge pages.
pub struct Huge {
    /// Room for one huge page, not registered.
    nursery: usize,
    trash: Arena,
    pagemap: PageMap,
}

impl Huge {
    /// On the pager's thread. Freed huge pages are moved away over `quiet`.
    pub fn new(quiet: &Uffd) -> Result<Self, Errno> {
        let nursery = own_memory::map(HUGE, Kind::Other)?.as_ptr() as usize;
        let at = core::ptr::without_provenance_mut(nursery);
        // SAFETY: both only set properties of a private mapping.
        unsafe {
            madvise(at, HUGE, Advice::LinuxDontFork)?;
            // Not every kernel has huge pages.
            let _ = madvise(at, HUGE, Advice::LinuxHugepage);
        }
        let trash = Arena::new((HUGE / PAGE_SIZE) as u32)?;
        quiet.register_missing(trash.address(), trash.bytes())?;
        let pagemap = PageMap::open()?;
        Ok(Huge {
            nursery,
            trash,
            pagemap,
        })
    }

    /// Whether the memory from `start` on is one huge page.
    pub fn is_one(&mut self, start: usize) -> bool {
        let mut runs = Vec::new();
        let asked = self.pagemap.runs(start, start + HUGE, &mut runs);
        let whole = |run: &crate::sys::maps::Run| run.huge && run.end - run.start == HUGE;
        asked.is_ok() && runs.first().is_some_and(whole)
    }

    /// Move a fresh huge page of zeros to `to`, which is empty. False: none is available now.
    pub fn fill(&mut self, uffd: &Uffd, quiet: &Uffd, to: usize) -> bool {
        let at = core::ptr::without_provenance_mut(self.nursery);
        // SAFETY: the nursery is ours alone.
        let made = unsafe { madvise(at, HUGE, Advice::LinuxPopulateWrite) }.is_ok();
        let is_one = made && (self.is_one(self.nursery) || collapse(self.nursery));
        // SAFETY: both are ours; where something is at the destination, the call refuses.
        let moved = is_one && unsafe { uffd.move_pages(to, self.nursery, HUGE, false) }.is_ok();
        if !moved {
            if is_one {
                // If it is split on its way, a part of it may have arrived.
                self.release(quiet, to);
            }
            // SAFETY: its content is not needed.
            let dropped = unsafe { own_memory::discard(self.nursery, HUGE) };
            debug_assert!(dropped.is_ok());
        }
        moved
    }

    /// Free the memory of the huge page at `from`. False: not all of it was freed.
    pub fn release(&mut self, quiet: &Uffd, from: usize) -> bool {
        // SAFETY: both are ours; the trash is empty.
        let moved = unsafe { quiet.move_pages(self.trash.address(), from, HUGE, true) };
        self.trash.discard();
        moved.is_ok()
    }
}

/// Tell the kernel that huge pages are welcome in a registered range of the program. Otherwise a touch leaves a page
/// table behind before it is reported, and a huge page moved there is split.
pub fn prefer(range: &core::ops::Range<usize>) {
    let at = core::ptr::without_provenance_mut(range.start);
    // Refused where the kernel has none: single pages do as well.
    // SAFETY: changes the backing of the memory, not its content.
    let _ = unsafe { madvise(at, range.len(), Advice::LinuxHugepage) };
}

/// Collapse the mapped pages from `start` on into one huge page.
pub fn collapse(start: usize) -> bool {
    let at = core::ptr::without_provenance_mut::<u8>(start);
    // SAFETY: changes the backing of the memory, not its content.
    let done = unsafe { libc::madvise(at.cast(), HUGE, libc::MADV_COLLAPSE) };
    done == 0
}
