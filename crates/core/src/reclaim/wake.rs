//! When background reclaim wakes, how far it goes, and when it sleeps.
//!
//! It wakes below the low watermark, and sleeps above the high one. While units are taken, as much memory is kept for
//! them in addition. Pages that become free without further work are counted, so that no page is evicted too early.

use super::Reclaim;
use crate::frames::clusters::UNIT;
use crate::heuristics::Heuristic;

/// If this many pages are kept for units, reclaim evicts a unit as soon as one is taken: the disk always has writes.
/// With fewer, it rests in between, and a scan finds more of its readahead.
const FLOWING: u32 = 4 * UNIT;

/// Evicted pages that are no free memory yet.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Evicted {
    /// Their digests are being computed. Most of them are clean.
    pub digesting: u64,
    /// They wait for writeback or are in it, those above included.
    pub unwritten: u32,
    /// No area accepts a page: they are written when a slot becomes free.
    pub stuck: bool,
}

impl Evicted {
    /// Pages whose memory will be free without further work. While units flow, pages to be written count half, and at
    /// most twice the number that is kept: the disk always has some of them while others are ready.
    fn coming(&self, flows: bool) -> u64 {
        if !flows || self.stuck {
            return self.digesting;
        }
        self.digesting + u64::from(self.unwritten).saturating_sub(self.digesting) / 2
    }
}

impl Reclaim {
    /// Background reclaim is awake.
    pub fn is_awake(&self) -> bool {
        self.awake
    }

    /// A read lacks memory.
    pub fn wake(&mut self) {
        self.awake = true;
    }

    /// As [`Evicted::coming`].
    fn coming(&self, evicted: &Evicted, flows: bool) -> u64 {
        evicted.coming(flows && self.heuristics.has(Heuristic::ComingPages))
    }

    fn wanted(&self, kept: u32) -> u64 {
        u64::from(self.marks.high + kept)
    }

    /// Wake if memory is short: `headroom` pages are free, and `kept` pages are for units. Returns whether it woke.
    pub fn wake_if_short(&mut self, headroom: u64, kept: u32, evicted: &Evicted) -> bool {
        let short = match kept >= FLOWING {
            true => headroom + self.coming(evicted, true) < self.wanted(kept),
            false => headroom < u64::from(self.marks.low + kept / 2),
        };
        let wakes = short && !self.awake;
        self.awake |= short;
        wakes
    }

    /// Enough memory becomes free without further work, for this process and for others, which need `excess` pages.
    pub fn is_enough_coming(
        &self,
        headroom: u64,
        kept: u32,
        evicted: &Evicted,
        excess: u64,
    ) -> bool {
        let coming = self.coming(evicted, kept >= FLOWING);
        coming > 0 && headroom + coming >= self.wanted(kept) && excess <= coming
    }

    /// Sleep if enough memory is free.
    pub fn sleep_if_enough(&mut self, headroom: u64, kept: u32) {
        self.awake &= headroom < self.wanted(kept);
    }

    /// Enough pages are in writeback: more would not free memory sooner.
    pub fn is_much_unwritten(&self, unwritten: u32) -> bool {
        unwritten >= self.marks.writes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::any_policy::Policy;

    /// Low mark 256, high mark 512.
    fn reclaim() -> Reclaim {
        Reclaim::new(Policy::Clock, 512 * 64, 8192)
    }

    #[test]
    fn it_wakes_below_the_low_mark_and_sleeps_at_the_high_one() {
        let (mut reclaim, none) = (reclaim(), Evicted::default());
        assert!(!reclaim.wake_if_short(256, 0, &none));
        assert!(reclaim.wake_if_short(255, 0, &none));
        assert!(!reclaim.wake_if_short(255, 0, &none), "it is awake");
        reclaim.sleep_if_enough(511, 0);
        assert!(reclaim.is_awake());
        reclaim.sleep_if_enough(512, 0);
        assert!(!reclaim.is_awake());
    }

    #[test]
    fn while_units_flow_half_of_the_pages_under_write_count() {
        let mut reclaim = reclaim();
        let evicted = |unwritten, stuck| Evicted {
            digesting: 0,
            unwritten,
            stuck,
        };
        let wanted = u64::from(512 + FLOWING);
        assert!(!reclaim.wake_if_short(wanted - 100, FLOWING, &evicted(200, false)));
        assert!(reclaim.is_enough_coming(wanted - 100, FLOWING, &evicted(200, false), 100));
        assert!(!reclaim.is_enough_coming(wanted - 100, FLOWING, &evicted(200, false), 101));
        assert!(reclaim.wake_if_short(wanted - 100, FLOWING, &evicted(199, false)));
        assert!(!reclaim.is_enough_coming(wanted - 1, FLOWING, &evicted(200, true), 0));
        assert!(!reclaim.is_enough_coming(wanted - 1, FLOWING - 1, &evicted(200, false), 0));
    }

    #[test]
    fn the_frames_bound_what_is_in_writeback() {
        let reclaim = reclaim();
        assert!(!reclaim.is_much_unwritten(4095));
        assert!(reclaim.is_much_unwritten(4096));
    }
}
