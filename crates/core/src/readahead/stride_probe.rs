//! Whether huge pages are read for a stream that leaves out most pages.
//!
//! A stream that touches every seventh page uses a seventh of a huge page, but a huge page needs one read and one
//! mapping instead of 73. (For rows of pages it is the same.) Which is faster depends on the disk. Huge pages are tried
//! first, and the stream's time per touch is measured. If it is longer than single pages take on a fast disk, single pages are tried as well. The faster
//! way is kept, also for later streams; the other is tried again now and then. A single measurement decides nothing: a
//! machine that is busy for a moment makes one slower, never faster, so the faster of two in a row counts.
//!
//! The faster way of one scan may be slower in the long run: if the same pages are touched again and again, they could
//! stay in memory without the others. Huge pages are therefore for touches at places where no stream of this stride was
//! before (a matrix that is read one column after the other), or where most places have been touched.

use super::grid::Grid;
use crate::units::{LEAF_PAGES, Nanos};

/// The largest stride, in pages, for which huge pages are tried.
pub const WIDE: u64 = 8;
/// Leaves over which one way is measured. After a change, as many pass unmeasured, as the old way still has an effect.
const LEAVES: u64 = 64;
/// Time per touch that is no reason to try single pages: evicting one page and mapping another takes about that.
const FAST: Nanos = 25_000;
/// Single pages must be slower than huge pages by this part.
const MARGIN: u64 = 8;
/// The unused way is assumed to become faster by this part at each measurement.
const DECAY: u64 = 128;

/// State of the wide streams of one region.
#[derive(Clone, Copy, Debug, Default)]
pub struct StrideProbe {
    step: u64,
    /// Places within a step at which there were streams, as bits.
    places: u8,
    /// Time per touch with single pages and with huge pages; 0: unknown.
    paces: [Nanos; 2],
}

/// How one wide stream reads.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// In huge pages.
    pub whole: bool,
    /// It reads single pages until there were streams at most places.
    fixed: bool,
    measures: bool,
    /// Time per touch in the previous measurement, if it was of the same way.
    before: Option<Nanos>,
    /// Touches in a leaf.
    leaf: u64,
    /// The start of the current measurement, in touches and in time.
    from: u64,
    since: Nanos,
}

impl StrideProbe {
    /// A stream was found that takes the pages of `grid`; `touched` is its number of touches.
    pub fn begin(&mut self, grid: &Grid, touched: u64, now: Nanos) -> Trial {
        let step = grid.step();
        if self.step != step {
            *self = StrideProbe {
                step,
                ..StrideProbe::default()
            };
        }
        let known = self.places & places(grid) != 0;
        self.places |= places(grid);
        let fixed = known && !self.has_most();
        Trial {
            whole: !fixed && self.prefers_whole(),
            fixed,
            measures: false,
            before: None,
            leaf: grid.within(LEAF_PAGES as u64),
            from: touched,
            since: now,
        }
    }

    /// There were streams at most places.
    fn has_most(&self) -> bool {
        2 * u64::from(self.places.count_ones()) > self.step
    }

    fn prefers_whole(&self) -> bool {
        match self.paces {
            [0, whole] => whole <= FAST,
            [single, whole] => whole + whole / MARGIN < single,
        }
    }

    /// One way took `pace` per touch. Returns whether to continue with huge pages.
    fn weigh(&mut self, whole: bool, pace: Nanos) -> bool {
        self.paces[usize::from(whole)] = pace.max(1);
        let other = &mut self.paces[usize::from(!whole)];
        *other -= *other / DECAY;
        self.prefers_whole()
    }
}

/// The places of a grid's pages within a step, as bits.
fn places(grid: &Grid) -> u8 {
    let bits = (0..grid.row).map(|at| 1 << (grid.page(at).0 % grid.step()));
    bits.fold(0, |all, bit: u8| all | bit)
}

impl Trial {
    /// The stream of `grid` has reached its touch number `touched`.
    pub fn go_on(&mut self, region: &mut StrideProbe, grid: &Grid, touched: u64, now: Nanos) {
        let leaf = grid.within(LEAF_PAGES as u64);
        if self.leaf != leaf {
            // It takes more pages: what is measured begins anew.
            (self.leaf, self.measures, self.before) = (leaf, false, None);
            (self.from, self.since) = (touched, now);
        }
        if region.step == grid.step() {
            region.places |= places(grid);
            if self.fixed && region.has_most() {
                (self.fixed, self.whole) = (false, region.prefers_whole());
            }
        }
        let passed = touched.saturating_sub(self.from);
        if self.fixed || passed < LEAVES * self.leaf {
            return;
        }
        if self.measures {
            let pace = now.saturating_sub(self.since) / passed;
            if let Some(before) = self.before.replace(pace) {
                let whole = region.weigh(self.whole, pace.min(before));
                if whole != self.whole {
                    (self.whole, self.measures, self.before) = (whole, false, None);
                }
            }
        } else {
            self.measures = true;
        }
        (self.from, self.since) = (touched, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Vpn;

    /// A stream of every 7th page at `place`, over `leaves`; each touch takes the time of its way. Returns how many
    /// touches were in huge pages, and all.
    fn pass(wide: &mut StrideProbe, place: u64, leaves: u64, takes: [Nanos; 2]) -> (u64, u64) {
        let mut now = 0;
        let grid = Grid::new(Vpn(place), 7);
        let mut trial = wide.begin(&grid, 16, now);
        let (mut whole, touches) = (0, leaves * LEAF_PAGES as u64 / 7);
        for touched in 17..=touches {
            now += takes[usize::from(trial.whole)];
            whole += u64::from(trial.whole);
            trial.go_on(wide, &grid, touched, now);
        }
        (whole, touches)
    }

    #[test]
    fn the_faster_way_is_found_and_kept() {
        for (takes, best) in [
            ([19_000, 10_000], true),
            ([10_000, 40_000], false),
            ([200_000, 80_000], true),
        ] {
            let mut wide = StrideProbe::default();
            pass(&mut wide, 0, 1000, takes);
            for place in 1..4 {
                let (whole, all) = pass(&mut wide, place, 1000, takes);
                let right = if best { whole } else { all - whole };
                assert!(
                    right * 10 > all * 9,
                    "{right} of {all} at {place}, {takes:?}"
                );
            }
        }
    }

    #[test]
    fn a_way_that_becomes_slow_is_left() {
        let mut wide = StrideProbe::default();
        pass(&mut wide, 0, 1000, [19_000, 10_000]);
        pass(&mut wide, 1, 1000, [19_000, 90_000]);
        let (whole, all) = pass(&mut wide, 2, 1000, [19_000, 90_000]);
        assert!(whole * 10 < all, "{whole} of {all}");
    }

    #[test]
    fn a_moment_in_which_the_machine_does_something_else_decides_nothing() {
        let takes = [19_000, 10_000];
        for pause in [70, 300, 600, 900] {
            let (mut wide, mut now, mut alone) = (StrideProbe::default(), 0, 0);
            let grid = Grid::new(Vpn(0), 7);
            let mut trial = wide.begin(&grid, 16, now);
            let touches = 2000 * LEAF_PAGES as u64 / 7;
            for touched in 17..=touches {
                now += takes[usize::from(trial.whole)];
                if touched == pause * LEAF_PAGES as u64 / 7 {
                    now += 1_000_000_000;
                }
                alone += u64::from(!trial.whole);
                trial.go_on(&mut wide, &grid, touched, now);
            }
            assert_eq!(alone, 0, "a second at leaf {pause}");
        }
    }

    /// The columns of a matrix that some columns were read of before, in turns.
    #[test]
    fn a_stream_is_read_alone_only_until_there_were_streams_at_most_places() {
        let mut wide = StrideProbe::default();
        let takes = [19_000, 10_000];
        for place in [0, 2, 4] {
            pass(&mut wide, place, 1000, takes);
        }
        let grid = Grid::new(Vpn(0), 7);
        let mut trial = wide.begin(&grid, 16, 0);
        trial.go_on(&mut wide, &grid, 17, 0);
        assert!(!trial.whole, "these pages may stay in memory");
        wide.begin(&Grid::new(Vpn(1), 7), 16, 0);
        trial.go_on(&mut wide, &grid, 18, 0);
        assert!(trial.whole, "all pages are touched");
    }

    #[test]
    fn places_touched_again_are_read_alone_until_most_are() {
        let mut wide = StrideProbe::default();
        let takes = [19_000, 10_000];
        assert!(pass(&mut wide, 3, 1000, takes).0 > 0);
        assert_eq!(pass(&mut wide, 3, 1000, takes).0, 0);
        for place in [0, 1, 2] {
            assert!(pass(&mut wide, place, 1000, takes).0 > 0, "{place}");
        }
        assert!(pass(&mut wide, 3, 1000, takes).0 > 0);
        // Another stride begins anew.
        wide.begin(&Grid::new(Vpn(0), 5), 16, 0);
        assert!(pass(&mut wide, 3, 1000, takes).0 > 0);
        assert_eq!(pass(&mut wide, 3, 1000, takes).0, 0);
    }
}
