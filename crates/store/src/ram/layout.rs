//! The layout of a RAM area's memory.
//!
//! One memfd, mapped by every process of the run: a header, a record per chunk, two maps of free chunks, a word per
//! slot, and the chunks. Untouched parts cost no memory, which allows enough slots for highly compressible pages. All
//! offsets are computed here from the capacity; none is read from shared memory.

use std::sync::atomic::{AtomicU32, AtomicU64};

use super::RamError;

/// Bytes of a chunk: a process takes a chunk, fills it alone, and frees it as a whole.
pub const CHUNK_BYTES: u64 = 128 << 10;
/// Compressed pages start at multiples of this.
pub const UNIT: u64 = 16;
/// Slots per page of capacity: pages that compress better than this fill the slots before the capacity.
pub const SLOTS_PER_PAGE: u64 = 8;
/// The minimum capacity: below it, the chunks reserved for compaction are a large part.
pub const MIN_CAPACITY: u64 = 4 << 20;
/// The maximum: positions are 32 bits of 16-byte units.
pub const MAX_CAPACITY: u64 = 64 << 30;

const PAGE: u64 = 4096;
/// Slots per cluster.
const CLUSTER_SLOTS: u64 = 512;

pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"fs-ram-1");

/// The first bytes of the memory.
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: AtomicU64,
    pub(super) capacity: AtomicU64,
    /// A [`super::Method`].
    pub(super) method: AtomicU64,
    pub(super) pad: [AtomicU64; 13],
    /// Units with the bytes of some slot. A killed process may leave it wrong by a page: it only decides when to
    /// compact, never which chunk is free.
    pub(super) live: AtomicU64,
    /// Slots with a page; as exact as `live`.
    pub(super) pages: AtomicU64,
    /// Where the last search for a chunk to compact ended.
    pub(super) hand: AtomicU32,
}

/// One chunk.
#[repr(C, align(32))]
pub(super) struct Chunk {
    /// Its state, owner, and version: see [`super::chunks`].
    pub(super) state: AtomicU64,
    /// Its units with the bytes of some slot; as exact as [`Header::live`].
    pub(super) live: AtomicU32,
    /// Pages written to it since it was taken: the length of its index.
    pub(super) entries: AtomicU32,
}

/// Offsets of the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) capacity: u64,
    pub(super) chunks: u32,
    pub(super) slots: u32,
    pub(super) records: u64,
    /// A bit per chunk that is free and has memory.
    pub(super) spare: u64,
    /// A bit per chunk that is *not* free without memory; initially all chunks are.
    pub(super) bare: u64,
    pub(super) words: u64,
    pub(super) data: u64,
    /// Bytes in total.
    pub(super) total: u64,
}

impl Layout {
    /// For a capacity in bytes, which is rounded up to whole chunks.
    pub(super) fn new(capacity: u64) -> Result<Self, RamError> {
        if !(MIN_CAPACITY..=MAX_CAPACITY).contains(&capacity) {
            return Err(RamError::Capacity(capacity));
        }
        let chunks = capacity.div_ceil(CHUNK_BYTES);
        let capacity = chunks * CHUNK_BYTES;
        let slots = capacity / PAGE * SLOTS_PER_PAGE / CLUSTER_SLOTS * CLUSTER_SLOTS;
        let mut total = PAGE;
        let mut take = |bytes: u64| {
            let at = total;
            total += bytes.next_multiple_of(PAGE);
            at
        };
        let bits = chunks.div_ceil(64) * 8;
        let layout = Layout {
            capacity,
            chunks: chunks as u32,
            slots: slots as u32,
            records: take(chunks * size_of::<Chunk>() as u64),
            spare: take(bits),
            bare: take(bits),
            words: take(slots * 8),
            data: take(capacity),
            total: 0,
        };
        Ok(Layout { total, ..layout })
    }

    /// Words of each of the two maps.
    pub(super) fn map_words(&self) -> u32 {
        self.chunks.div_ceil(64)
    }
}

const _: () = assert!(size_of::<Chunk>() == 32);
const _: () = assert!(size_of::<Header>() <= PAGE as usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_follow_each_other_and_hold_what_they_must() {
        for capacity in [MIN_CAPACITY, (64 << 20) + 1, 512 << 20, MAX_CAPACITY] {
            let layout = Layout::new(capacity).expect("within bounds");
            assert!(layout.capacity >= capacity && layout.capacity < capacity + CHUNK_BYTES);
            assert!(layout.spare - layout.records >= u64::from(layout.chunks) * 32);
            assert!((layout.bare - layout.spare) * 8 >= u64::from(layout.chunks));
            assert!((layout.words - layout.bare) * 8 >= u64::from(layout.chunks));
            assert!(layout.data - layout.words >= u64::from(layout.slots) * 8);
            assert_eq!(layout.total - layout.data, layout.capacity);
            assert!(layout.slots.is_multiple_of(512) && layout.slots > 0);
            assert!(layout.capacity / UNIT <= 1 << 32);
        }
    }

    #[test]
    fn a_capacity_out_of_bounds_is_named() {
        for capacity in [0, MIN_CAPACITY - 1, MAX_CAPACITY + 1, u64::MAX] {
            let error = Layout::new(capacity).expect_err("out of bounds");
            assert!(error.to_string().contains(&capacity.to_string()), "{error}");
        }
    }
}
