//! How a fault without memory ends.
//!
//! A fault waits for a bounded time. If the areas are full then, swapoff is given up if there is one; otherwise the
//! page is poisoned. If pages cannot be evicted for other reasons (they are locked, read-only, or shared by a fork), the
//! limit yields to the fault.

use super::grace::GRACE;
use crate::units::Nanos;

/// How long a fault waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// While the areas are full.
    pub full: Nanos,
    /// For pages that cannot be evicted, before the limit yields. For the same time the limit then yields at once.
    pub unmovable: Nanos,
    /// The wait is longer by this factor while I/O is in flight, which may free memory. It is bounded, as an I/O may
    /// never complete, and writes may free memory that others take at once. While the areas are full, it lasts until all
    /// I/O has ended that began before: a read may wait for a server. Writes that an area refuses begin again and again.
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
    /// When the oldest I/O began that is in flight, and may free memory.
    pub in_flight: Option<Nanos>,
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

impl Config {
    /// The end of a fault that waits for memory `since` then. `yields`: the limit yielded a short time ago.
    pub fn ending(&self, shortage: &Shortage, since: Nanos, now: Nanos, yields: bool) -> Ending {
        let &Shortage {
            held,
            areas_full,
            drains,
            in_flight,
            enough_recent,
        } = shortage;
        let patience = match areas_full {
            _ if held => self.held,
            true if drains => self.held,
            true => self.full,
            false if yields && enough_recent => GRACE,
            false if yields => 0,
            false => self.full.min(self.unmovable),
        };
        let waited = now.saturating_sub(since);
        let longest = self.longer * patience.max(self.unmovable);
        let may_free = in_flight.is_some_and(|begun| match areas_full {
            true => begun < since + patience,
            false => waited < longest,
        });
        if waited < patience || may_free {
            Ending::Waits
        } else if held || !areas_full {
            Ending::LimitYields
        } else if drains {
            Ending::Starved
        } else {
            Ending::Lost
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Nanos = 1_000_000_000;
    const SHORT: Shortage = Shortage {
        held: false,
        areas_full: false,
        drains: false,
        in_flight: None,
        enough_recent: false,
    };

    /// The fault waits until just before `time`, and ends so then.
    fn ends(shortage: Shortage, yields: bool, time: Nanos, ending: Ending) {
        let config = Config::new(10 * SECOND);
        let at = |time| config.ending(&shortage, SECOND, SECOND + time, yields);
        assert_eq!(
            (at(time - 1), at(time)),
            (Ending::Waits, ending),
            "{shortage:?}"
        );
    }

    #[test]
    fn the_reason_decides_how_the_wait_ends() {
        let (held, areas_full, drains, in_flight) = (true, true, true, Some(0));
        let ends = |shortage, time, ending| ends(shortage, false, time, ending);
        ends(SHORT, SECOND / 5, Ending::LimitYields);
        ends(
            Shortage { in_flight, ..SHORT },
            5 * SECOND,
            Ending::LimitYields,
        );
        ends(
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
        ends(swapoff, SECOND / 20, Ending::Starved);
        ends(Shortage { held, ..SHORT }, SECOND / 20, Ending::LimitYields);
        ends(
            Shortage { held, ..swapoff },
            SECOND / 20,
            Ending::LimitYields,
        );
        let writes = Shortage {
            areas_full,
            in_flight,
            ..SHORT
        };
        let ending = Config::new(10 * SECOND).ending(&writes, 0, 1000 * SECOND, false);
        assert_eq!(ending, Ending::Waits);
    }

    /// Writes that an area refuses, as compressed memory that is full does, begin again and again.
    #[test]
    fn io_that_begins_when_the_wait_is_over_does_not_make_it_longer() {
        let config = Config::new(10 * SECOND);
        let ending = |begun, now| {
            let shortage = Shortage {
                areas_full: true,
                in_flight: Some(begun),
                ..SHORT
            };
            config.ending(&shortage, SECOND, now, false)
        };
        assert_eq!(ending(11 * SECOND - 1, 100 * SECOND), Ending::Waits);
        assert_eq!(ending(11 * SECOND, 11 * SECOND), Ending::Lost);
        assert_eq!(ending(11 * SECOND - 1, 11 * SECOND - 1), Ending::Waits);
    }

    #[test]
    fn a_limit_that_yielded_yields_again_at_once_or_takes_a_recent_page() {
        let enough_recent = true;
        let ending = Config::new(10 * SECOND).ending(&SHORT, 0, 0, true);
        assert_eq!(ending, Ending::LimitYields);
        ends(
            Shortage {
                enough_recent,
                ..SHORT
            },
            true,
            GRACE,
            Ending::LimitYields,
        );
    }
}
