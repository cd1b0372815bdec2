//! Swap readahead: which pages come along when one is read.
//!
//! A policy sees the misses and hits of one region and answers a miss with a window of pages around
//! it. It decides on virtual addresses and its own history alone; the caller reads those pages of
//! the window that are on an area.

mod vma;

use crate::units::{PageRange, Vpn};

/// What a policy remembers of one region.
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
    /// As the kernel starts: four hits to the good.
    fn default() -> Self {
        History {
            last: Vpn(0),
            window: 0,
            hits: 4,
        }
    }
}

/// One way to answer a miss.
pub trait Readahead {
    /// A page that was brought earlier is touched; `ahead` when readahead brought it and this is
    /// its first use.
    fn on_hit(&self, history: &mut History, page: Vpn, ahead: bool);
    /// `page` is missing: the window to read, `page` included, within `region`.
    fn on_miss(&self, history: &mut History, page: Vpn, region: &PageRange) -> PageRange;
}

/// The policies to choose from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Only what is asked for.
    None,
    /// The kernel's per-VMA readahead (seed 000), its window at most this many pages.
    Vma(u32),
}

struct Nothing;

impl Readahead for Nothing {
    fn on_hit(&self, _: &mut History, _: Vpn, _: bool) {}

    fn on_miss(&self, _: &mut History, page: Vpn, _: &PageRange) -> PageRange {
        page..page.plus(1)
    }
}

impl Readahead for Policy {
    fn on_hit(&self, history: &mut History, page: Vpn, ahead: bool) {
        match *self {
            Policy::None => Nothing.on_hit(history, page, ahead),
            Policy::Vma(max) => vma::PerVma { max }.on_hit(history, page, ahead),
        }
    }

    fn on_miss(&self, history: &mut History, page: Vpn, region: &PageRange) -> PageRange {
        match *self {
            Policy::None => Nothing.on_miss(history, page, region),
            Policy::Vma(max) => vma::PerVma { max }.on_miss(history, page, region),
        }
    }
}
