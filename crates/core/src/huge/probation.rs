//! Whether a huge page that was never evicted before is in use.
//!
//! The engine has no accessed bit for mapped memory. Small pages prove their use on the way out: a page in use is
//! touched again while it waits in its frame, is mapped again and stays for some time. A huge page is in its frames for
//! a moment only. Once it is written, it comes back page by page where faults are random. A huge page that is evicted
//! for its age therefore rests before it is written: it is on *probation*. Meanwhile the other huge pages stay, as
//! pages that come and go, most of them small and clean, make room for each other. If a unit was not touched, more go
//! on probation at a time; if it was, only one.

use crate::units::{LEAF_PAGES, Nanos};

/// How long a huge page rests. If any of its pages is touched every 10 ms, 99 of 100 probations prove it.
pub(crate) const REST_TIME: Nanos = 50_000_000;
/// The part of mapped memory that may be on probation at a time.
const TRIALS: u64 = 4;
/// Small pages recycle each other if they are at least this many times the frames that reclaim keeps ready.
const SINGLES: u64 = 4;

/// How many units may rest at a time.
#[derive(Default)]
pub(crate) struct Probation {
    trials: u32,
}

impl Probation {
    /// Whether the clock hand is to skip huge pages: `resting` of them are on probation, and the `singles` mapped small
    /// pages recycle each other; `high` frames are kept ready.
    pub fn spares_others(&self, resting: u32, singles: u64, high: u32) -> bool {
        resting >= self.trials.max(1) && singles >= SINGLES * u64::from(high)
    }

    /// A unit was not touched while it rested; `resident` pages are mapped.
    pub fn on_unused(&mut self, resident: u64) {
        let most = resident / TRIALS / LEAF_PAGES as u64;
        self.trials = (self.trials.max(1) * 2).min(most as u32);
    }

    /// A unit was touched.
    pub fn on_used(&mut self) {
        self.trials = 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unused_units_let_more_go_on_probation_and_a_used_one_only_one() {
        let mut probation = Probation::default();
        let spares = |probation: &Probation, resting| probation.spares_others(resting, 400, 100);
        assert!(!spares(&probation, 0) && spares(&probation, 1));
        let resident = 64 * LEAF_PAGES as u64;
        probation.on_unused(resident);
        assert!(!spares(&probation, 1) && spares(&probation, 2));
        for _ in 0..10 {
            probation.on_unused(resident);
        }
        assert!(
            !spares(&probation, 15) && spares(&probation, 16),
            "a quarter of memory"
        );
        probation.on_used();
        assert!(spares(&probation, 1));
        assert!(!probation.spares_others(1, 399, 100), "small pages are few");
    }
}
