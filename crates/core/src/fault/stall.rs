//! How long threads of this process have waited for memory.
//!
//! The kernel's pressure figures call this "some": the time in which at least one thread waited, not the sum over all
//! threads. A fault is known as an interval when it has been served, and intervals overlap. The union of the last few
//! is kept, so that no moment counts twice.

use crate::units::Nanos;

/// Intervals that are kept. Threads that wait at the same time end soon after each other, so a few are enough. What
/// began before all of them counts from their begin on.
const KEPT: usize = 16;

/// The time in which at least one thread waited.
#[derive(Default)]
pub(crate) struct StallTime {
    total: Nanos,
    /// Disjoint intervals in order.
    spans: [(Nanos, Nanos); KEPT],
    used: usize,
    /// The end of the last interval that was dropped.
    forgotten: Nanos,
}

impl StallTime {
    /// The time so far.
    pub fn total(&self) -> Nanos {
        self.total
    }

    /// A thread has waited from `since` until `now`, which never goes back.
    pub fn add(&mut self, since: Nanos, now: Nanos) {
        let (mut start, mut end) = (since.max(self.forgotten), now);
        if start >= end {
            return;
        }
        let mut counted = 0;
        while let Some(&(first, last)) = self.spans[..self.used].last()
            && last >= start
        {
            counted += last - first;
            (start, end) = (start.min(first), end.max(last));
            self.used -= 1;
        }
        self.total += end - start - counted;
        if self.used == KEPT {
            self.forgotten = self.spans[0].1;
            self.spans.copy_within(1.., 0);
            self.used -= 1;
        }
        self.spans[self.used] = (start, end);
        self.used += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(spans: &[(Nanos, Nanos)]) -> Nanos {
        let mut time = StallTime::default();
        for &(since, now) in spans {
            time.add(since, now);
        }
        time.total()
    }

    #[test]
    fn no_moment_counts_twice() {
        assert_eq!(of(&[]), 0);
        assert_eq!(of(&[(5, 9), (10, 12)]), 6);
        // Two threads wait for the same read.
        assert_eq!(of(&[(5, 9), (6, 9)]), 4);
        // A short wait within a long one that ends later.
        assert_eq!(of(&[(5, 6), (0, 10)]), 10);
        assert_eq!(of(&[(1, 2), (4, 5), (0, 10), (9, 11)]), 11);
        // A clock that stands still or is odd.
        assert_eq!(of(&[(5, 5), (7, 6)]), 0);
    }

    #[test]
    fn many_waits_stay_within_the_time() {
        let mut time = StallTime::default();
        for n in 0..1000 {
            time.add(n * 10, n * 10 + 3);
        }
        assert_eq!(time.total(), 3000);
        // It began before all that is known.
        time.add(0, 10_000);
        assert!(time.total() <= 10_000 && time.total() > 3000);
        let mut other = StallTime::default();
        for n in 0..10_000u64 {
            other.add(n.saturating_sub(n * 7919 % 300), n);
        }
        assert!(other.total() <= 10_000, "{}", other.total());
    }
}
