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
    pub(crate) ranges: VecDeque<(PageRange, Nanos)>,
}

impl Discarded {
    pub fn note(&mut self, range: &PageRange, now: Nanos) {
        self.ranges.push_back((range.clone(), now));
        if self.ranges.len() > RANGES
            && let (Some((first, _)), Some((second, _))) =
                (self.ranges.pop_front(), self.ranges.front_mut())
        {
            *second = first.start.min(second.start)..first.end.max(second.end);
        }
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
