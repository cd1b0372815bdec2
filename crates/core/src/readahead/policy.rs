//! A policy: its inputs and its answers.

use core::convert::Infallible;

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

/// The answer to a miss.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer<F> {
    /// Read these pages.
    Window(Window),
    /// The touch continues something that is read on.
    Follows(F),
}

impl Answer<Infallible> {
    /// The window of a policy that follows nothing.
    pub fn window(self) -> Window {
        let Answer::Window(window) = self;
        window
    }
}

/// One way to answer the touches of absent pages.
pub trait Readahead {
    /// The state of the policy: of one region, of all areas (`cluster`), or of both.
    type History<'a>;
    /// A pattern that the policy follows, to read on between misses; [`Infallible`] if it answers only misses.
    type Follows;
    /// `touch` found its page in memory. Returns the pattern that it continues.
    fn on_hit(&self, history: &mut Self::History<'_>, touch: &Touch) -> Option<Self::Follows>;
    /// `touch` found its page on an area only. A window is within its region.
    fn on_miss(&self, history: &mut Self::History<'_>, touch: &Touch) -> Answer<Self::Follows>;
}
