//! Swap readahead: which pages are read together with a page. Readahead of files is in [`mod@file`].
//!
//! A policy sees the touches of absent pages, one after the other, and answers a miss with a window of pages. It
//! decides on addresses, slots and its own history only. The caller reads the pages of the window that are on an area
//! and not in memory yet. Each policy has its file and one type for its state. The kernel's policies (`vma`, `cluster`)
//! make the decisions of Linux 6.18.

pub(crate) mod byte_stride;
mod cluster;
pub mod file;
mod none;
pub(crate) mod prefetch;
mod recent;
mod run;
mod scan_starts;
mod stream;
pub(crate) mod streams;
pub(crate) mod stride_probe;
mod trend;
mod vma;

pub use cluster::History as ClusterHistory;

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

/// The policies, each with its largest window in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// Only the page that is asked for.
    None,
    /// The kernel's readahead by address.
    Vma(u32),
    /// Streams, read ahead continuously in windows of up to this many pages: foreswap's own. Other touches are answered
    /// as by `vma`.
    Streams(u32),
    /// The kernel's readahead by slot.
    Cluster(u32),
    /// Along the stride that most of the latest faults had.
    Trend(u32),
}

/// The largest window of `vma` beside streams, in pages: the kernel's ceiling.
const BESIDE_STREAMS: u32 = 32;

/// The state of all policies for one region.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    vma: vma::History,
    trend: trend::History,
    pub(crate) recent: recent::Recent,
    pub(crate) byte_strides: byte_stride::ByteStrideHistory,
    pub(crate) stride_probe: stride_probe::StrideProbe,
}

/// The state of all policies for all regions together.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shared {
    /// Of the areas.
    pub cluster: ClusterHistory,
}

impl Policy {
    /// Its windows are slots, so the caller must know the page of each slot.
    pub fn goes_by_slot(&self) -> bool {
        matches!(self, Policy::Cluster(_))
    }

    /// As [`Readahead::on_hit`].
    pub fn on_hit(&self, shared: &mut Shared, history: &mut History, touch: &Touch) {
        match *self {
            Policy::None => none::Nothing.on_hit(&mut (), touch),
            Policy::Vma(max) => vma::PerVma { max }.on_hit(&mut history.vma, touch),
            Policy::Streams(max) => {
                let max = max.min(BESIDE_STREAMS);
                vma::PerVma { max }.on_hit(&mut history.vma, touch);
            }
            Policy::Cluster(max) => cluster::Cluster { max }.on_hit(&mut shared.cluster, touch),
            Policy::Trend(max) => trend::Trend { max }.on_hit(&mut history.trend, touch),
        }
    }

    /// The largest window that it may answer, in pages.
    pub fn max_window(&self) -> u32 {
        match *self {
            Policy::None => 1,
            Policy::Vma(max) | Policy::Streams(max) => max,
            Policy::Cluster(max) | Policy::Trend(max) => max,
        }
    }

    /// As [`Readahead::on_miss`].
    pub fn on_miss(&self, shared: &mut Shared, history: &mut History, touch: &Touch) -> Window {
        match *self {
            Policy::None => none::Nothing.on_miss(&mut (), touch),
            Policy::Vma(max) => vma::PerVma { max }.on_miss(&mut history.vma, touch),
            Policy::Streams(max) => {
                let max = max.min(BESIDE_STREAMS);
                vma::PerVma { max }.on_miss(&mut history.vma, touch)
            }
            Policy::Cluster(max) => cluster::Cluster { max }.on_miss(&mut shared.cluster, touch),
            Policy::Trend(max) => trend::Trend { max }.on_miss(&mut history.trend, touch),
        }
    }
}
