//! How a fault without memory ends.
//!
//! A fault waits for a bounded time. If the areas are full then, swapoff is given up if there is one; otherwise the
//! page is poisoned. If pages cannot be evicted for other reasons (they are locked, read-only, or shared by a fork), the
//! limit yields to the fault.

use super::grace::GRACE;
use super::{Pending, Waiters};
use crate::units::Nanos;

/// How long a fault waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// While the areas are full.
    pub full: Nanos,
    /// For pages that cannot be evicted, before the limit yields. For the same time the limit then yields at once.
    pub unmovable: Nanos,
    /// The wait is longer by this factor while I/O is in flight, which may free memory. It is bounded, as an I/O may
    /// never complete, and writes may free memory that others take at once.
    pub longer: Nanos,
    /// For the end of a fork, or of a swapoff. The waiting thread may be the forking thread itself, or hold a lock that
    /// it needs.
    pub held: Nanos,
}

impl Config {
    /// No wait is longer than `full`, except for I/O.
    pub fn new(full: Nanos) -> Self {
        Config {
            full,
            unmovable: 200_000_000,
            longer: 25,
            held: 50_000_000.min(full),
        }
    }
}

/// Why a fault finds no memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shortage {
    /// A fork is held: nothing is evicted.
    pub held: bool,
    /// No area accepts a page.
    pub areas_full: bool,
    /// An area is being emptied.
    pub drains: bool,
    /// I/O is in flight, which may free memory.
    pub in_flight: bool,
    /// As many recently faulted pages are mapped as threads may need at a time: one of them can be evicted in a moment.
    pub enough_recent: bool,
}

/// How the wait of the first fault ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// It goes on.
    Waits,
    /// Swapoff is given up.
    Starved,
    /// The page is lost.
    Lost,
    /// The limit yields.
    LimitYields,
}

impl Waiters {
    /// What happens to the fault that has waited longest for memory.
    pub fn ending(&self, shortage: &Shortage, now: Nanos) -> Ending {
        let Some(first) = self.first() else {
            return Ending::Waits;
        };
        let &Shortage {
            held,
            areas_full,
            drains,
            in_flight,
            enough_recent,
        } = shortage;
        let config = &self.config;
        let patience = match areas_full {
            _ if held => config.held,
            true if drains => config.held,
            true => config.full,
            false if now < self.yields_until && enough_recent => GRACE,
            false if now < self.yields_until => 0,
            false => config.full.min(config.unmovable),
        };
        let waited = now.saturating_sub(first.stalled.unwrap_or(now));
        let longest = config.longer * patience.max(config.unmovable);
        if waited < patience || in_flight && (areas_full || waited < longest) {
            Ending::Waits
        } else if held || !areas_full {
            Ending::LimitYields
        } else if drains {
            Ending::Starved
        } else {
            Ending::Lost
        }
    }

    /// No page can be evicted: the limit yields at once for a while.
    pub fn yield_limit(&mut self, now: Nanos) {
        self.yields_until = now + self.config.unmovable;
    }

    /// Pages can be evicted again.
    pub fn keep_limit(&mut self) {
        self.yields_until = 0;
    }

    /// Time until waiting faults may get memory without any event: pages that were just mapped for threads may then be
    /// evicted, or the limit yields once more. `None`: no such time is near.
    pub fn moment_left(&self, now: Nanos, enough_recent: impl FnOnce() -> bool) -> Option<Nanos> {
        let first: &Pending = self.first()?;
        let yields = now < self.yields_until && enough_recent();
        let waited = first.stalled.filter(|_| yields);
        let left = waited.and_then(|since| (since + GRACE).checked_sub(now));
        let left = left.filter(|&left| left > 0);
        let untouched = self.recent().untouched_for(now);
        untouched.into_iter().chain(left).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::Vpn;

    const SECOND: Nanos = 1_000_000_000;
    const SHORT: Shortage = Shortage {
        held: false,
        areas_full: false,
        drains: false,
        in_flight: false,
        enough_recent: false,
    };

    fn waiters() -> Waiters {
        let mut waiters = Waiters::new(Config::new(10 * SECOND));
        waiters.stall(Pending::of(Vpn(1), 0), 0);
        waiters
    }

    /// The fault waits until just before `time`, and ends so then.
    fn ends(waiters: &Waiters, shortage: Shortage, time: Nanos, ending: Ending) {
        assert_eq!(
            waiters.ending(&shortage, time - 1),
            Ending::Waits,
            "{shortage:?}"
        );
        assert_eq!(waiters.ending(&shortage, time), ending, "{shortage:?}");
    }

    #[test]
    fn the_reason_decides_how_the_wait_ends() {
        let (full, held) = (true, true);
        let (areas_full, drains, in_flight) = (full, true, true);
        let waiters = waiters();
        ends(&waiters, SHORT, SECOND / 5, Ending::LimitYields);
        ends(
            &waiters,
            Shortage { in_flight, ..SHORT },
            5 * SECOND,
            Ending::LimitYields,
        );
        ends(
            &waiters,
            Shortage {
                areas_full,
                ..SHORT
            },
            10 * SECOND,
            Ending::Lost,
        );
        let swapoff = Shortage {
            areas_full,
            drains,
            ..SHORT
        };
        ends(&waiters, swapoff, SECOND / 20, Ending::Starved);
        ends(
            &waiters,
            Shortage { held, ..SHORT },
            SECOND / 20,
            Ending::LimitYields,
        );
        ends(
            &waiters,
            Shortage { held, ..swapoff },
            SECOND / 20,
            Ending::LimitYields,
        );
        let writes = Shortage {
            areas_full,
            in_flight,
            ..SHORT
        };
        assert_eq!(waiters.ending(&writes, 1000 * SECOND), Ending::Waits);
    }

    #[test]
    fn a_limit_that_yielded_yields_at_once_for_a_while() {
        let mut waiters = waiters();
        waiters.yield_limit(0);
        assert_eq!(waiters.ending(&SHORT, 0), Ending::LimitYields);
        let enough_recent = true;
        ends(
            &waiters,
            Shortage {
                enough_recent,
                ..SHORT
            },
            GRACE,
            Ending::LimitYields,
        );
        assert_eq!(waiters.moment_left(1, || true), Some(GRACE - 1));
        assert_eq!(waiters.moment_left(1, || false), None);
        waiters.keep_limit();
        ends(&waiters, SHORT, SECOND / 5, Ending::LimitYields);
    }
}
