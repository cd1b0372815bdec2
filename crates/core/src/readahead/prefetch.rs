//! What readahead remembers.

use crate::readahead::byte_stride::{ByteStrideId, ByteStrides};
use crate::readahead::streams::{StreamId, Streams};
use crate::readahead::{Policy, Shared};

/// The stream or byte stride that a touch continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Predictor {
    Stream(StreamId),
    ByteStride(ByteStrideId),
}

/// What readahead remembers of all regions together.
pub(crate) struct Prefetch {
    pub shared: Shared,
    pub streams: Streams,
    pub byte_strides: ByteStrides,
}

impl Prefetch {
    /// Nothing is read ahead yet.
    pub fn new(policy: Policy) -> Self {
        let window = match policy {
            Policy::Streams(max) => max,
            Policy::None | Policy::Vma(_) | Policy::Cluster(_) | Policy::Trend(_) => 0,
        };
        Prefetch {
            shared: Shared::default(),
            streams: Streams::new(window),
            byte_strides: ByteStrides::new(window),
        }
    }
}
