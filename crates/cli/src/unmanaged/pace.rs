//! The interval of the supervisor's looks: short while memory grows, long while nothing does, and never for more than
//! a thousandth of a CPU.

use std::time::{Duration, Instant};

/// The interval while figures change, and the longest.
const SOONEST: Duration = Duration::from_millis(50);
const LATEST: Duration = Duration::from_secs(1);
/// The longest delay of a look, or of a search for new processes, however many processes there are.
const UTMOST: Duration = Duration::from_secs(5);
const UTMOST_FINDING: Duration = Duration::from_secs(2);
/// The fraction of a CPU for looks; and the same fraction each for new children, for mappings, and for searches
/// through all processes.
const SHARE: u32 = 2000;
const SHARE_OF_MAPPING: u32 = 4000;
/// Looks after which figures are read that probably have not changed.
pub const STATUS_LOOKS: u32 = 8;
/// CPU time for mappings in advance.
const ADVANCE: Duration = Duration::from_millis(10);
/// The assumed cost of reading mappings per resident byte, in picoseconds: page tables of single pages.
const PER_BYTE: u64 = 28;

/// The schedule of looks.
#[derive(Debug)]
pub struct Pace {
    began: Instant,
    next: Instant,
    interval: Duration,
    next_finding: Instant,
    next_search: Instant,
    /// CPU time spent on mappings.
    mapping: Duration,
    /// Picoseconds per byte.
    per_byte: u64,
    /// Within the present look.
    apart: Duration,
}

impl Pace {
    /// The first look comes soon.
    pub fn new(now: Instant) -> Self {
        Self {
            began: now,
            next: now + SOONEST,
            interval: SOONEST,
            next_finding: now,
            next_search: now,
            mapping: Duration::ZERO,
            per_byte: PER_BYTE,
            apart: Duration::ZERO,
        }
    }

    /// Until the next look.
    pub fn due_in(&self, now: Instant) -> Duration {
        self.next.saturating_duration_since(now)
    }

    /// A look has ended and took `spent` of CPU time.
    pub fn looked(&mut self, now: Instant, spent: Duration, changed: bool) {
        // Mappings and searches have budgets of their own.
        let spent = spent.saturating_sub(std::mem::take(&mut self.apart));
        self.interval = if changed {
            SOONEST
        } else {
            (self.interval * 3 / 2).min(LATEST)
        };
        self.interval = self.interval.max((spent * SHARE).min(UTMOST));
        self.next = now + self.interval;
    }

    /// Whether the mappings of a process of this size may be read.
    pub fn may_map(&self, bytes: u64) -> bool {
        let cost = self.mapping + self.cost(bytes);
        cost <= ADVANCE + self.began.elapsed() / SHARE_OF_MAPPING
    }

    /// The same if the limit seems exceeded: ten times the budget.
    pub fn may_map_urgently(&self, bytes: u64) -> bool {
        let cost = self.mapping + self.cost(bytes);
        cost <= 10 * (ADVANCE + self.began.elapsed() / SHARE_OF_MAPPING)
    }

    fn cost(&self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * u128::from(self.per_byte) / 1000) as u64)
    }

    /// They were read, at this CPU time.
    pub fn mapped(&mut self, bytes: u64, spent: Duration) {
        self.mapping += spent;
        self.apart += spent;
        let per_byte = spent.as_nanos() * 1000 / u128::from(bytes.max(1 << 20));
        self.per_byte = (per_byte as u64).max(1);
    }

    /// Whether new children may be searched.
    pub fn may_find(&self, now: Instant) -> bool {
        now >= self.next_finding
    }

    /// They were. Many new ones take long once, which does not predict the next search.
    pub fn found(&mut self, now: Instant, spent: Duration) {
        self.apart += spent;
        self.next_finding = now + (spent * SHARE_OF_MAPPING).min(UTMOST_FINDING);
    }

    /// Whether all processes may be searched.
    pub fn may_search(&self, now: Instant) -> bool {
        now >= self.next_search
    }

    /// They were.
    pub fn searched(&mut self, now: Instant, spent: Duration) {
        self.apart += spent;
        self.next_search = now + LATEST.max(spent * SHARE_OF_MAPPING);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn often_while_it_grows_and_never_too_much() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.due_in(start), SOONEST);
        let cheap = Duration::from_micros(10);
        for _ in 0..20 {
            pace.looked(start, cheap, false);
        }
        assert_eq!(pace.due_in(start), LATEST);
        pace.looked(start, cheap, true);
        assert_eq!(pace.due_in(start), SOONEST);
        // A thousand processes.
        let dear = Duration::from_millis(3);
        pace.looked(start, dear, true);
        assert_eq!(pace.due_in(start), UTMOST);
        pace.looked(start, cheap, true);
        assert_eq!(pace.due_in(start), SOONEST, "they have ended");
        // A hundred new ones, once.
        pace.found(start, dear);
        pace.looked(start, dear + cheap, true);
        assert_eq!(pace.due_in(start), SOONEST);
        assert!(!pace.may_find(start + LATEST) && pace.may_find(start + UTMOST_FINDING));
    }

    #[test]
    fn mappings_are_read_as_far_as_it_was_earned() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert!(pace.may_map(100 << 20));
        assert!(!pace.may_map(10 << 30));
        let spent = Duration::from_millis(9);
        pace.mapped(300 << 20, spent);
        assert!(!pace.may_map(100 << 20) && pace.may_map(10 << 20));
        assert!(pace.may_map_urgently(1 << 30) && !pace.may_map_urgently(10 << 30));
        // Its cost is not counted for the look as well.
        pace.looked(start, spent + Duration::from_micros(20), true);
        assert_eq!(pace.due_in(start), SOONEST);
        // Later.
        let long = Duration::from_secs(40);
        pace.began = start.checked_sub(long).expect("a time");
        assert!(pace.may_map(100 << 20));
    }
}
