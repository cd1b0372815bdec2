//! Types for numbers: a page of the program, a frame of the engine, a slot on a swap area.
//!
//! All sizes are in pages of 4 KiB, all times in nanoseconds of the driver's clock.

use core::fmt;
use core::ops::Range;

/// log2 of the page size.
pub const PAGE_SHIFT: u32 = 12;
/// Bytes in a page.
pub const PAGE_SIZE: usize = 1 << PAGE_SHIFT;
/// Pages that one last-level page table maps (2 MiB), and slots in a slot cluster.
pub const LEAF_PAGES: usize = 512;

/// Nanoseconds of the driver's monotonic clock.
pub type Nanos = u64;

/// A virtual page number of the program: address / 4 KiB.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Vpn(pub u64);

impl Vpn {
    /// The page that holds `address`.
    pub const fn of(address: u64) -> Self {
        Vpn(address >> PAGE_SHIFT)
    }

    /// First byte of the page.
    pub const fn address(self) -> u64 {
        self.0 << PAGE_SHIFT
    }

    /// The page `n` further on.
    pub const fn plus(self, n: u64) -> Self {
        Vpn(self.0 + n)
    }
}

impl fmt::Debug for Vpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "page {:#x}", self.0)
    }
}

/// A half-open run of pages.
pub type PageRange = Range<Vpn>;

/// Pages in `range`.
pub fn len(range: &PageRange) -> u64 {
    range.end.0.saturating_sub(range.start.0)
}

/// The pages of `range`, in order.
pub fn pages(range: &PageRange) -> impl Iterator<Item = Vpn> + use<> {
    (range.start.0..range.end.0).map(Vpn)
}

/// The intersection of `a` and `b`; empty if they do not overlap.
pub fn overlap(a: &PageRange, b: &PageRange) -> PageRange {
    let start = a.start.max(b.start);
    let end = a.end.min(b.end).max(start);
    start..end
}

/// `range` without `hole`, in order: up to two parts.
pub fn without(range: &PageRange, hole: &PageRange) -> impl Iterator<Item = PageRange> + use<> {
    let before = overlap(range, &(Vpn(0)..hole.start));
    let after = overlap(range, &(hole.end..Vpn(u64::MAX)));
    [before, after].into_iter().filter(|part| len(part) > 0)
}

/// A frame of the engine: a page-sized place in its frame arena, by index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Frame(pub u32);

impl Frame {
    /// The frame `n` further on.
    pub const fn plus(self, n: u32) -> Self {
        Frame(self.0 + n)
    }
}

/// The number of the area that stands for mapped files: its slots are pages of files. Nothing is written to it, and no
/// reference to its slots is counted.
pub const FILES: u8 = 15;

/// A page-sized place on a swap area, or a page of a mapped file ([`FILES`]).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    /// The area, in order of priority.
    pub area: u8,
    /// The page of the area.
    pub index: u32,
}

impl Slot {
    /// The slot `n` further on, on the same area.
    pub const fn plus(self, n: u32) -> Self {
        Slot {
            area: self.area,
            index: self.index + n,
        }
    }

    /// The page of a mapped file with this number.
    pub const fn of_file(index: u32) -> Self {
        Slot { area: FILES, index }
    }

    /// Whether it is a page of a mapped file.
    pub const fn is_file(self) -> bool {
        self.area == FILES
    }

    /// The slot cluster (512 slots) that contains it.
    pub const fn cluster(self) -> u32 {
        self.index / LEAF_PAGES as u32
    }

    /// Packed into 36 bits: the area above the index.
    pub const fn pack(self) -> u64 {
        (self.area as u64) << 32 | self.index as u64
    }

    /// The inverse of [`Slot::pack`].
    pub const fn unpack(bits: u64) -> Self {
        Slot {
            area: (bits >> 32) as u8 & 0xf,
            index: bits as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn parts_outside_the_hole_stay() {
        let range = |start, end| Vpn(start)..Vpn(end);
        for (hole, left) in [
            (range(0, 5), &[range(10, 20)][..]),
            (range(20, 30), &[range(10, 20)]),
            (range(5, 12), &[range(12, 20)]),
            (range(18, 30), &[range(10, 18)]),
            (range(12, 15), &[range(10, 12), range(15, 20)]),
            (range(10, 20), &[]),
        ] {
            let found: Vec<_> = without(&range(10, 20), &hole).collect();
            assert_eq!(found, left, "without {hole:?}");
        }
    }
}
