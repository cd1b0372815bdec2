//! How far a file may be read ahead.

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

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max: DEFAULT_MAX,
            device: 256,
        }
    }
}

impl Limits {
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
}
