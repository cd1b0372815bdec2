//! The orders in which a file is read.

use crate::usemem::mix;

/// Bytes of a small read.
const SMALL: u64 = 4 << 10;
/// Bytes of a large read.
const LARGE: u64 = 64 << 10;
/// Every so many small reads' distance, one is made.
const STRIDE: u64 = 7;
/// What is read and skipped in turn.
const READ: u64 = 399 << 20;
const SKIPPED: u64 = 99 << 20;

/// An order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// From the first byte to the last, 64 KiB at once.
    Sequential,
    /// 4 KiB at random places.
    Random,
    /// From the last 4 KiB to the first.
    Reverse,
    /// 4 KiB of every 28 KiB.
    Stride,
    /// So many cursors, each in its part of the file, take turns by 64 KiB on one descriptor.
    Cursors(u64),
    /// 399 MiB are read and 99 MiB are skipped.
    Skips,
    /// The whole file twice.
    Twice,
}

impl Pattern {
    /// All that are read from a store.
    pub const ALL: [Pattern; 9] = [
        Pattern::Sequential,
        Pattern::Random,
        Pattern::Reverse,
        Pattern::Stride,
        Pattern::Cursors(2),
        Pattern::Cursors(8),
        Pattern::Cursors(32),
        Pattern::Skips,
        Pattern::Twice,
    ];

    /// For the report.
    pub fn name(self) -> String {
        match self {
            Pattern::Sequential => "sequential".to_owned(),
            Pattern::Random => "random 4 KiB".to_owned(),
            Pattern::Reverse => "reverse 4 KiB".to_owned(),
            Pattern::Stride => "4 KiB of 28".to_owned(),
            Pattern::Cursors(count) => format!("{count} cursors"),
            Pattern::Skips => "399 MiB, skip 99".to_owned(),
            Pattern::Twice => "twice".to_owned(),
        }
    }

    /// Bytes of one read.
    pub fn read_bytes(self) -> u64 {
        match self {
            Pattern::Random | Pattern::Reverse | Pattern::Stride => SMALL,
            _ => LARGE,
        }
    }

    /// The number of reads of a file of so many bytes, `random` of them at random places.
    pub fn reads(self, bytes: u64, random: u64) -> u64 {
        let whole = bytes / self.read_bytes();
        match self {
            Pattern::Random => random,
            Pattern::Stride => whole / STRIDE,
            Pattern::Cursors(count) => whole / count * count,
            Pattern::Twice => 2 * whole,
            Pattern::Skips => {
                let (full, rest) = (bytes / (READ + SKIPPED), bytes % (READ + SKIPPED));
                (full * READ + rest.min(READ)) / LARGE
            }
            Pattern::Sequential | Pattern::Reverse => whole,
        }
    }

    /// Bytes of a file of which about so many are read once.
    pub fn span(self, bytes: u64) -> u64 {
        match self {
            Pattern::Stride => bytes * STRIDE,
            _ => bytes,
        }
    }

    /// The first byte of read `n` of a file of so many bytes.
    pub fn offset(self, n: u64, bytes: u64, seed: u64) -> u64 {
        let (size, whole) = (self.read_bytes(), bytes / self.read_bytes());
        match self {
            Pattern::Sequential => n * size,
            Pattern::Random => mix(seed << 32 | n) % whole * size,
            Pattern::Reverse => (whole - 1 - n) * size,
            Pattern::Stride => n * STRIDE * size,
            Pattern::Cursors(count) => (n % count * (whole / count) + n / count) * size,
            Pattern::Skips => n * LARGE + n * LARGE / READ * SKIPPED,
            Pattern::Twice => n % whole * size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reads_lie_in_the_file_and_but_for_two_patterns_apart() {
        let bytes = 600 << 20;
        for pattern in Pattern::ALL {
            let reads = pattern.reads(bytes, 1000);
            let mut at: Vec<u64> = (0..reads).map(|n| pattern.offset(n, bytes, 1)).collect();
            assert!(
                at.iter().all(|at| at + pattern.read_bytes() <= bytes),
                "{pattern:?}"
            );
            at.sort_unstable();
            at.dedup();
            let expected = match pattern {
                Pattern::Twice => reads / 2,
                Pattern::Random => continue,
                _ => reads,
            };
            assert_eq!(at.len() as u64, expected, "{pattern:?}");
        }
    }

    #[test]
    fn skips_are_where_they_should_be() {
        let reads = READ / LARGE;
        assert_eq!(Pattern::Skips.offset(reads - 1, 1 << 30, 1), READ - LARGE);
        assert_eq!(Pattern::Skips.offset(reads, 1 << 30, 1), READ + SKIPPED);
    }
}
