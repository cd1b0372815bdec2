//! How far a file may be read ahead.

use crate::units::{Nanos, PAGE_SIZE};

/// The program's hint about its reads (posix_fadvise, madvise).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pattern {
    /// None.
    #[default]
    Normal,
    /// In order: the limit is doubled.
    Sequential,
    /// In no order: only the request is read.
    Random,
}

/// The limits of one file, in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest window; 0 switches readahead off.
    pub max: u64,
    /// The size of one device I/O: a larger request lifts `max` up to it.
    pub device: u64,
}

/// The limit with which Linux starts: 128 KiB.
const DEFAULT_MAX: u64 = 32;
/// Below this a window does not pay for its mark.
const FLOOR: u64 = DEFAULT_MAX;
/// Above this a window holds more memory than it saves time: 64 MiB.
const CEILING: u64 = 1 << 14;
/// A window may take this part of the free memory.
const SHARE: u64 = 8;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max: DEFAULT_MAX,
            device: 256,
        }
    }
}

impl Limits {
    /// The limits for a store that was measured to transfer `bytes_per_second` with `latency` from request to data,
    /// while `free` pages are available for readahead.
    ///
    /// A stream keeps the store busy if the part of the window ahead of it covers the latency. The window is twice the
    /// product of rate and latency: one product is in flight while another is being used. It is rounded up to a power
    /// of two, to ignore the noise of the measurement. Short memory takes precedence over speed.
    pub fn for_store(bytes_per_second: u64, latency: Nanos, free: u64) -> Self {
        let bytes = u128::from(bytes_per_second) * u128::from(latency) / 1_000_000_000;
        let pages = (2 * bytes).div_ceil(PAGE_SIZE as u128);
        let wanted = u64::try_from(pages)
            .unwrap_or(CEILING)
            .clamp(FLOOR, CEILING);
        let max = wanted.next_power_of_two().min(free / SHARE);
        let device = Limits::default().device.min(free / SHARE);
        Limits { max, device }
    }

    /// With the program's hint.
    pub fn advised(self, pattern: Pattern) -> Self {
        let max = match pattern {
            Pattern::Sequential => self.max.saturating_mul(2),
            Pattern::Normal | Pattern::Random => self.max,
        };
        Limits { max, ..self }
    }

    /// The largest window for a request of `want` pages.
    pub(super) fn lifted(&self, want: u64) -> u64 {
        if want > self.max && self.device > self.max {
            want.min(self.device)
        } else {
            self.max
        }
    }
}

/// The first window for a request of `want` pages. At least 1 when `max` is.
pub(super) fn first_size(want: u64, max: u64) -> u64 {
    match want.checked_next_power_of_two() {
        Some(size) if size <= max / 32 => size * 4,
        Some(size) if size <= max / 4 => size * 2,
        _ => max,
    }
}

/// The window after one of `size` pages.
pub(super) fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_grow_in_the_stated_steps() {
        for (want, max, size) in [
            (1, 32, 4),
            (2, 32, 4),
            (3, 32, 8),
            (8, 32, 16),
            (9, 32, 32),
            (1, 8, 2),
            (2, 8, 4),
            (3, 8, 8),
            (1, 256, 4),
            (8, 256, 32),
            (9, 256, 32),
            (1, 1, 1),
            (5, 1, 1),
            (u64::MAX, 32, 32),
        ] {
            assert_eq!(first_size(want, max), size, "{want} of {max}");
        }
        for (size, max, next) in [
            (1, 32, 4),
            (2, 32, 4),
            (16, 32, 32),
            (17, 32, 32),
            (40, 32, 32),
            (1, 8, 2),
            (15, 256, 60),
            (16, 256, 32),
            (1, 1, 1),
        ] {
            assert_eq!(next_size(size, max), next, "after {size} of {max}");
        }
    }

    #[test]
    fn a_large_request_lifts_the_limit_to_what_the_device_takes() {
        let limits = Limits {
            max: 32,
            device: 256,
        };
        for (want, max) in [(32, 32), (33, 33), (256, 256), (257, 256)] {
            assert_eq!(limits.lifted(want), max);
        }
        let small = Limits {
            max: 512,
            device: 256,
        };
        assert_eq!(small.lifted(1000), 512);
        assert_eq!(limits.advised(Pattern::Sequential).max, 64);
        assert_eq!(limits.advised(Pattern::Random), limits);
    }

    #[test]
    fn the_window_covers_the_latency_and_leaves_memory() {
        let max = |bandwidth, latency, free| Limits::for_store(bandwidth, latency, free).max;
        // 1 GB/s at 20 ms: 20 MB on the way, 40 MB of window, 9766 pages.
        assert_eq!(max(1_000_000_000, 20_000_000, 1 << 20), 16384);
        // A local SSD: 3 GB/s at 100 us.
        assert_eq!(max(3_000_000_000, 100_000, 1 << 20), 256);
        // A slow device never falls below what Linux starts with.
        assert_eq!(max(1_000_000, 100_000, 1 << 20), 32);
        // Short of memory.
        assert_eq!(max(1_000_000_000, 20_000_000, 800), 100);
        assert_eq!(max(1_000_000_000, 20_000_000, 7), 0);
        assert_eq!(Limits::for_store(1_000_000, 100_000, 800).device, 100);
        assert_eq!(max(u64::MAX, u64::MAX, u64::MAX), CEILING);
    }
}
