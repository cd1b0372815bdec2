//! Whether the kernel reads ahead by VMA.
//!
//! Its setting does not tell: one area on a rotating device, wherever it is, switches it off for all,
//! and the kernel loses count of these areas for good when one is switched off while its device is
//! taken for another kind than when it was switched on. So it is tried: pages of two mappings go out
//! in turns and so become neighbours on the area; then those of one mapping are touched. By VMA only
//! they come back.

use std::fs;
use std::io;
use std::ptr;

/// Pages of each mapping.
const PAGES: usize = 128;
const PAGE: usize = 4096;

/// A mapping of two parts with a page between them that keeps them apart.
struct Parts(*mut u8);

impl Parts {
    const BYTES: usize = (2 * PAGES + 1) * PAGE;

    fn map() -> io::Result<Self> {
        let (access, flags) = (
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
        );
        // SAFETY: a new mapping.
        let start = unsafe { libc::mmap(ptr::null_mut(), Self::BYTES, access, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let parts = Self(start.cast());
        // SAFETY: the mapping is ours, and as long.
        unsafe {
            libc::madvise(start, Self::BYTES, libc::MADV_NOHUGEPAGE);
            libc::mprotect(parts.page(PAGES).cast(), PAGE, libc::PROT_NONE);
        }
        Ok(parts)
    }

    fn page(&self, n: usize) -> *mut u8 {
        // SAFETY: the callers stay within the mapping.
        unsafe { self.0.add(n * PAGE) }
    }
}

impl Drop for Parts {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours.
        unsafe { libc::munmap(self.0.cast(), Self::BYTES) };
    }
}

fn pages_swapped_in() -> Option<u64> {
    let text = fs::read_to_string("/proc/vmstat").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("pswpin "))?;
    line.trim().parse().ok()
}

/// Whether the kernel reads ahead by VMA from the area that is swapped to; `None` where that cannot be
/// told (nothing went out).
pub fn reads_ahead_by_vma() -> Option<bool> {
    let parts = Parts::map().ok()?;
    let both = |n: usize| [parts.page(n), parts.page(PAGES + 1 + n)];
    for page in (0..PAGES).flat_map(both) {
        // SAFETY: a page of ours that can be written.
        unsafe { page.cast::<u64>().write_volatile(page as u64) };
    }
    for page in (0..PAGES).flat_map(both) {
        // SAFETY: as above.
        unsafe { libc::madvise(page.cast(), PAGE, libc::MADV_PAGEOUT) };
    }
    let before = pages_swapped_in()?;
    for n in 0..PAGES {
        // SAFETY: as above.
        unsafe { parts.page(n).cast::<u64>().read_volatile() };
    }
    let came = pages_swapped_in()?.saturating_sub(before) as usize;
    (came >= PAGES / 2).then_some(came < PAGES * 3 / 2)
}
