//! The kernel's cluster readahead (`swap_cluster_readahead`): neighbours by slot.
//!
//! One state for all areas and all regions. The hits since the last miss determine the size of the window. The window
//! is the aligned block of that many slots that contains the wanted slot. Slot 0, where the kernel has an area's
//! header, is never read ahead. Slots that are free, bad, of another process or beyond the area's end hold no page of
//! ours; the caller skips them.

use core::convert::Infallible;

use super::policy::{Answer, Readahead, Touch, Window};
use super::vma::next_size;
use crate::units::Slot;

/// The state of all areas together.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Slot of the last miss that came without hits before it. The area is ignored.
    pub last: u32,
    /// Size of the last window, in slots.
    pub window: u32,
    /// Pages of readahead used since the last miss, in any region.
    pub hits: u32,
}

impl Default for History {
    /// As the kernel starts: with four hits.
    fn default() -> Self {
        History {
            last: 0,
            window: 0,
            hits: 4,
        }
    }
}

/// The policy with its largest window, in slots; counted as the power of two that is not larger.
pub struct Cluster {
    /// Largest window.
    pub max: u32,
}

impl Readahead for Cluster {
    type History<'a> = History;
    type Follows = Infallible;

    fn on_hit(&self, history: &mut History, touch: &Touch) -> Option<Infallible> {
        if touch.ahead {
            history.hits = history.hits.saturating_add(1);
        }
        None
    }

    fn on_miss(&self, history: &mut History, touch: &Touch) -> Answer<Infallible> {
        let only = Answer::Window(Window::of(&(touch.page..touch.page.plus(1))));
        let (Some(slot), Some(order @ 1..)) = (touch.slot, self.max.checked_ilog2()) else {
            return only;
        };
        let hits = core::mem::take(&mut history.hits);
        let beside = slot.index.abs_diff(history.last) == 1;
        let size = next_size(beside, hits, history.window, 1 << order);
        if hits == 0 {
            history.last = slot.index;
        }
        history.window = size;
        // A block needs a power of two; only a state that was set from outside is none.
        let size = 1 << size.ilog2();
        if size == 1 {
            return only;
        }
        let first = slot.index & !(size - 1);
        let header = u32::from(first == 0);
        Answer::Window(Window::Slots {
            first: Slot {
                index: first + header,
                ..slot
            },
            count: size - header,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PageRange, Vpn};

    const REGION: PageRange = Vpn(0)..Vpn(1 << 20);
    const POLICY: Cluster = Cluster { max: 8 };

    fn touch(index: u32, ahead: bool) -> Touch<'static> {
        Touch {
            page: Vpn(7),
            slot: Some(Slot { area: 3, index }),
            ahead,
            region: &REGION,
        }
    }

    fn slots(first: u32, count: u32) -> Window {
        Window::Slots {
            first: Slot {
                area: 3,
                index: first,
            },
            count,
        }
    }

    const ALONE: Window = Window::Pages {
        first: Vpn(7),
        stride: 1,
        count: 1,
    };

    #[test]
    fn windows_are_aligned_blocks_without_slot_0() {
        for (index, window) in [
            (0, slots(1, 7)),
            (7, slots(1, 7)),
            (8, slots(8, 8)),
            (1003, slots(1000, 8)),
            (u32::MAX, slots(u32::MAX - 7, 8)),
        ] {
            let mut history = History::default();
            assert_eq!(
                POLICY.on_miss(&mut history, &touch(index, false)).window(),
                window
            );
        }
    }

    #[test]
    fn without_hits_the_window_halves_until_only_the_page_is_read() {
        let mut history = History::default();
        let mut miss = |index| POLICY.on_miss(&mut history, &touch(index, false)).window();
        assert_eq!(miss(1000), slots(1000, 8));
        assert_eq!(miss(2001), slots(2000, 4));
        assert_eq!(miss(3001), slots(3000, 2));
        assert_eq!(miss(4000), ALONE);
        // A miss without hits next to the last one reads one more page.
        assert_eq!(miss(4001), slots(4000, 2));
        assert_eq!(miss(4000), slots(4000, 2));
        assert_eq!(miss(4002), ALONE);
    }

    /// At the first miss there are four hits already, so it leaves `last` alone.
    #[test]
    fn the_last_slot_moves_only_when_there_were_no_hits() {
        let mut history = History {
            last: 500,
            window: 1,
            hits: 1,
        };
        POLICY.on_miss(&mut history, &touch(1000, false)).window();
        assert_eq!((history.last, history.window, history.hits), (500, 4, 0));
        POLICY.on_miss(&mut history, &touch(1001, false)).window();
        assert_eq!((history.last, history.window), (1001, 2));
    }

    #[test]
    fn only_first_uses_count_and_they_size_the_next_window() {
        for (hits, size) in [(1, 4), (2, 4), (3, 8), (6, 8), (200, 8)] {
            let mut history = History {
                last: 0,
                window: 1,
                hits: 0,
            };
            for _ in 0..hits {
                POLICY.on_hit(&mut history, &touch(9, true));
                POLICY.on_hit(&mut history, &touch(9, false));
            }
            let window = POLICY.on_miss(&mut history, &touch(512, false)).window();
            assert_eq!(window, slots(512, size), "{hits} hits");
        }
    }

    #[test]
    fn a_limit_of_one_page_reads_just_that_and_remembers_nothing() {
        for max in [0, 1] {
            let mut history = History::default();
            let window = Cluster { max }
                .on_miss(&mut history, &touch(1000, false))
                .window();
            assert_eq!((window, history.hits), (ALONE, 4));
        }
    }

    #[test]
    fn a_limit_between_powers_of_two_is_the_lower_one() {
        let mut history = History {
            hits: u32::MAX,
            ..History::default()
        };
        let window = Cluster { max: 77 }
            .on_miss(&mut history, &touch(1000, false))
            .window();
        assert_eq!(window, slots(960, 64));
    }
}
