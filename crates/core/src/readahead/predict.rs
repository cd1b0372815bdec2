//! What a touch continues: a stream, or a byte stride.

use super::History;
use super::byte_stride::{ByteStrideId, ByteStrides};
use super::streams::{StreamId, Streams};
use crate::units::{Nanos, Vpn};

/// The stream or byte stride that a touch continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Predictor {
    Stream(StreamId),
    ByteStride(ByteStrideId),
}

/// The predictor that the touch of `address` continues, moved on; `history` is that of its region.
pub(crate) fn predict(
    streams: &mut Streams,
    byte_strides: &mut ByteStrides,
    history: &mut History,
    address: u64,
    now: Nanos,
) -> Option<Predictor> {
    if let Some(id) = streams.advance(Vpn::of(address), now) {
        streams.weigh(id, &mut history.stride_probe, now);
        return Some(Predictor::Stream(id));
    }
    if let Some(id) = byte_strides.touch(&mut history.byte_strides, address, now) {
        return Some(Predictor::ByteStride(id));
    }
    let stream = streams.find(&mut history.recent, address, now)?;
    Some(Predictor::Stream(stream))
}
