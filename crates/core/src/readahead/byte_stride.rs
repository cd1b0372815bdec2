//! Rows of a matrix: pages at a constant distance in bytes that is no multiple of the page size.
//!
//! A walk along a row of a matrix that is stored by columns touches one page in each column. The distance from one
//! touch to the next, the *byte stride*, is the size of a column: 21.46 pages, for example. Page numbers then advance
//! by 21, 22, 21, 21, 22, which no stride in pages predicts, and a blocked algorithm takes the columns of a tile in its
//! own order. The byte stride is learned from the exact addresses of four touches at equal distances. From then on the
//! pages that hold `first + k * stride` are followed. `first` is known as an interval. Each touch narrows it, since the
//! touched page must lie on the stride. Touches may come in any order within a few columns of the farthest one. The
//! distance of readahead depends on the touches that were predicted and on the latency of the area.

use alloc::vec::Vec;

use crate::heuristics::{Heuristic, Heuristics};
use crate::units::{Nanos, PAGE_SIZE, PageRange, Vpn};

/// Touches of a region in which a stride is searched.
const RECENT: usize = 16;
/// Byte strides that a region has at a time: those of the matrices that were used last.
const STRIDES: usize = 4;
/// The largest stride, in bytes.
const WIDEST: u64 = 4 << 20;
/// Rows that are followed at a time, including those that are not confirmed yet.
const FOLLOWED: usize = 64;
/// Columns before and behind the farthest touch in which a touch belongs to the row.
const TILE: i64 = 32;
/// Touches that confirm a row.
const PROVEN: u64 = 3;
/// Columns that are read ahead however fast the area is.
const LEAST: u64 = 32;
/// One of this many columns is a mark; also how far before the farthest touch columns are mapped.
const BLOCK: i64 = 16;
const MAPPED: u64 = 64;
/// A row that was not touched for this long is not read ahead.
const ASLEEP: Nanos = 100_000_000;
/// The shortest time per column that is assumed.
const FASTEST: Nanos = 500;

const PAGE: u64 = PAGE_SIZE as u64;

/// The byte strides of one region.
#[derive(Clone, Copy, Debug)]
pub struct ByteStrideHistory {
    /// Addresses of the last touches that no stream explains.
    recent: [u64; RECENT],
    next: usize,
    /// Distances in bytes, the latest first; 0 for none.
    byte_strides: [i64; STRIDES],
}

impl Default for ByteStrideHistory {
    fn default() -> Self {
        ByteStrideHistory {
            recent: [u64::MAX; RECENT],
            next: 0,
            byte_strides: [0; STRIDES],
        }
    }
}

impl ByteStrideHistory {
    /// A touch that no stream explains.
    fn learn(&mut self, address: u64) {
        let newest_first = (1..=RECENT).map(|n| self.recent[(self.next + RECENT - n) % RECENT]);
        let before = |steps: i64, stride: i64| address.wrapping_add_signed(-steps * stride);
        let found = newest_first
            .filter(|&other| other != u64::MAX)
            .map(|other| address.wrapping_sub(other) as i64)
            .find(|&stride| {
                (PAGE..WIDEST).contains(&stride.unsigned_abs())
                    && !stride.unsigned_abs().is_multiple_of(PAGE)
                    && (2..=3).all(|steps| self.recent.contains(&before(steps, stride)))
            });
        self.recent[self.next] = address;
        self.next = (self.next + 1) % RECENT;
        if let Some(stride) = found {
            let place = self.byte_strides.iter().position(|&known| known == stride);
            self.byte_strides[..=place.unwrap_or(STRIDES - 1)].rotate_right(1);
            self.byte_strides[0] = stride;
        }
    }
}

/// Identifies a row; a later row may take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ByteStrideId(usize);

/// One row: column `k` is the page that holds `first + k * stride`.
#[derive(Clone, Copy, Debug)]
struct ByteStride {
    stride: i64,
    /// The interval that contains `first`, and the likeliest value.
    low: u64,
    high: u64,
    likely: u64,
    /// The farthest column that was touched, and the first that was not read.
    farthest: i64,
    ahead: i64,
    /// The first column that may not be mapped before it is touched, and the first that was not considered for it.
    mappable: i64,
    seen: i64,
    /// The page of the first touch; it places the marks.
    origin: u64,
    /// Touches that were predicted.
    touched: u64,
    /// Memory was short: no reads until the next touch.
    rests: bool,
    last: Nanos,
    /// Time per column, smoothed.
    pace: Nanos,
}

impl ByteStride {
    const fn page(&self, column: i64) -> Vpn {
        Vpn::of(self.likely.wrapping_add_signed(column * self.stride))
    }

    /// The interval of `first` for which `page` is the page of `column`.
    const fn interval(&self, page: Vpn, column: i64) -> (u64, u64) {
        let low = page.address().wrapping_add_signed(-column * self.stride);
        (low, low.wrapping_add(PAGE))
    }

    /// The column of `page`, if it may be touched now.
    fn column(&self, page: Vpn) -> Option<i64> {
        let middle = page.address().wrapping_add(PAGE / 2);
        let distance = middle.wrapping_sub(self.likely) as i64;
        let stride = self.stride;
        let column = (distance + distance.signum() * stride.abs() / 2) / stride;
        let (low, high) = self.interval(page, column);
        let fits = low < self.high && self.low < high;
        let near =
            column >= self.farthest - TILE && column <= (self.farthest + TILE).max(self.ahead);
        (fits && near).then_some(column)
    }

    fn touch(&mut self, page: Vpn, column: i64, now: Nanos) {
        let (low, high) = self.interval(page, column);
        (self.low, self.high) = (self.low.max(low), self.high.min(high));
        if !(self.low..self.high).contains(&self.likely) {
            self.likely = self.low + (self.high - self.low) / 2;
        }
        self.touched += 1;
        self.rests = false;
        if column > self.farthest {
            let pace = now.saturating_sub(self.last) / (column - self.farthest) as u64;
            self.pace = (7 * self.pace.min(8 * pace) + pace) / 8;
            self.farthest = column;
            self.last = now;
        }
        self.ahead = self.ahead.max(self.farthest + 1);
        if self.touched >= PROVEN {
            let reach = (2 * self.touched).min(MAPPED) as i64;
            self.mappable = self.mappable.max(self.farthest + 1 + reach);
        }
    }

    /// Whether a column is left unmapped to show the program's progress.
    const fn is_mark(&self, column: i64) -> bool {
        let block = column.div_euclid(BLOCK);
        let mut hash = (self.origin ^ (block as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        column.rem_euclid(BLOCK) == (hash >> 32) as i64 % BLOCK
    }
}

/// All rows of a process that are followed.
#[derive(Default)]
pub struct ByteStrides {
    all: Vec<ByteStride>,
    /// Largest window, in pages; 0 follows none.
    max: u32,
    heuristics: Heuristics,
}

impl ByteStrides {
    /// Follow rows, up to `max` pages ahead.
    pub fn new(max: u32) -> Self {
        ByteStrides {
            all: Vec::new(),
            max,
            heuristics: Heuristics::default(),
        }
    }

    /// Use only these heuristics.
    #[cfg(feature = "ablate")]
    pub fn set_heuristics(&mut self, heuristics: Heuristics) {
        self.heuristics = heuristics;
    }

    /// A touch of the absent page that holds `address`, which no stream explains. Returns the row to which it belongs,
    /// moved on, if that row predicted it.
    pub fn touch(
        &mut self,
        byte_strides: &mut ByteStrideHistory,
        address: u64,
        now: Nanos,
    ) -> Option<ByteStrideId> {
        if self.max <= 1 || !self.heuristics.has(Heuristic::ByteStrides) {
            return None;
        }
        let page = Vpn::of(address);
        let mut found: Option<(usize, i64)> = None;
        for (n, byte_stride) in self.all.iter().enumerate() {
            if let Some(column) = byte_stride.column(page)
                && found.is_none_or(|(f, _)| self.all[f].touched < byte_stride.touched)
            {
                found = Some((n, column));
            }
        }
        if let Some((n, column)) = found {
            self.all[n].touch(page, column, now);
            return Some(ByteStrideId(n));
        }
        byte_strides.learn(address);
        for stride in byte_strides
            .byte_strides
            .into_iter()
            .filter(|&stride| stride != 0)
        {
            self.begin(address, stride, now);
        }
        None
    }

    fn begin(&mut self, address: u64, stride: i64, now: Nanos) {
        let low = Vpn::of(address).address();
        let byte_stride = ByteStride {
            stride,
            low,
            high: low + PAGE,
            // A touch of a page's first byte says little: a block of rows has reached the page.
            likely: if address == low {
                low + PAGE / 2
            } else {
                address
            },
            farthest: 0,
            ahead: 1,
            mappable: 1,
            seen: 1,
            origin: low,
            touched: 1,
            rests: false,
            last: now,
            pace: 0,
        };
        if self.all.len() < FOLLOWED {
            return self.all.push(byte_stride);
        }
        // A row that predicted nothing is replaced first.
        let oldest = self.all.iter().enumerate();
        let oldest = oldest.min_by_key(|(_, l)| (l.touched >= PROVEN, l.last));
        if let Some((place, _)) = oldest {
            self.all[place] = byte_stride;
        }
    }

    /// Every row.
    pub fn ids(&self) -> impl Iterator<Item = ByteStrideId> + use<> {
        (0..self.all.len()).map(ByteStrideId)
    }

    /// The next page that `id` would read, unless it predicted nothing yet or its program has paused.
    pub fn next_page(&self, id: ByteStrideId, now: Nanos) -> Option<Vpn> {
        let byte_stride = &self.all[id.0];
        let awake = now.saturating_sub(byte_stride.last) < ASLEEP && !byte_stride.rests;
        (awake && byte_stride.touched >= PROVEN).then(|| byte_stride.page(byte_stride.ahead))
    }

    /// How many columns `id` should read next, within `region`, if a read takes `latency` and `memory` pages may hold
    /// readahead.
    pub fn window(&self, id: ByteStrideId, region: &PageRange, latency: Nanos, memory: u64) -> u64 {
        let byte_stride = &self.all[id.0];
        let passed = match self.heuristics.has(Heuristic::WindowByTime) {
            true => 2 * latency / byte_stride.pace.max(FASTEST),
            false => 0,
        };
        let reach = (4 * byte_stride.touched).min(LEAST + passed);
        let reach = reach.min(self.max.into()).min(memory) as i64;
        let end = byte_stride.farthest + 1 + reach;
        if end - byte_stride.ahead < reach / 2 {
            // A read of many at once costs less per page.
            return 0;
        }
        (byte_stride.ahead..end)
            .take_while(|&column| region.contains(&byte_stride.page(column)))
            .count() as u64
    }

    /// The `count` next pages of `id`.
    pub fn pages(&self, id: ByteStrideId, count: u64) -> impl Iterator<Item = Vpn> + use<> {
        let byte_stride = self.all[id.0];
        (0..count as i64).map(move |n| byte_stride.page(byte_stride.ahead + n))
    }

    /// The pages of `id` that may be mapped before their touch, as far as they were read and not returned before.
    pub fn take_mappable(&mut self, id: ByteStrideId) -> impl Iterator<Item = Vpn> + use<> {
        let maps = self.heuristics.has(Heuristic::DirectMapping);
        let byte_stride = &mut self.all[id.0];
        let from = byte_stride.seen.max(byte_stride.farthest + 1 - TILE);
        byte_stride.seen = byte_stride.mappable.min(byte_stride.ahead).max(from);
        let byte_stride = *byte_stride;
        let end = if maps { byte_stride.seen } else { from };
        (from..end).map(move |column| byte_stride.page(column))
    }

    /// Returns a function that tells whether a page of `id` is a mark, and otherwise whether it may be mapped before
    /// its touch.
    pub fn placing(&self, id: ByteStrideId) -> impl Fn(Vpn) -> (bool, bool) + use<> {
        let byte_stride = self.all[id.0];
        let maps = self.heuristics.has(Heuristic::DirectMapping);
        move |page| {
            let column = byte_stride.column(page);
            column.map_or((false, false), |column| {
                let mark = byte_stride.is_mark(column);
                (mark, maps && !mark && column < byte_stride.mappable)
            })
        }
    }

    /// `count` more pages of `id` were read, or need not be. `rests`: memory was short for more.
    pub fn passed(&mut self, id: ByteStrideId, count: u64, rests: bool) {
        let byte_stride = &mut self.all[id.0];
        byte_stride.ahead += count as i64;
        byte_stride.rests = rests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = Vpn(1 << 20)..Vpn(2 << 20);
    const PITCH: u64 = 87_891;
    /// Times in these tests: per column, and per read.
    const STEP: Nanos = 10_000;
    const LATENCY: Nanos = 100_000;

    fn at(row: u64, column: u64) -> u64 {
        REGION.start.address() + row * 8 + column * PITCH
    }

    /// Pages read ahead for the touches of `addresses`, each once; and the touches that missed.
    fn follow(addresses: impl IntoIterator<Item = u64>) -> (Vec<Vpn>, usize) {
        let (mut followed, mut history) = (ByteStrides::new(512), ByteStrideHistory::default());
        let (mut read, mut missed) = (Vec::new(), 0);
        for (n, address) in (0..).zip(addresses) {
            missed += usize::from(!read.contains(&Vpn::of(address)));
            followed.touch(&mut history, address, n * STEP);
            for id in followed.ids() {
                if followed.next_page(id, n * STEP).is_some() {
                    let count = followed.window(id, &REGION, LATENCY, 1000);
                    read.extend(followed.pages(id, count));
                    followed.passed(id, count, false);
                }
            }
        }
        (read, missed)
    }

    #[test]
    fn a_row_is_foreseen_after_a_few_columns() {
        let (read, missed) = follow((0..500).map(|column| at(77, column)));
        assert!(missed < 8, "{missed} of 500 missed");
        let useful = |page: &&Vpn| (0..500).any(|column| Vpn::of(at(77, column)) == **page);
        let wasted = read.len() - read.iter().filter(useful).count();
        assert!(wasted < 70, "{wasted} of {} read in vain", read.len());
    }

    #[test]
    fn a_row_is_foreseen_from_its_end() {
        let (_, missed) = follow((0..500).rev().map(|column| at(77, column)));
        assert!(missed < 8, "{missed} of 500 missed");
    }

    /// The order of a blocked product: each tile of 12 columns in three passes, and each column is touched where the
    /// rows reach its next page.
    #[test]
    fn columns_of_a_tile_may_come_in_any_order() {
        let learn = (0..12).map(|column| at(5_000, column));
        let next_page = |address: u64| (Vpn::of(address).plus(1)).address();
        let tile = |tile: u64| {
            let mut columns: Vec<u64> = (0..12).map(|n| at(300, tile * 12 + n)).collect();
            columns.sort_by_key(|&address| next_page(address) - address);
            columns.into_iter().map(next_page)
        };
        let (_, missed) = follow(learn.chain((0..40).flat_map(tile)));
        assert!(missed < 40, "{missed} of 492 missed");
    }

    #[test]
    fn chance_makes_no_lattice() {
        let mut state = 1u64;
        let mut random = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            REGION.start.address() + (state >> 24) % (REGION.end.address() - REGION.start.address())
        };
        let (read, _) = follow((0..3_000).map(|_| random()));
        assert_eq!(read.len(), 0);
    }

    #[test]
    fn nothing_is_read_beyond_the_region() {
        let last = (REGION.end.address() - at(0, 0)) / PITCH;
        let (read, _) = follow((last - 40..last).map(|column| at(0, column)));
        assert!(!read.is_empty() && read.iter().all(|page| REGION.contains(page)));
    }
}
