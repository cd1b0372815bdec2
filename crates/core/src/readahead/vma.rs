//! The kernel's swap readahead per VMA (seed 000), as in Linux 6.18.
//!
//! The hits since the last miss determine the size of the window, the direction of the last two faults its place. It
//! never crosses the region nor the 2 MiB that one page table maps.

use core::convert::Infallible;

use super::policy::{Answer, Readahead, Touch, Window};
use crate::units::{LEAF_PAGES, Vpn, overlap};

/// The state of one region.
#[derive(Clone, Copy, Debug)]
pub struct History {
    /// Page of the last fault.
    pub last: Vpn,
    /// Size of the last window, in pages.
    pub window: u32,
    /// Pages of readahead used since the last miss.
    pub hits: u32,
}

impl Default for History {
    /// As the kernel starts: with four hits.
    fn default() -> Self {
        History {
            last: Vpn(0),
            window: 0,
            hits: 4,
        }
    }
}

/// The policy with its largest window, in pages.
pub struct PerVma {
    /// Largest window.
    pub max: u32,
}

/// Size of the next window, in pages (the kernel's `__swapin_nr_pages`, which `cluster` shares). `beside`: the miss is
/// next to the last one. `last`: the last window; the next is at least half of it.
pub(super) fn next_size(beside: bool, hits: u32, last: u32, max: u32) -> u32 {
    let size = match hits {
        0 if beside => 2,
        0 => 1,
        hits => hits
            .saturating_add(2)
            .max(4)
            .checked_next_power_of_two()
            .unwrap_or(max),
    };
    size.min(max).max(last / 2).max(1)
}

impl Readahead for PerVma {
    type History<'a> = History;
    type Follows = Infallible;

    fn on_hit(&self, history: &mut History, touch: &Touch) -> Option<Infallible> {
        if touch.ahead {
            history.hits = history.hits.saturating_add(1);
        }
        history.last = touch.page;
        None
    }

    fn on_miss(&self, history: &mut History, touch: &Touch) -> Answer<Infallible> {
        let page = touch.page;
        let size = if self.max <= 1 {
            1
        } else {
            let beside = page.0.abs_diff(history.last.0) == 1;
            next_size(beside, history.hits, history.window, self.max)
        };
        let before = if page.0 == history.last.0.wrapping_add(1) {
            0
        } else if page.0.wrapping_add(1) == history.last.0 {
            size - 1
        } else {
            // The odd page comes after it.
            (size - 1) / 2
        };
        *history = History {
            last: page,
            window: size,
            hits: 0,
        };
        let start = Vpn(page.0.saturating_sub(u64::from(before)));
        // A window that would begin below page 0 is clipped, not shifted.
        let end = Vpn(page.0.saturating_add(u64::from(size - before)));
        let leaf = page.0 / LEAF_PAGES as u64 * LEAF_PAGES as u64;
        let table = Vpn(leaf)..Vpn(leaf.saturating_add(LEAF_PAGES as u64));
        let region = overlap(&(start..end), touch.region);
        Answer::Window(Window::of(&overlap(&region, &table)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::PageRange;

    const REGION: PageRange = Vpn(1024)..Vpn(4096);

    fn touch(page: u64, ahead: bool) -> Touch<'static> {
        Touch {
            page: Vpn(page),
            slot: None,
            ahead,
            region: &REGION,
        }
    }

    #[test]
    fn a_forward_scan_doubles_up_to_the_limit() {
        let policy = PerVma { max: 8 };
        let mut history = History::default();
        let window = policy.on_miss(&mut history, &touch(1024, false)).window();
        assert_eq!(window, Window::of(&(Vpn(1024)..Vpn(1029))));
        for page in 1025..1029 {
            policy.on_hit(&mut history, &touch(page, true));
        }
        let window = policy.on_miss(&mut history, &touch(1029, false)).window();
        assert_eq!(window, Window::of(&(Vpn(1029)..Vpn(1037))));
    }

    #[test]
    fn a_backward_step_looks_back_and_random_falls_to_one() {
        let policy = PerVma { max: 8 };
        let mut history = History {
            last: Vpn(2001),
            window: 8,
            hits: 3,
        };
        let window = policy.on_miss(&mut history, &touch(2000, false)).window();
        assert_eq!(window, Window::of(&(Vpn(1993)..Vpn(2001))));
        for (page, size) in [(3000, 4), (1500, 2), (2500, 1)] {
            let window = policy.on_miss(&mut history, &touch(page, false)).window();
            assert_eq!(window.count(), size);
        }
    }
}
