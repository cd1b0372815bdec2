//! What is counted. Pages are 4 KiB; times are nanoseconds.

use alloc::boxed::Box;

use crate::units::Nanos;

/// Buckets per power of two in a [`Histogram`].
const STEPS: u64 = 8;
/// Buckets of a [`Histogram`].
pub const BUCKETS: usize = 64 * STEPS as usize;

/// Latencies, in buckets an eighth of a power of two wide.
#[derive(Clone)]
pub struct Histogram {
    counts: Box<[u64; BUCKETS]>,
    max: Nanos,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            counts: Box::new([0; BUCKETS]),
            max: 0,
        }
    }
}

impl Histogram {
    /// Count one latency.
    pub fn add(&mut self, ns: Nanos) {
        self.counts[Self::bucket(ns)] += 1;
        self.max = self.max.max(ns);
    }

    /// The largest one.
    pub fn max(&self) -> Nanos {
        self.max
    }

    /// All counts, by bucket.
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// The bucket that counts `ns`.
    pub fn bucket(ns: Nanos) -> usize {
        if ns < STEPS {
            return ns as usize;
        }
        let power = u64::from(ns.ilog2());
        ((power - 2) * STEPS + (ns >> (power - 3)) - STEPS) as usize
    }

    /// The smallest latency of a bucket.
    pub fn floor(bucket: usize) -> Nanos {
        let (power, step) = (bucket as u64 / STEPS, bucket as u64 % STEPS);
        if power == 0 {
            step
        } else {
            (STEPS + step) << (power - 1)
        }
    }
}

/// Counters of one process. Names as in the `--stats` contract.
#[derive(Clone, Default)]
pub struct Stats {
    /// Faults that waited for a read.
    pub faults_major: u64,
    /// Faults on a page that was in a frame of ours.
    pub faults_minor: u64,
    /// First touches.
    pub faults_zero: u64,
    /// Pages read.
    pub swap_in: u64,
    /// Pages written.
    pub swap_out: u64,
    /// Reads.
    pub swap_read_ios: u64,
    /// Writes.
    pub swap_write_ios: u64,
    /// Pages that readahead brought.
    pub readahead_pages: u64,
    /// Of those, used before eviction.
    pub readahead_hits: u64,
    /// Pages dropped without a write as their slot held the same bytes.
    pub clean_drops: u64,
    /// Pages dropped without a write as they were all zero.
    pub zero_drops: u64,
    /// Times that background reclaim began.
    pub kswapd_wakeups: u64,
    /// Times that a fault had to reclaim for itself.
    pub direct_reclaims: u64,
    /// Major faults on pages that a little more memory would have kept.
    pub refaults: u64,
    /// Service time of minor faults.
    pub minor_ns: Histogram,
    /// Service time of all faults.
    pub fault_ns: Histogram,
    /// Windows of swap readahead, by their size (the last one counts all larger ones).
    pub windows: Windows,
}

/// Count of windows by size in pages, 0 to 512.
#[derive(Clone)]
pub struct Windows(pub Box<[u64; 513]>);

impl Default for Windows {
    fn default() -> Self {
        Windows(Box::new([0; 513]))
    }
}

impl Windows {
    /// Count a window of `pages`.
    pub fn add(&mut self, pages: u64) {
        self.0[pages.min(512) as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_an_eighth_of_a_power_of_two_wide() {
        let mut last = 0;
        for ns in (0..64).chain((6..60).flat_map(|p| [(1 << p) - 1, 1 << p, (1 << p) + 1])) {
            let bucket = Histogram::bucket(ns);
            assert!(bucket >= last && bucket < BUCKETS, "{ns}");
            assert!(Histogram::floor(bucket) <= ns, "{ns}");
            assert!(Histogram::floor(bucket + 1) > ns, "{ns}");
            last = bucket;
        }
    }
}
