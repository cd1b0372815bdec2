//! The pages of a file that are in memory, as a policy sees them.

use crate::units::PAGE_SHIFT;

/// A page of a file, counted from 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilePage(pub u64);

impl FilePage {
    /// The page that holds a byte of the file.
    pub const fn of(byte: u64) -> Self {
        FilePage(byte >> PAGE_SHIFT)
    }

    /// The page `n` further on.
    pub const fn plus(self, n: u64) -> Self {
        FilePage(self.0.saturating_add(n))
    }
}

/// A policy's questions about a file's pages.
pub trait Cached {
    /// Size of the file in pages, including a last page that is not full.
    fn file_pages(&self) -> u64;

    /// The page is in memory, or a read of it is in flight.
    fn has(&self, page: FilePage) -> bool;

    /// How many pages right before `page` are cached without a gap; at most `most`.
    fn run_before(&self, page: FilePage, most: u64) -> u64 {
        let before = (0..page.0)
            .rev()
            .take(most.try_into().unwrap_or(usize::MAX));
        before.take_while(|&at| self.has(FilePage(at))).count() as u64
    }

    /// The first page that is not cached among the `most` from `from` on. The end of the file is not cached.
    fn first_absent(&self, from: FilePage, most: u64) -> Option<FilePage> {
        let end = from.0.saturating_add(most);
        (from.0..end).map(FilePage).find(|&page| !self.has(page))
    }
}
