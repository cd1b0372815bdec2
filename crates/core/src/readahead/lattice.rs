//! Rows of a matrix: pages at a constant distance in bytes that is no multiple of the page.
//!
//! Who walks along a row of a matrix whose columns lie one after the other touches a page in each
//! column, and the distance from one to the next, the *pitch*, is a column's bytes: 21.46 pages, say.
//! Page numbers then go on by 21, 22, 21, 21, 22 and so on, which no stride in pages foresees; and a
//! blocked algorithm takes the columns of a tile in an order of its own. So the pitch is learnt from
//! the exact addresses of four touches at equal distances, and a *lattice* is followed by it: the
//! pages that hold `first + k * pitch`. What is known of `first` is an interval, which every touch
//! narrows (the page that it touched must lie where it does). Touches may come in any order within a
//! few columns of the farthest one; what lies ahead is read, as far as the touches that have come
//! true speak for it and the area's latency asks for.

use alloc::vec::Vec;

use crate::units::{Nanos, PAGE_SIZE, PageRange, Vpn};

/// Touches of a region among which a pitch is looked for.
const RECENT: usize = 16;
/// Pitches that a region has at a time: those of the matrices in it that were used last.
const PITCHES: usize = 4;
/// The largest pitch, in bytes.
const WIDEST: u64 = 4 << 20;
/// Lattices that are followed at a time, those that have not come true yet included.
const LATTICES: usize = 64;
/// Columns behind and before the farthest touch in which a touch belongs to it.
const TILE: i64 = 32;
/// Touches on a lattice that make it one.
const PROVEN: u64 = 3;
/// Columns that are read ahead however fast the area is.
const LEAST: u64 = 32;
/// Columns of which one is a mark, and how far before the farthest touch columns are mapped.
const BLOCK: i64 = 16;
const MAPPED: u64 = 64;
/// A lattice that was not touched for this long is not read ahead.
const ASLEEP: Nanos = 100_000_000;
/// Time per column below which none is thought to be.
const FASTEST: Nanos = 500;

const PAGE: u64 = PAGE_SIZE as u64;

/// What is known of the matrices in one region.
#[derive(Clone, Copy, Debug)]
pub struct Pitches {
    /// Addresses of the last touches that nothing explains.
    recent: [u64; RECENT],
    next: usize,
    /// Distances in bytes, the one learnt last in front; 0 for none.
    pitches: [i64; PITCHES],
}

impl Default for Pitches {
    fn default() -> Self {
        Pitches {
            recent: [u64::MAX; RECENT],
            next: 0,
            pitches: [0; PITCHES],
        }
    }
}

impl Pitches {
    /// A touch that no stream explains.
    fn learn(&mut self, address: u64) {
        let newest_first = (1..=RECENT).map(|n| self.recent[(self.next + RECENT - n) % RECENT]);
        let before = |steps: i64, pitch: i64| address.wrapping_add_signed(-steps * pitch);
        let found = newest_first
            .filter(|&other| other != u64::MAX)
            .map(|other| address.wrapping_sub(other) as i64)
            .find(|&pitch| {
                (PAGE..WIDEST).contains(&pitch.unsigned_abs())
                    && !pitch.unsigned_abs().is_multiple_of(PAGE)
                    && (2..=3).all(|steps| self.recent.contains(&before(steps, pitch)))
            });
        self.recent[self.next] = address;
        self.next = (self.next + 1) % RECENT;
        if let Some(pitch) = found {
            let place = self.pitches.iter().position(|&known| known == pitch);
            self.pitches[..=place.unwrap_or(PITCHES - 1)].rotate_right(1);
            self.pitches[0] = pitch;
        }
    }
}

/// Names a lattice; a later one may take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LatticeId(usize);

/// One row: column `k` is the page that holds `first + k * pitch`.
#[derive(Clone, Copy, Debug)]
struct Lattice {
    pitch: i64,
    /// The interval in which `first` lies, and the likeliest place in it.
    low: u64,
    high: u64,
    likely: u64,
    /// The farthest column that was touched, and the first that was not read.
    farthest: i64,
    ahead: i64,
    /// The first column that may not be mapped before it is touched, and the first that was not
    /// looked at for that.
    mappable: i64,
    seen: i64,
    /// The page of the first touch; places the marks.
    origin: u64,
    /// Touches that came true.
    touched: u64,
    /// Memory was short: nothing more until the next touch.
    rests: bool,
    last: Nanos,
    /// Time per column, smoothed.
    pace: Nanos,
}

impl Lattice {
    const fn page(&self, column: i64) -> Vpn {
        Vpn::of(self.likely.wrapping_add_signed(column * self.pitch))
    }

    /// The interval of `first` for which `page` is that of `column`.
    const fn interval(&self, page: Vpn, column: i64) -> (u64, u64) {
        let low = page.address().wrapping_add_signed(-column * self.pitch);
        (low, low.wrapping_add(PAGE))
    }

    /// The column of `page`, if it is one of those that may be touched now.
    fn column(&self, page: Vpn) -> Option<i64> {
        let middle = page.address().wrapping_add(PAGE / 2);
        let distance = middle.wrapping_sub(self.likely) as i64;
        let pitch = self.pitch;
        let column = (distance + distance.signum() * pitch.abs() / 2) / pitch;
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

    /// Whether a column is left unmapped to tell how far the program has come.
    const fn is_mark(&self, column: i64) -> bool {
        let block = column.div_euclid(BLOCK);
        let mut hash = (self.origin ^ (block as u64) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        hash ^= hash >> 29;
        hash = hash.wrapping_mul(0xbf58_476d_1ce4_e5b9);
        column.rem_euclid(BLOCK) == (hash >> 32) as i64 % BLOCK
    }
}

/// All lattices of a process.
#[derive(Default)]
pub struct Lattices {
    all: Vec<Lattice>,
    /// Largest window, in pages; 0 follows none.
    max: u32,
}

impl Lattices {
    /// Follow lattices, up to `max` pages ahead.
    pub fn new(max: u32) -> Self {
        Lattices {
            all: Vec::new(),
            max,
        }
    }

    /// A touch of the absent page that holds `address`, which no stream explains: the lattice to which
    /// it belongs, moved on, if that has come true before.
    pub fn touch(&mut self, pitches: &mut Pitches, address: u64, now: Nanos) -> Option<LatticeId> {
        if self.max <= 1 {
            return None;
        }
        let page = Vpn::of(address);
        let mut found: Option<(usize, i64)> = None;
        for (n, lattice) in self.all.iter().enumerate() {
            if let Some(column) = lattice.column(page)
                && found.is_none_or(|(f, _)| self.all[f].touched < lattice.touched)
            {
                found = Some((n, column));
            }
        }
        if let Some((n, column)) = found {
            self.all[n].touch(page, column, now);
            return Some(LatticeId(n));
        }
        pitches.learn(address);
        for pitch in pitches.pitches.into_iter().filter(|&pitch| pitch != 0) {
            self.begin(address, pitch, now);
        }
        None
    }

    fn begin(&mut self, address: u64, pitch: i64, now: Nanos) {
        let low = Vpn::of(address).address();
        let lattice = Lattice {
            pitch,
            low,
            high: low + PAGE,
            // A touch of a page's first byte tells little: a block of rows has reached the page.
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
        if self.all.len() < LATTICES {
            return self.all.push(lattice);
        }
        // One that never came true goes first.
        let oldest = self.all.iter().enumerate();
        let oldest = oldest.min_by_key(|(_, l)| (l.touched >= PROVEN, l.last));
        if let Some((place, _)) = oldest {
            self.all[place] = lattice;
        }
    }

    /// Every lattice.
    pub fn ids(&self) -> impl Iterator<Item = LatticeId> + use<> {
        (0..self.all.len()).map(LatticeId)
    }

    /// The next page that `id` would read, unless it has not come true or its program has paused.
    pub fn next_page(&self, id: LatticeId, now: Nanos) -> Option<Vpn> {
        let lattice = &self.all[id.0];
        let awake = now.saturating_sub(lattice.last) < ASLEEP && !lattice.rests;
        (awake && lattice.touched >= PROVEN).then(|| lattice.page(lattice.ahead))
    }

    /// How many columns `id` should read next, within `region`, where a read takes `latency` and
    /// `memory` pages may hold what is read ahead.
    pub fn window(&self, id: LatticeId, region: &PageRange, latency: Nanos, memory: u64) -> u64 {
        let lattice = &self.all[id.0];
        let passed = 2 * latency / lattice.pace.max(FASTEST);
        let reach = (4 * lattice.touched).min(LEAST + passed);
        let reach = reach.min(self.max.into()).min(memory) as i64;
        let end = lattice.farthest + 1 + reach;
        if end - lattice.ahead < reach / 2 {
            // Many at once are read, and begun, for less.
            return 0;
        }
        (lattice.ahead..end)
            .take_while(|&column| region.contains(&lattice.page(column)))
            .count() as u64
    }

    /// The `count` next pages of `id`.
    pub fn pages(&self, id: LatticeId, count: u64) -> impl Iterator<Item = Vpn> + use<> {
        let lattice = self.all[id.0];
        (0..count as i64).map(move |n| lattice.page(lattice.ahead + n))
    }

    /// What of `id` may be mapped before it is touched, as far as it was read and not asked for before.
    pub fn take_mappable(&mut self, id: LatticeId) -> impl Iterator<Item = Vpn> + use<> {
        let lattice = &mut self.all[id.0];
        let from = lattice.seen.max(lattice.farthest + 1 - TILE);
        lattice.seen = lattice.mappable.min(lattice.ahead).max(from);
        let lattice = *lattice;
        (from..lattice.seen).map(move |column| lattice.page(column))
    }

    /// Tells of a page of `id` whether it is a mark; otherwise, whether it may be mapped before it is
    /// touched.
    pub fn placing(&self, id: LatticeId) -> impl Fn(Vpn) -> (bool, bool) + use<> {
        let lattice = self.all[id.0];
        move |page| {
            let column = lattice.column(page);
            column.map_or((false, false), |column| {
                let mark = lattice.is_mark(column);
                (mark, !mark && column < lattice.mappable)
            })
        }
    }

    /// `count` more pages of `id` were read, or need not be; memory was short for more if it `rests`.
    pub fn passed(&mut self, id: LatticeId, count: u64, rests: bool) {
        let lattice = &mut self.all[id.0];
        lattice.ahead += count as i64;
        lattice.rests = rests;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGION: PageRange = Vpn(1 << 20)..Vpn(2 << 20);
    const PITCH: u64 = 87_891;
    /// Times in these tests: a column, and what a read takes.
    const STEP: Nanos = 10_000;
    const LATENCY: Nanos = 100_000;

    fn at(row: u64, column: u64) -> u64 {
        REGION.start.address() + row * 8 + column * PITCH
    }

    /// Pages read ahead by what `addresses` touch, each once; and those that missed.
    fn follow(addresses: impl IntoIterator<Item = u64>) -> (Vec<Vpn>, usize) {
        let (mut lattices, mut pitches) = (Lattices::new(512), Pitches::default());
        let (mut read, mut missed) = (Vec::new(), 0);
        for (n, address) in (0..).zip(addresses) {
            missed += usize::from(!read.contains(&Vpn::of(address)));
            lattices.touch(&mut pitches, address, n * STEP);
            for id in lattices.ids() {
                if lattices.next_page(id, n * STEP).is_some() {
                    let count = lattices.window(id, &REGION, LATENCY, 1000);
                    read.extend(lattices.pages(id, count));
                    lattices.passed(id, count, false);
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

    /// The order of a blocked product: each tile of 12 columns in three passes, each column touched
    /// where the rows reach its next page.
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
