//! Counts of a cache, kept so that no two threads write the same line for a hit.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const LINES: usize = 32;

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Pages that reads found in memory.
    pub hits: u64,
    /// Pages that reads had to wait for: they were not in memory, or still on their way.
    pub misses: u64,
    /// Pages read from stores, readahead included.
    pub pages_read: u64,
    /// Pages written to stores.
    pub pages_written: u64,
    /// Transfers of both kinds.
    pub transfers: u64,
    /// Pages that are dirty or being written now.
    pub dirty_pages: u64,
    /// Frames without a page now.
    pub free_pages: u64,
}

#[derive(Debug, Default)]
#[repr(align(128))]
struct Line {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// The counters.
#[derive(Debug, Default)]
pub struct Counters {
    lines: [Line; LINES],
    pub pages_read: AtomicU64,
    pub pages_written: AtomicU64,
    pub transfers: AtomicU64,
}

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Counters {
    fn line(&self) -> &Line {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let line = LINE.with(|line| {
            if line.get() == usize::MAX {
                line.set(NEXT.fetch_add(1, Ordering::Relaxed));
            }
            line.get()
        });
        &self.lines[line % LINES]
    }

    /// One read found so many pages.
    pub fn hits(&self, pages: u64) {
        self.line().hits.fetch_add(pages, Ordering::Relaxed);
    }

    /// A read had to wait for a page.
    pub fn miss(&self) {
        self.line().misses.fetch_add(1, Ordering::Relaxed);
    }

    /// A transfer has ended.
    pub fn transferred(&self, of: &AtomicU64, pages: u64) {
        of.fetch_add(pages, Ordering::Relaxed);
        self.transfers.fetch_add(1, Ordering::Relaxed);
    }

    /// The sums.
    pub fn sum(&self) -> Stats {
        let sum = |of: fn(&Line) -> &AtomicU64| {
            let each = self
                .lines
                .iter()
                .map(|line| of(line).load(Ordering::Relaxed));
            each.sum()
        };
        Stats {
            hits: sum(|line| &line.hits),
            misses: sum(|line| &line.misses),
            pages_read: self.pages_read.load(Ordering::Relaxed),
            pages_written: self.pages_written.load(Ordering::Relaxed),
            transfers: self.transfers.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }
}
