//! One stream: its position, how far it was read and mapped, and where its pages are.

use super::grid::Grid;
use super::run::Run;
use super::stride_probe::Trial;
use crate::heuristics::{Heuristic, Heuristics};
use crate::huge::unit_of;
use crate::units::{LEAF_PAGES, Nanos, PageRange, Vpn};
use crate::world::StoreId;

/// One of this many pages of a stream is left unmapped: the least and the most.
pub(super) const BLOCK: (u64, u64) = (16, 256);
/// Pages after which a stream is confirmed and has a share of the memory; two neighbours by chance have none.
pub(super) const PROVEN: u64 = 16;
/// A stream that was not touched for this long has no share of the memory any more.
pub(super) const ASLEEP: Nanos = 100_000_000;

/// One run of touches. Positions are those of its grid.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) grid: Grid,
    /// Position of the last touch, and of the one before it.
    pub(super) touched: u64,
    pub(super) before: u64,
    /// Touches so far, and those after which it is read ahead ([`super::profit`]).
    pub(super) touches: u32,
    pub(super) needed: u32,
    /// Marks that it left out since one was touched.
    pub(super) doubts: u32,
    /// First position that may not be mapped before it is touched.
    pub(super) mappable: u64,
    /// First position that was not considered for mapping.
    pub(super) seen: u64,
    /// First position that was not read, and the number of pages before it, not touched yet, that are mapped: the
    /// stream will pass them without a touch that is seen.
    pub(super) ahead: u64,
    pub(super) present: u64,
    /// Its readahead had to be dropped: no reads until the next touch.
    pub(super) rests: bool,
    /// Its touches mapped huge pages, one each, which hides other touches: it reads nothing for this many more.
    pub(super) hidden: u32,
    /// One of this many pages is a mark; a power of two.
    pub(super) block: u64,
    /// When it was touched last, the number of pages that had been evicted by then, and its time per page, smoothed.
    pub(super) last: Nanos,
    pub(super) evictions: u64,
    pub(super) pace: Nanos,
    /// Where it is read from, and the pages that it may have in the pipe to it.
    pub(super) store: Option<StoreId>,
    pub(super) pipe: u64,
    /// Pages that were read after more than the whole memory had been evicted since they were, less the others. What
    /// lingered in memory before it was evicted, as a scan's last pages may, comes back sooner than the rest.
    pub(super) beyond_memory: i64,
    /// The position at which runs like it ended: it is read up to there at once, and not beyond before it is reached.
    pub(super) run_end: Option<u64>,
    /// The end of the huge pages that were read whole for it.
    pub(super) whole: u64,
    /// Positions that lie in its region, as far as is known.
    pub(super) room: u64,
    /// First position behind it that was not offered for drop-behind.
    pub(super) tail: u64,
    /// It leaves out most pages: how it reads.
    pub(super) trial: Option<Trial>,
    pub(super) heuristics: Heuristics,
}

impl Stream {
    pub(super) fn page(&self, position: u64) -> Vpn {
        self.grid.page(position)
    }

    /// Whether it has a share of the memory, and of the pipe to its store.
    pub(super) fn has_share(&self, now: Nanos) -> bool {
        self.touched >= PROVEN && now.saturating_sub(self.last) < ASLEEP
    }

    /// Pages from its begin to the end of what its last touch stands for: a huge page, or a block.
    pub(super) fn length(&self) -> u64 {
        let unit_end = unit_of(self.page(self.touched)).plus(LEAF_PAGES as u64);
        match self.touched < self.whole {
            true => self.whole.min(unit_end.0 - self.grid.origin.0),
            false => (self.touched + 1)
                .next_multiple_of(self.block)
                .min(self.mappable),
        }
    }

    /// Pages of a block, one of which is left unmapped: an eighth of what is read ahead, or of a run of known length.
    pub(super) fn block_for(&self, farthest: u64) -> u64 {
        let (least, most) = BLOCK;
        if !self.heuristics.has(Heuristic::MarkDistance) {
            return least;
        }
        let pages = self
            .run_end
            .filter(|&end| self.touched < end)
            .unwrap_or(farthest);
        (pages.min(farthest) / 8 + 1)
            .next_power_of_two()
            .clamp(least, most)
    }

    /// Take the pages of `grid` from now on, which are more, and lie around its own.
    pub(super) fn take(&mut self, grid: Grid) {
        let old = core::mem::replace(&mut self.grid, grid);
        let moved = grid.forward(old.origin).unsigned_abs();
        let at = |position| grid.within(old.distance(position) + moved);
        self.touched = at(self.touched);
        (self.before, self.tail) = (self.touched, at(self.tail));
        (self.seen, self.ahead) = (self.touched + 1, self.touched + 1);
        (self.mappable, self.whole) = (at(self.mappable), at(self.whole));
        (self.present, self.room) = (0, u64::MAX);
        self.run_end = None;
    }

    /// Follow nothing any longer.
    pub(super) fn end(&mut self) {
        (self.ahead, self.mappable) = (self.touched, self.touched);
        (self.present, self.last) = (0, 0);
    }

    /// It does not fit in memory: that holds for most of its pages.
    pub(super) fn exceeds_memory(&self) -> bool {
        self.beyond_memory > 0
    }

    /// Whether it has reached the last leaf of its region.
    pub(super) fn is_at_end(&self) -> bool {
        self.touched + self.grid.within(LEAF_PAGES as u64) >= self.room
    }

    pub(super) fn position(&self, page: Vpn) -> Option<u64> {
        self.grid.position(page)
    }

    /// As [`Stream::position`], but only as far as the stream has read. Most streams are elsewhere, and need no
    /// division.
    pub(super) fn expected(&self, page: Vpn) -> Option<u64> {
        let farthest = self.grid.distance(self.ahead) as i64;
        (0..=farthest)
            .contains(&self.grid.forward(page))
            .then(|| self.position(page))?
    }

    /// The position in its block that is left unmapped.
    pub(super) fn mark(&self, block: u64) -> u64 {
        if !self.heuristics.has(Heuristic::ScatteredMarks) {
            return block * self.block;
        }
        let mut hash = (self.grid.origin.0 ^ block << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        block * self.block + (hash >> 32) % self.block
    }

    pub(super) fn run(&self, position: u64, count: u64) -> Run {
        Run {
            grid: self.grid,
            from: position,
            count,
        }
    }

    /// Positions whose pages lie in `region`, from 0 on.
    pub(super) fn within(&self, region: &PageRange) -> u64 {
        let pages = match self.grid.falls() {
            true => (self.grid.origin.0 + 1).saturating_sub(region.start.0),
            false => region.end.0.saturating_sub(self.grid.origin.0),
        };
        self.grid.within(pages.max(1))
    }
}
