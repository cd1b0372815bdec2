//! Drop-behind: a scan of more memory than there is evicts the pages behind itself, before anything else is evicted.
//!
//! It would push out the working set of others, and its own pages before it comes back to them. While threads fault at
//! random, a scan yields: it is cut as soon as it is two huge pages long.

use crate::frames::clusters::UNIT;

/// A stream that has passed over this part of the resident pages is evicted behind itself, except for the last part.
const LONG: u64 = 8;
const KEPT: u64 = 16;
/// A stream is active while less than this part of the resident pages was evicted since its last touch.
const ACTIVE: u64 = 8;
/// Pages of such a stream that are searched for resident ones before the clock continues.
pub(crate) const OFFERED: u64 = 4 * UNIT as u64;

/// Evictions since its last touch for which a stream is active.
pub(crate) fn lately(resident: u64) -> u64 {
    (resident / ACTIVE).max(u64::from(UNIT))
}

/// How many pages a stream must have passed, and how many of its last ones stay; `resident` pages are mapped.
pub(crate) fn bounds(resident: u64, at_random: bool) -> (u64, u64) {
    match at_random {
        true => (2 * u64::from(UNIT), u64::from(UNIT)),
        false => (resident / LONG, resident / KEPT),
    }
}
