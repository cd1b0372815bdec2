//! A hint of the program about the use of a region: it overrides the readahead policy there.

use super::policy::{Touch, Window};
use crate::units::overlap;

/// How the program says that it will use a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hint {
    /// No hint.
    #[default]
    Normal = 0,
    /// In order of address, once.
    Sequential = 1,
    /// In no order.
    Random = 2,
}

impl Hint {
    /// The window for a miss where the hint decides; `max` is the largest window of the policy, in pages. `None` leaves
    /// the decision to the policy.
    pub fn window(self, touch: &Touch, max: u32) -> Option<Window> {
        let pages = match self {
            Hint::Normal => return None,
            Hint::Sequential => u64::from(max.max(1)),
            Hint::Random => 1,
        };
        let ahead = touch.page..touch.page.plus(pages);
        Some(Window::of(&overlap(&ahead, touch.region)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{PageRange, Vpn};

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    #[test]
    fn a_hint_decides_the_window_within_the_region() {
        let region = range(10, 100);
        let window = |hint: Hint, page, max| {
            let touch = Touch {
                page: Vpn(page),
                slot: None,
                ahead: false,
                region: &region,
            };
            hint.window(&touch, max)
        };
        let of = |start, end| Some(Window::of(&range(start, end)));
        assert_eq!(window(Hint::Normal, 20, 32), None);
        assert_eq!(window(Hint::Random, 20, 32), of(20, 21));
        assert_eq!(window(Hint::Sequential, 20, 32), of(20, 52));
        assert_eq!(window(Hint::Sequential, 90, 32), of(90, 100));
        assert_eq!(window(Hint::Sequential, 20, 0), of(20, 21));
    }
}
