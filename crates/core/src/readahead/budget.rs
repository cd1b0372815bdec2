//! How much memory and how many I/Os readahead may take.

use crate::units::LEAF_PAGES;

/// I/Os that are reserved for faults and writes.
pub(crate) const KEPT_IOS: usize = 32;
/// Windows of one stream that are examined between faults.
pub(crate) const WINDOWS: u32 = 8;
/// A stream waits for this many pages, while reclaim makes room, instead of reading fewer: the least, the most, and the
/// part of the frames for readahead in between.
const WORTHWHILE: (u32, u32) = (32, 128);
const WORTHWHILE_PART: u32 = 32;
/// Readahead plans for this many quarters of its frames: the others hold pages of streams that have stopped.
const QUARTERS: u32 = 3;
/// The part of all clusters, and of all memory that is in use or free, that may hold readahead. More memory is taken from
/// the working set: a quarter costs a program of many small objects 3 to 17 % more time, and gains scans 10 % in
/// compressed memory and nothing elsewhere (docs/HEURISTICS.md).
const UNITS_PART: u32 = 2;
const MEMORY_PART: u64 = 8;

/// Pages of memory that may hold readahead: of `frames` for single pages, of the clusters for `units`, if the process has
/// or could have `memory` pages.
pub(crate) fn memory(frames: u32, units: u32, memory: u64) -> u64 {
    let units = units / UNITS_PART * LEAF_PAGES as u32;
    u64::from(frames / 4 * QUARTERS + units).min(memory / MEMORY_PART)
}

/// The part of `spare` pages that a stream takes: all or none. It has `frames` frames for readahead.
pub(crate) fn worthwhile(spare: u32, frames: u32) -> u32 {
    let (least, most) = WORTHWHILE;
    let enough = spare >= (frames / WORTHWHILE_PART).clamp(least, most);
    spare * u32::from(enough)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_of_memory_at_most_and_no_small_portions() {
        assert_eq!(memory(4096, 3, 1 << 30), 3072 + 512);
        assert_eq!(memory(4096, 0, 400), 50);
        assert_eq!((worthwhile(31, 0), worthwhile(32, 0)), (0, 32));
        assert_eq!(
            (worthwhile(127, 1 << 20), worthwhile(128, 1 << 20)),
            (0, 128)
        );
        assert_eq!((worthwhile(63, 2048), worthwhile(64, 2048)), (0, 64));
    }
}
