//! Whether pages of areas that are far are read more often than those of one that is near.
//!
//! Areas form tiers: compressed memory, disks, servers, object stores. Evicted pages fill them in that order, so that what
//! was evicted first is near and what was evicted last is far, whatever is used. Where the pages beyond an area are read more often
//! than its cold ones, per page that is there, places are exchanged: these move away ([`super::write_back`]), and pages
//! that come from beyond are written to it when they are evicted again. A scan, or accesses at random, read all pages
//! equally often. Then nothing is gained by an exchange, which costs two writes and a read, and none is made. An area that would
//! have room for all that is in memory as well takes what comes from beyond in any case.

/// The most areas.
const AREAS: usize = 16;
/// Reads over which the frequencies are taken: counts fade beyond it.
const SAMPLE: u64 = 8192;
/// Reads from beyond without which nothing is known.
const LEAST: u64 = 64;

/// Slots of some areas, how many of them are used, and how often they were read lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub slots: u64,
    pub used: u64,
    pub reads: u64,
}

impl Usage {
    /// Of both.
    pub fn and(self, other: Usage) -> Usage {
        Usage {
            slots: self.slots + other.slots,
            used: self.used + other.used.min(other.slots),
            reads: self.reads + other.reads,
        }
    }

    /// Whether a page here is read more than one and a half times as often as one of `cold`.
    pub fn is_read_more_often_than(self, cold: Usage) -> bool {
        let here = u128::from(self.reads) * u128::from(cold.used.max(1)) * 2;
        let there = u128::from(cold.reads) * u128::from(self.used.max(1)) * 3;
        self.reads >= LEAST && here > there
    }
}

/// How often the pages of each area were read lately.
#[derive(Default)]
pub(crate) struct Reads {
    of: [Count; AREAS],
    total: u64,
}

/// Reads of an area, and those among them of pages that were cold.
#[derive(Clone, Copy, Default, Debug)]
struct Count {
    all: u64,
    cold: u64,
}

impl Reads {
    /// A page is read from `area`, which was cold there or not.
    pub fn note(&mut self, area: u8, is_cold: bool) {
        if let Some(count) = self.of.get_mut(usize::from(area)) {
            count.all += 1;
            count.cold += u64::from(is_cold);
            self.total += 1;
        }
        if self.total > 2 * SAMPLE {
            for count in &mut self.of {
                (count.all, count.cold) = (count.all / 2, count.cold / 2);
            }
            self.total = self.of.iter().map(|count| count.all).sum();
        }
    }

    /// Reads of an area.
    pub fn of(&self, area: u8) -> u64 {
        self.of.get(usize::from(area)).map_or(0, |count| count.all)
    }

    /// Reads of its cold pages.
    pub fn of_cold(&self, area: u8) -> u64 {
        self.of.get(usize::from(area)).map_or(0, |count| count.cold)
    }

    /// `area` is gone; another one may get its number.
    pub fn forget(&mut self, area: u8) {
        if let Some(count) = self.of.get_mut(usize::from(area)) {
            self.total -= core::mem::take(count).all;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(used: u64, reads: u64) -> Usage {
        Usage {
            slots: 1 << 20,
            used,
            reads,
        }
    }

    #[test]
    fn an_exchange_needs_a_difference_and_a_sample() {
        let near = usage(1000, 100);
        assert!(usage(1000, 200).is_read_more_often_than(near));
        assert!(!usage(1000, 150).is_read_more_often_than(near));
        // A scan of four times as many pages.
        assert!(!usage(4000, 400).is_read_more_often_than(near));
        assert!(usage(4000, 700).is_read_more_often_than(near));
        assert!(!usage(10, 63).is_read_more_often_than(usage(1000, 0)));
        assert!(usage(10, 64).is_read_more_often_than(usage(0, 0)));
    }

    #[test]
    fn old_reads_fade() {
        let mut reads = Reads::default();
        (0..10_000).for_each(|_| reads.note(0, true));
        (0..50_000).for_each(|_| reads.note(1, false));
        assert!(reads.of(0) < 1000 && reads.of(1) > 7000, "{:?}", reads.of);
        assert_eq!((reads.of_cold(0), reads.of_cold(1)), (reads.of(0), 0));
        reads.forget(1);
        assert_eq!((reads.of(1), reads.total), (0, reads.of(0)));
    }
}
