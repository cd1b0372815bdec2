//! A task's private anonymous mapping, page by page.
//!
//! This is the only unsafe code of the workload that touches its memory. A region begins on a huge page's boundary, so
//! that it can contain whole huge pages. Whether it does depends on the system, or on
//! [`Region::ask_for_huge_pages`].

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use super::words::WORDS;

/// Bytes in a page.
pub const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;

/// An owned mapping of whole pages.
#[derive(Debug)]
pub struct Region {
    start: *mut u64,
    bytes: usize,
}

// SAFETY: the mapping belongs to its `Region` alone, as a `Box<[u64]>` would.
unsafe impl Send for Region {}

impl Region {
    /// Maps `bytes`, rounded up to whole pages, on a huge page's boundary.
    pub fn map(bytes: u64) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(io::Error::other)?;
        let bytes = bytes.next_multiple_of(PAGE);
        let reserved = bytes + HUGE;
        // SAFETY: a new anonymous mapping at an address of the kernel's choice.
        let raw = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                reserved,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if raw == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let address = raw as usize;
        let start = address.next_multiple_of(HUGE);
        let (before, after) = (start - address, reserved - bytes - (start - address));
        for (address, bytes) in [(address, before), (start + bytes, after)] {
            if bytes > 0 {
                // SAFETY: a part of our own mapping that nothing refers to yet.
                unsafe { libc::munmap(address as *mut libc::c_void, bytes) };
            }
        }
        Ok(Self {
            start: start as *mut u64,
            bytes,
        })
    }

    /// Asks for transparent huge pages.
    pub fn ask_for_huge_pages(&self) -> io::Result<()> {
        // SAFETY: advice about our own mapping; its content stays.
        let result = unsafe { libc::madvise(self.start.cast(), self.bytes, libc::MADV_HUGEPAGE) };
        if result == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Pages that are mapped, or that the kernel has in memory; asks without touching any.
    pub fn mapped_pages(&self) -> io::Result<u64> {
        let mut states = [0u8; 1024];
        let mut mapped = 0;
        for start in (0..self.bytes).step_by(states.len() * PAGE) {
            let bytes = (self.bytes - start).min(states.len() * PAGE);
            let address = self.start.wrapping_byte_add(start);
            // SAFETY: asks about a part of our own mapping, with room for a byte a page.
            if unsafe { libc::mincore(address.cast(), bytes, states.as_mut_ptr()) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let states = &states[..bytes / PAGE];
            mapped += states.iter().filter(|state| **state & 1 != 0).count() as u64;
        }
        Ok(mapped)
    }

    /// Whether a page is mapped, or in the kernel's memory; asks without touching it.
    pub fn is_mapped(&self, page: u64) -> io::Result<bool> {
        let mut state = 0u8;
        let address = self.at(page, 0);
        // SAFETY: asks about a page of our own mapping, with room for its byte.
        match unsafe { libc::mincore(address.cast(), PAGE, &raw mut state) } {
            0 => Ok(state & 1 != 0),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Number of pages.
    pub fn pages(&self) -> u64 {
        (self.bytes / PAGE) as u64
    }

    /// The address of a word.
    pub fn address(&self, page: u64, word: usize) -> usize {
        self.start as usize + page as usize * PAGE + word * 8
    }

    #[inline(always)]
    fn at(&self, page: u64, word: usize) -> *mut u64 {
        assert!(page < self.pages() && word < WORDS);
        // SAFETY: inside the mapping, as asserted.
        unsafe { self.start.add(page as usize * WORDS + word) }
    }

    /// Reads one word, volatile.
    #[inline(always)]
    pub fn read(&self, page: u64, word: usize) -> u64 {
        // SAFETY: `at` gives an aligned pointer into the mapping.
        unsafe { self.at(page, word).read_volatile() }
    }

    /// Writes one word, volatile.
    #[inline(always)]
    pub fn write(&mut self, page: u64, word: usize, value: u64) {
        // SAFETY: `at` gives an aligned pointer into the mapping, which is ours alone.
        unsafe { self.at(page, word).write_volatile(value) }
    }

    /// Writes one word and returns its old value, in one access: an absent page faults once, for writing, and not first
    /// for reading.
    #[inline(always)]
    pub fn replace(&mut self, page: u64, word: usize, value: u64) -> u64 {
        // SAFETY: as in `write`; an `AtomicU64` has the layout of the word.
        unsafe { AtomicU64::from_ptr(self.at(page, word)) }.swap(value, Ordering::Relaxed)
    }

    /// The words of a page.
    #[inline(always)]
    pub fn page(&self, page: u64) -> &[u64; WORDS] {
        // SAFETY: a whole page of initialised words (the kernel's zeros at least).
        unsafe { &*self.at(page, 0).cast() }
    }

    /// The words of a page, to be written.
    #[inline(always)]
    pub fn page_mut(&mut self, page: u64) -> &mut [u64; WORDS] {
        // SAFETY: as in `page`; exclusive, as `self` is.
        unsafe { &mut *self.at(page, 0).cast() }
    }

    /// All of it.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `page_mut`, for every page of the mapping.
        unsafe { std::slice::from_raw_parts_mut(self.start.cast(), self.bytes) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_zeroed_and_writable() {
        let mut region = Region::map(3 * PAGE as u64 + 1).unwrap();
        assert_eq!(region.pages(), 4);
        assert_eq!(region.address(0, 0) % HUGE, 0);
        assert!(region.page(3).iter().all(|word| *word == 0));
        region.write(3, 511, 9);
        assert!((1..=4).contains(&region.mapped_pages().unwrap()));
        assert_eq!(region.replace(3, 511, 10), 9);
        assert_eq!(region.read(3, 511), 10);
        assert_eq!(region.page_mut(3)[511], 10);
        assert_eq!(region.bytes_mut().len(), 4 * PAGE);
        assert_eq!(region.bytes_mut()[4 * PAGE - 8], 10);
    }
}
