//! Whether the process faults on pages that no readahead could predict.
//!
//! Such a fault waits behind everything that streams and reclaim have given to the disk. While there are several of
//! them, background I/O is limited, writes are gathered, and clean small pages are kept ready. Every scan begins
//! with a few, so a few do not count. They are forgotten when reclaim has evicted an eighth of the resident
//! pages since, or after a while without any.

use crate::units::Nanos;

/// Random faults are forgotten when this part of the resident pages was evicted since the last one.
const FORGOTTEN_PART: u64 = 8;
/// Random faults from which on they count.
const ENOUGH: u32 = 16;
/// They are forgotten after this time without one. A random fault may itself have waited behind all that a scan has in
/// flight.
const QUIET: Nanos = 50_000_000;

/// How far reclaim has come: the clock that random faults age by.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReclaimClock {
    /// Pages evicted so far.
    pub evictions: u64,
    /// Pages of the program that are mapped.
    pub resident: u64,
}

/// A detector of random faults.
#[derive(Debug, Default)]
pub(crate) struct RandomFaults {
    count: u32,
    /// When the last one was, in evictions and in time.
    evictions: u64,
    at: Nanos,
}

impl RandomFaults {
    /// A page was missed that no readahead predicted.
    pub fn on_fault(&mut self, clock: ReclaimClock, now: Nanos) {
        if !self.is_recent(clock) {
            self.count = 0;
        }
        self.count = (self.count + 1).min(ENOUGH);
        (self.evictions, self.at) = (clock.evictions, now);
    }

    /// There were several lately.
    pub fn are_frequent(&self, clock: ReclaimClock) -> bool {
        self.count == ENOUGH && self.is_recent(clock)
    }

    /// Forget them if the last one is long ago.
    pub fn expire(&mut self, now: Nanos) {
        if now.saturating_sub(self.at) > QUIET {
            self.count = 0;
        }
    }

    fn is_recent(&self, clock: ReclaimClock) -> bool {
        clock.evictions.saturating_sub(self.evictions) < clock.resident / FORGOTTEN_PART
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn clock(evictions: u64) -> ReclaimClock {
        ReclaimClock {
            evictions,
            resident: 800,
        }
    }

    fn frequent() -> RandomFaults {
        let mut faults = RandomFaults::default();
        for n in 0..ENOUGH {
            assert!(!faults.are_frequent(clock(0)), "after {n}");
            faults.on_fault(clock(0), 1);
        }
        faults
    }

    #[test]
    fn several_count_until_an_eighth_of_memory_was_evicted() {
        let faults = frequent();
        assert!(faults.are_frequent(clock(99)));
        assert!(!faults.are_frequent(clock(100)));
    }

    #[test]
    fn an_old_series_does_not_count_for_a_new_one() {
        let mut faults = frequent();
        faults.on_fault(clock(100), 2);
        assert!(!faults.are_frequent(clock(100)));
    }

    #[test]
    fn without_one_for_a_while_they_are_forgotten() {
        let mut faults = frequent();
        faults.expire(1 + QUIET);
        assert!(faults.are_frequent(clock(0)));
        faults.expire(2 + QUIET);
        assert!(!faults.are_frequent(clock(0)));
    }
}
