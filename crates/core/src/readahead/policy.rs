//! A policy: what it sees, and what it answers.

use crate::units::{PageRange, Slot, Vpn};

/// One touch of an absent page, as a policy sees it.
#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    /// The page.
    pub page: Vpn,
    /// The slot of the page, or its slot before it was read; always known for a miss.
    pub slot: Option<Slot>,
    /// Readahead read the page and this is its first use. Never true for a miss.
    pub ahead: bool,
    /// The region that holds the page.
    pub region: &'a PageRange,
}

/// The pages to read for a miss. The missed page itself is always read, even if it is not named.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Window {
    /// `count` pages from `first` on, each `stride` pages after the one before.
    Pages {
        /// The first page.
        first: Vpn,
        /// Distance from one page to the next, in pages; not 0.
        stride: i64,
        /// Number of pages.
        count: u32,
    },
    /// The pages in `count` slots from `first` on.
    Slots {
        /// The first slot.
        first: Slot,
        /// Number of slots.
        count: u32,
    },
}

impl Window {
    /// All pages of a range.
    pub fn of(range: &PageRange) -> Self {
        Window::Pages {
            first: range.start,
            stride: 1,
            count: crate::units::len(range) as u32,
        }
    }

    /// Its size, in pages.
    pub fn count(&self) -> u32 {
        match *self {
            Window::Pages { count, .. } | Window::Slots { count, .. } => count,
        }
    }
}

/// One way to answer a miss.
pub trait Readahead {
    /// The state of the policy: of one region, or (`cluster`) of one area.
    type History;
    /// `touch` found its page in memory.
    fn on_hit(&self, history: &mut Self::History, touch: &Touch);
    /// `touch` found its page on an area only: the window to read, within its region.
    fn on_miss(&self, history: &mut Self::History, touch: &Touch) -> Window;
}
