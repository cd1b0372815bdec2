//! Drop-behind: a scan of more memory than there is evicts the pages behind itself, before anything else is evicted.
//!
//! It would push out the working set of others, and its own pages before it comes back to them. A scan is known not to
//! fit in memory when its pages are read again after more than all of memory was evicted. A scan of unknown size has to
//! be long first. While threads fault at random, a scan yields: it is cut as soon as it is two huge pages long.

use crate::frames::clusters::UNIT;

/// A scan of unknown size that has passed over this part of the resident pages is evicted behind itself, except for the
/// last part.
const LONG: u64 = 8;
const KEPT: u64 = 16;
/// The same for a scan that does not fit in memory, or yields, in pages.
const SHORT: (u64, u64) = (2 * UNIT as u64, UNIT as u64);
/// A stream is active while less than this part of the resident pages was evicted since its last touch. The time does not
/// matter: a thread that waits for a CPU touches nothing, and evicts nothing.
const ACTIVE: u64 = 8;
/// Pages of such a stream that are searched for resident ones before the sweep continues.
pub(crate) const OFFERED: u64 = 4 * UNIT as u64;

/// Which streams are evicted behind themselves.
pub(crate) struct Bounds {
    /// Evictions since its last touch for which a stream is active.
    pub lately: u64,
    /// How many pages a stream of unknown size must have passed, and how many of its last ones stay.
    unknown: (u64, u64),
}

impl Bounds {
    /// `resident` pages are mapped; `at_random`: threads fault at random.
    pub fn new(resident: u64, at_random: bool) -> Self {
        Bounds {
            lately: (resident / ACTIVE).max(UNIT.into()),
            unknown: match at_random {
                true => SHORT,
                false => (resident / LONG, resident / KEPT),
            },
        }
    }

    /// How many pages a stream must have passed, and how many of its last ones stay. `None`: no page of it is taken. A
    /// finished stream that fits in memory keeps its pages: a repeat finds most of them there.
    pub fn of(&self, exceeds_memory: bool, is_active: bool) -> Option<(u64, u64)> {
        match (exceeds_memory, is_active) {
            (true, true) => Some(SHORT),
            (true, false) => Some((SHORT.0, 0)),
            (false, false) => None,
            (false, true) => Some(self.unknown),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_that_does_not_fit_is_evicted_early() {
        let (quiet, random) = (Bounds::new(80_000, false), Bounds::new(80_000, true));
        assert_eq!(quiet.of(false, true), Some((10_000, 5_000)));
        assert_eq!(random.of(false, true), Some((1024, 512)));
        assert_eq!(quiet.of(true, true), Some((1024, 512)));
        assert_eq!(quiet.of(true, false), Some((1024, 0)));
        assert_eq!(random.of(false, false), None);
        assert_eq!((quiet.lately, Bounds::new(8, true).lately), (10_000, 512));
    }
}
