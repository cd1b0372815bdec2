//! Prefetch along the trend of the last faults ("Effectively Prefetching Remote Memory with Leap", ATC '20).
//!
//! The policy keeps the distances from each touch to the next. The trend is the distance that most of the newest have.
//! This finds strides and reverse scans, and a few touches elsewhere do not hide them. The vote looks at the newest 4
//! distances, then at 8, 16 and 32, until one has the majority. The hits since the last miss determine the size of the
//! window. If there is no trend, `vma` decides with a history of its own, which records every touch.

use core::convert::Infallible;

use super::policy::{Answer, Readahead, Touch, Window};
use super::vma::{self, PerVma};
use crate::units::{PageRange, Vpn};

/// Distances that are remembered.
const DELTAS: usize = 32;
/// Distances with which the vote begins.
const NEWEST: usize = 4;

/// The state of one region.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// Distances from one touch to the next, in pages; a ring. 0 where none is known yet.
    deltas: [i64; DELTAS],
    /// Index of the next distance.
    next: u8,
    /// Page of the last touch.
    last: Option<Vpn>,
    /// Pages read ahead with the last miss.
    ahead: u32,
    /// Pages of readahead used since the last miss.
    hits: u32,
    /// The state of `vma`.
    vma: vma::History,
}

impl History {
    fn touch(&mut self, page: Vpn) {
        let delta = match self.last.replace(page) {
            Some(last) => page.0.wrapping_sub(last.0) as i64,
            None => 0,
        };
        // Two threads at one page, or a thread that tries again, say nothing about the program's direction.
        if delta != 0 {
            self.deltas[usize::from(self.next)] = delta;
            self.next = (self.next + 1) % DELTAS as u8;
        }
    }

    /// The last distances, the newest first.
    fn newest(&self, count: usize) -> impl Iterator<Item = i64> {
        let next = usize::from(self.next) + DELTAS;
        (1..=count).map(move |n| self.deltas[(next - n) % DELTAS])
    }

    /// The distance that more than half of the newest have, among the fewest newest for which there is one.
    fn trend(&self) -> Option<i64> {
        let mut part = NEWEST;
        while part <= DELTAS {
            if let Some(delta) = self.majority(part) {
                return Some(delta);
            }
            part *= 2;
        }
        None
    }

    /// Boyer and Moore's vote: a value with the majority survives the comparison with all others. A second look tells
    /// whether the surviving value has it.
    fn majority(&self, part: usize) -> Option<i64> {
        let (mut candidate, mut weight) = (0, 0);
        for delta in self.newest(part) {
            if weight == 0 {
                candidate = delta;
            }
            weight += if delta == candidate { 1 } else { -1 };
        }
        let votes = self.newest(part).filter(|&delta| delta == candidate);
        (candidate != 0 && votes.count() > part / 2).then_some(candidate)
    }

    /// How many pages to read beside the wanted one: twice as many as were read if all of them were used, one if the
    /// trend continues, at least half of the last time.
    fn next_ahead(&self, trend: i64, max: u32) -> u32 {
        let ahead = match self.hits {
            0 => u32::from(self.newest(1).eq([trend])),
            hits => hits
                .saturating_add(1)
                .checked_next_power_of_two()
                .unwrap_or(max),
        };
        ahead.max(self.ahead / 2).min(max.saturating_sub(1))
    }
}

/// The policy with its largest window, in pages.
pub struct Trend {
    /// Largest window.
    pub max: u32,
}

impl Readahead for Trend {
    type History<'a> = History;
    type Follows = Infallible;

    fn on_hit(&self, history: &mut History, touch: &Touch) -> Option<Infallible> {
        history.touch(touch.page);
        if touch.ahead {
            history.hits = history.hits.saturating_add(1);
        }
        PerVma { max: self.max }.on_hit(&mut history.vma, touch)
    }

    fn on_miss(&self, history: &mut History, touch: &Touch) -> Answer<Infallible> {
        history.touch(touch.page);
        let beside = PerVma { max: self.max };
        let around = beside.on_miss(&mut history.vma, touch).window();
        let window = match history.trend() {
            None => around,
            Some(stride) => {
                let ahead = history.next_ahead(stride, self.max);
                Window::Pages {
                    first: touch.page,
                    stride,
                    count: 1 + ahead.min(steps(touch.page, stride, touch.region)),
                }
            }
        };
        history.ahead = window.count().saturating_sub(1);
        history.hits = 0;
        Answer::Window(window)
    }
}

/// How often `page` can advance by `stride` and still be in `region`.
fn steps(page: Vpn, stride: i64, region: &PageRange) -> u32 {
    let room = if stride > 0 {
        region.end.0.saturating_sub(1).saturating_sub(page.0)
    } else {
        page.0.saturating_sub(region.start.0)
    };
    (room / stride.unsigned_abs().max(1))
        .try_into()
        .unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;
    use alloc::vec::Vec;

    const REGION: PageRange = Vpn(1 << 20)..Vpn((1 << 20) + 8192);

    /// A region all of whose pages are on an area at first.
    struct Memory {
        max: u32,
        region: PageRange,
        history: History,
        ahead: BTreeSet<Vpn>,
        used: BTreeSet<Vpn>,
        windows: Vec<Window>,
    }

    impl Memory {
        fn new(max: u32, region: PageRange) -> Self {
            Memory {
                max,
                region,
                history: History::default(),
                ahead: BTreeSet::new(),
                used: BTreeSet::new(),
                windows: Vec::new(),
            }
        }

        /// The window, if the page was not there.
        fn touch(&mut self, page: Vpn) -> Option<Window> {
            if !self.used.insert(page) {
                return None;
            }
            let policy = Trend { max: self.max };
            let touch = Touch {
                page,
                slot: None,
                ahead: self.ahead.remove(&page),
                region: &self.region,
            };
            if touch.ahead {
                policy.on_hit(&mut self.history, &touch);
                return None;
            }
            let window = policy.on_miss(&mut self.history, &touch).window();
            let Window::Pages {
                first,
                stride,
                count,
            } = window
            else {
                panic!("{window:?}");
            };
            assert!(count <= self.max.max(1) && stride != 0);
            for n in 0..i64::from(count) {
                let page = Vpn(first.0.wrapping_add_signed(n * stride));
                assert!(self.region.contains(&page), "{window:?} leaves the region");
                if !self.used.contains(&page) {
                    self.ahead.insert(page);
                }
            }
            self.windows.push(window);
            Some(window)
        }
    }

    /// Touch `from`, `from + stride`, ... as long as it is in the region. Returns the number of
    /// touches and misses.
    fn scan(memory: &mut Memory, from: Vpn, stride: i64) -> (usize, usize) {
        let mut touches = 0;
        let before = memory.windows.len();
        let mut at = from;
        while memory.region.contains(&at) {
            memory.touch(at);
            touches += 1;
            at = Vpn(at.0.wrapping_add_signed(stride));
        }
        (touches, memory.windows.len() - before)
    }

    #[test]
    fn scans_of_any_stride_miss_once_a_window() {
        for stride in [1, -1, 2, 7, -7, 64, 100] {
            for max in [2, 8, 32] {
                let mut memory = Memory::new(max, REGION);
                let from = if stride > 0 {
                    REGION.start
                } else {
                    Vpn(REGION.end.0 - 1)
                };
                let (touches, misses) = scan(&mut memory, from, stride);
                // Some misses until the trend is found and the window has grown.
                let most = touches.div_ceil(max as usize) + 10;
                assert!(
                    misses <= most,
                    "stride {stride}, window {max}: {misses} misses in {touches}"
                );
                // Near the end nothing is read that a scan could not use.
                let wasted = memory.ahead.len();
                assert!(wasted <= 16, "stride {stride}: {wasted} wasted");
            }
        }
    }

    #[test]
    fn a_window_doubles_while_all_of_it_is_used() {
        let mut memory = Memory::new(32, REGION);
        scan(&mut memory, REGION.start, 7);
        let along = memory.windows.iter().filter_map(|window| match window {
            Window::Pages {
                stride: 7, count, ..
            } => Some(*count),
            _ => None,
        });
        let sizes: Vec<u32> = along.collect();
        // `vma`'s window from before the trend was found shrinks by halves.
        let grown = sizes.iter().position(|&n| n == 32).expect("full windows");
        assert!(grown <= 6, "{sizes:?}");
        let last = sizes.len() - 1;
        assert!(sizes[grown..last].iter().all(|&n| n == 32), "{sizes:?}");
    }

    #[test]
    fn touches_elsewhere_do_not_hide_a_trend() {
        let mut memory = Memory::new(32, REGION);
        let mut state = 9u64;
        let mut misses = 0;
        for n in 0..1024 {
            misses += usize::from(memory.touch(REGION.start.plus(n * 3)).is_some());
            if n % 8 == 7 {
                // One touch elsewhere makes two distances that are not the stride.
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                memory.touch(REGION.start.plus(4096 + (state >> 33) % 4096));
            }
        }
        assert!(misses < 200, "{misses} misses of 1024");
    }

    #[test]
    fn without_a_trend_vma_decides() {
        let mut memory = Memory::new(8, REGION);
        let (mut state, mut alone) = (7u64, vma::History::default());
        for _ in 0..500 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
            let page = REGION.start.plus((state >> 33) % 8192);
            let touch = Touch {
                page,
                slot: None,
                ahead: memory.ahead.contains(&page),
                region: &REGION,
            };
            let vma = PerVma { max: 8 };
            if touch.ahead {
                vma.on_hit(&mut alone, &touch);
            }
            if let Some(window) = memory.touch(page) {
                assert_eq!(window, vma.on_miss(&mut alone, &touch).window());
            }
        }
    }

    #[test]
    fn the_vote_needs_more_than_half_of_the_newest() {
        let mut history = History::default();
        let mut at = 1 << 30;
        let mut go = |history: &mut History, deltas: &[i64]| {
            for &delta in deltas {
                at += delta;
                history.touch(Vpn(at as u64));
            }
            history.trend()
        };
        // The first touch has no distance; two of four are not enough, nor are unknown distances.
        assert_eq!(go(&mut history, &[0, 5, 5]), None);
        assert_eq!(go(&mut history, &[5]), Some(5));
        // Two of four, but five of eight.
        assert_eq!(go(&mut history, &[5, 5, 9, -3]), Some(5));
        assert_eq!(go(&mut history, &[8, 9, 8, 9, 1, 2]), None);
        // The newest decide before the many.
        assert_eq!(go(&mut history, &[4; 32]), Some(4));
        assert_eq!(go(&mut history, &[-1, -1, -1]), Some(-1));
        // A touch of the same page is no move.
        assert_eq!(go(&mut history, &[0, 0, 0, 0]), Some(-1));
    }

    #[test]
    fn hits_grow_the_window_and_misses_shrink_it() {
        let trending = |hits, ahead| History {
            deltas: [3; DELTAS],
            hits,
            ahead,
            ..History::default()
        };
        for (hits, ahead, next) in [
            (0, 0, 1),
            (0, 8, 4),
            (1, 1, 2),
            (4, 4, 8),
            (3, 16, 8),
            (31, 31, 31),
            (u32::MAX, 0, 31),
        ] {
            let history = trending(hits, ahead);
            assert_eq!(history.next_ahead(3, 32), next, "{hits} hits of {ahead}");
        }
        // The last touch was not along the trend: no more than before is risked.
        assert_eq!(trending(0, 1).next_ahead(4, 32), 0);
    }

    #[test]
    fn nothing_overflows_at_either_end_of_the_numbers() {
        let top = u64::MAX;
        for region in [
            Vpn(0)..Vpn(300),
            Vpn(top - 300)..Vpn(top),
            Vpn(0)..Vpn(top),
            Vpn(5)..Vpn(6),
        ] {
            for max in [0, 1, 32, 512] {
                for stride in [1, -1, 7, -7, i64::MAX, i64::MIN, i64::MIN + 1] {
                    for from in [region.start, Vpn(region.end.0 - 1)] {
                        let mut memory = Memory::new(max, region.clone());
                        let mut at = from;
                        for _ in 0..40 {
                            if memory.region.contains(&at) {
                                memory.touch(at);
                            }
                            at = Vpn(at.0.wrapping_add_signed(stride));
                        }
                    }
                }
            }
        }
    }
}
