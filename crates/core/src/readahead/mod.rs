//! Swap readahead: which pages are read together with a page. Readahead of files is in [`mod@file`].
//!
//! A policy ([`Readahead`]) sees the touches of absent pages, one after the other, and answers a miss with a window of
//! pages, or names what it follows and reads on between misses: the default (`follow`) follows streams. It decides on
//! addresses, slots and its own history only. The caller reads the pages of the window that are on an area and not in
//! memory yet. Each policy has its file and one type for its state. The kernel's policies (`vma`, `cluster`) make the
//! decisions of Linux 6.18.

pub(crate) mod budget;
pub(crate) mod byte_stride;
mod cluster;
pub mod file;
pub(crate) mod follow;
mod grid;
mod hint;
mod none;
mod policy;
pub(crate) mod profit;
mod recent;
mod run;
pub(crate) mod run_lengths;
mod stream;
pub(crate) mod streams;
pub(crate) mod stride_probe;
mod trend;
mod vma;

use core::convert::Infallible;

pub use cluster::History as ClusterHistory;
pub use hint::Hint;
pub use policy::{Answer, Readahead, Touch, Window};

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
    recent: recent::Recent,
    byte_strides: byte_stride::ByteStrideHistory,
    stride_probe: stride_probe::StrideProbe,
    /// How long runs are.
    run_lengths: run_lengths::RunLengths,
    /// The evidence that streams must show.
    pub(crate) profit: profit::Profit,
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

    /// The largest window of a stream, in pages; 0 if the policy follows none.
    pub(crate) fn stream_window(&self) -> u32 {
        match *self {
            Policy::Streams(max) => max,
            Policy::None | Policy::Vma(_) | Policy::Cluster(_) | Policy::Trend(_) => 0,
        }
    }

    /// As [`Readahead::on_hit`]. [`Policy::Streams`] answers as for a touch that continues nothing, here and below.
    pub fn on_hit(&self, shared: &mut Shared, history: &mut History, touch: &Touch) {
        let _: Option<Infallible> = match *self {
            Policy::None => none::Nothing.on_hit(&mut (), touch),
            Policy::Vma(max) => vma::PerVma { max }.on_hit(&mut history.vma, touch),
            Policy::Streams(max) => {
                let max = max.min(BESIDE_STREAMS);
                vma::PerVma { max }.on_hit(&mut history.vma, touch)
            }
            Policy::Cluster(max) => cluster::Cluster { max }.on_hit(&mut shared.cluster, touch),
            Policy::Trend(max) => trend::Trend { max }.on_hit(&mut history.trend, touch),
        };
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
        let answer = match *self {
            Policy::None => none::Nothing.on_miss(&mut (), touch),
            Policy::Vma(max) => vma::PerVma { max }.on_miss(&mut history.vma, touch),
            Policy::Streams(max) => {
                let max = max.min(BESIDE_STREAMS);
                vma::PerVma { max }.on_miss(&mut history.vma, touch)
            }
            Policy::Cluster(max) => cluster::Cluster { max }.on_miss(&mut shared.cluster, touch),
            Policy::Trend(max) => trend::Trend { max }.on_miss(&mut history.trend, touch),
        };
        answer.window()
    }
}
