//! Ranges that were discarded a short time ago: the kernel may zap their pages after its event was read.

use alloc::collections::VecDeque;

use crate::units::{Nanos, PageRange, Vpn};

/// How long the kernel may take to zap a discarded range after its event was read: the thread may wait for a CPU.
const ZAP: Nanos = 10_000_000_000;
/// The largest number of ranges that are kept apart.
const RANGES: usize = 32;

/// Ranges that were discarded a short time ago, in order.
#[derive(Default)]
pub(crate) struct Discarded {
    ranges: VecDeque<(PageRange, Nanos)>,
}

impl Discarded {
    /// The program discarded `range`; its event was read just now.
    pub fn note(&mut self, range: &PageRange, now: Nanos) {
        self.ranges.push_back((range.clone(), now));
        if self.ranges.len() > RANGES
            && let (Some((first, _)), Some((second, _))) =
                (self.ranges.pop_front(), self.ranges.front_mut())
        {
            *second = first.start.min(second.start)..first.end.max(second.end);
        }
    }

    /// No range was discarded a short time ago.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Whether the kernel may still zap `page`.
    pub fn has(&mut self, page: Vpn, now: Nanos) -> bool {
        while let Some((_, since)) = self.ranges.front()
            && now.saturating_sub(*since) > ZAP
        {
            self.ranges.pop_front();
        }
        self.ranges.iter().any(|(range, _)| range.contains(&page))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_counts_for_a_while_and_many_become_one() {
        let mut discarded = Discarded::default();
        discarded.note(&(Vpn(5)..Vpn(8)), 1);
        assert!(discarded.has(Vpn(7), 1 + ZAP) && !discarded.has(Vpn(8), 1 + ZAP));
        assert!(!discarded.has(Vpn(7), 2 + ZAP));
        assert!(discarded.is_empty());
        for n in 0..=RANGES as u64 {
            discarded.note(&(Vpn(10 * n)..Vpn(10 * n + 5)), 2);
        }
        assert_eq!(discarded.ranges.len(), RANGES);
        assert!(
            discarded.has(Vpn(7), 2),
            "between the two oldest, which are one now"
        );
        assert!(!discarded.has(Vpn(17), 2));
    }
}
