//! Counts of a cache, kept so that no two threads write the same line for a hit.
//!
//! The first threads of a process have a line of their own in each cache, and count with a load and a store. A locked
//! addition behind a copy waits until all of the copy's stores have left the processor.
//! Later threads share as many lines, and lock them.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Lines of one thread each. They are not used again when the thread has ended.
const OWN: usize = 32;
/// All lines.
const LINES: usize = 2 * OWN;

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
#[derive(Debug)]
pub struct Counters {
    lines: [Line; LINES],
    pub pages_read: AtomicU64,
    pub pages_written: AtomicU64,
    pub transfers: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            lines: std::array::from_fn(|_| Line::default()),
            pages_read: AtomicU64::default(),
            pages_written: AtomicU64::default(),
            transfers: AtomicU64::default(),
        }
    }
}

thread_local! {
    static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
}

impl Counters {
    fn add(&self, to: impl Fn(&Line) -> &AtomicU64, count: u64) {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let line = LINE.with(|line| {
            if line.get() == usize::MAX {
                let n = NEXT.fetch_add(1, Ordering::Relaxed);
                line.set(if n < OWN { n } else { OWN + n % OWN });
            }
            line.get()
        });
        let counter = to(&self.lines[line]);
        if line >= OWN {
            counter.fetch_add(count, Ordering::Relaxed);
        } else {
            // Nobody else writes it.
            counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
        }
    }

    /// One read found so many pages.
    pub fn hits(&self, pages: u64) {
        self.add(|line| &line.hits, pages);
    }

    /// A read had to wait for a page.
    pub fn miss(&self) {
        self.add(|line| &line.misses, 1);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_lines_lose_no_count() {
        let counters = Counters::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * LINES {
                scope.spawn(|| (0..1000).for_each(|_| counters.hits(2)));
            }
        });
        counters.miss();
        let sum = counters.sum();
        assert_eq!((sum.hits, sum.misses), (2 * 1000 * 2 * LINES as u64, 1));
    }
}
