//! Latencies of touches, counted in buckets that grow with the value.
//!
//! 32 buckets per power of two make a percentile accurate to about 3 %; recording is a shift and an increment. Whole
//! pages of a fault-free run and single faults of a slow disk (six orders of magnitude apart) fit the same table.

use serde::{Deserialize, Serialize};

/// Buckets per power of two, as a shift.
const FINE: u32 = 5;
/// Powers of two with their own buckets: up to 2^40 ns, about 18 minutes.
const POWERS: usize = 40;
/// Buckets in all.
const BUCKETS: usize = (POWERS - FINE as usize + 2) << FINE;

/// A touch that took longer than this was a fault, not a plain memory access.
const FAULTED_NS: u64 = 2_000;

/// A histogram of nanoseconds.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Box<[u64]>,
    sum: u64,
    max: u64,
}

/// A histogram's summary, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Values counted.
    pub count: u64,
    /// Their mean.
    pub average: f64,
    /// 50th percentile.
    pub p50: u64,
    /// 60th percentile.
    pub p60: u64,
    /// 70th percentile.
    pub p70: u64,
    /// 80th percentile.
    pub p80: u64,
    /// 90th percentile.
    pub p90: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// The largest value.
    pub max: u64,
}

impl Histogram {
    /// An empty histogram.
    pub fn new() -> Self {
        Self {
            counts: vec![0; BUCKETS].into_boxed_slice(),
            sum: 0,
            max: 0,
        }
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        self.counts.fill(0);
        (self.sum, self.max) = (0, 0);
    }

    /// Counts one value.
    #[inline(always)]
    pub fn record(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.sum += ns;
        self.max = self.max.max(ns);
    }

    /// Counts all values of another histogram as well.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// The summary of all values.
    pub fn latency(&self) -> Latency {
        let mut latency = self.summary(0);
        if latency.count > 0 {
            latency.average = self.sum as f64 / latency.count as f64;
        }
        latency
    }

    /// The summary of the touches that faulted ([`FAULTED_NS`]).
    pub fn faulted(&self) -> Latency {
        self.summary(bucket_of(FAULTED_NS))
    }

    fn summary(&self, from: usize) -> Latency {
        let counts = &self.counts[from..];
        let count: u64 = counts.iter().sum();
        if count == 0 {
            return Latency::default();
        }
        let percentile = |percent: u64| {
            let rank = (count * percent).div_ceil(100).max(1);
            let mut seen = 0;
            let found = counts.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            middle_of(from + found.unwrap_or(0)).min(self.max)
        };
        let weighted = counts.iter().enumerate();
        let sum: f64 = weighted
            .map(|(i, n)| *n as f64 * middle_of(from + i) as f64)
            .sum();
        Latency {
            count,
            average: sum / count as f64,
            p50: percentile(50),
            p60: percentile(60),
            p70: percentile(70),
            p80: percentile(80),
            p90: percentile(90),
            p95: percentile(95),
            p99: percentile(99),
            max: self.max,
        }
    }

    /// The buckets that counted something: the smallest value of each, and its count.
    pub fn buckets(&self) -> Vec<(u64, u64)> {
        let counts = self.counts.iter().enumerate();
        counts
            .filter(|(_, n)| **n > 0)
            .map(|(i, n)| (start_of(i), *n))
            .collect()
    }

    /// Rebuilds a histogram from its [`buckets`](Self::buckets), sum and maximum.
    pub fn from_buckets(buckets: &[(u64, u64)], sum: u64, max: u64) -> Self {
        let mut histogram = Self::new();
        for (start, count) in buckets {
            histogram.counts[bucket_of(*start)] += count;
        }
        histogram.sum = sum;
        histogram.max = max;
        histogram
    }

    /// The sum of all values.
    pub fn sum(&self) -> u64 {
        self.sum
    }
}

#[inline(always)]
fn bucket_of(ns: u64) -> usize {
    let top = (ns | 1).ilog2();
    if top < FINE {
        return ns as usize;
    }
    let power = (top - FINE + 1) as usize;
    let fine = (ns >> (top - FINE)) as usize & ((1 << FINE) - 1);
    ((power << FINE) | fine).min(BUCKETS - 1)
}

fn start_of(bucket: usize) -> u64 {
    let (power, fine) = (bucket >> FINE, bucket as u64 & ((1 << FINE) - 1));
    match power {
        0 => fine,
        _ => ((1 << FINE) | fine) << (power - 1),
    }
}

fn middle_of(bucket: usize) -> u64 {
    (start_of(bucket) + start_of(bucket + 1) - 1) / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_tile_the_line() {
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(bucket_of(start_of(bucket)), bucket);
            assert_eq!(bucket_of(start_of(bucket + 1) - 1), bucket);
        }
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_right_to_three_percent() {
        let mut histogram = Histogram::new();
        for ns in 1..=100_000u64 {
            histogram.record(ns);
        }
        let latency = histogram.latency();
        let near = |found: u64, real: f64| (found as f64 / real - 1.0).abs() < 0.032;
        assert!(near(latency.p50, 50_000.0), "{latency:?}");
        assert!(near(latency.p90, 90_000.0), "{latency:?}");
        assert!(near(latency.p99, 99_000.0), "{latency:?}");
        assert_eq!(latency.max, 100_000);
        assert!((latency.average - 50_000.5).abs() < 1e-6);
    }

    #[test]
    fn faulted_touches_stand_apart() {
        let mut histogram = Histogram::new();
        for _ in 0..900 {
            histogram.record(30);
        }
        for _ in 0..100 {
            histogram.record(40_000);
        }
        assert_eq!(histogram.latency().p50, 30);
        let faulted = histogram.faulted();
        assert_eq!(faulted.count, 100);
        assert!((39_000..41_000).contains(&faulted.p50), "{faulted:?}");
    }

    #[test]
    fn an_empty_histogram_has_a_summary() {
        assert_eq!(Histogram::new().latency(), Latency::default());
        assert_eq!(Histogram::new().faulted(), Latency::default());
    }

    #[test]
    fn buckets_survive_the_way_to_another_process() {
        let mut histogram = Histogram::new();
        for ns in [3, 700, 700, 65_000] {
            histogram.record(ns);
        }
        let back = Histogram::from_buckets(&histogram.buckets(), histogram.sum(), histogram.max);
        assert_eq!(back.latency(), histogram.latency());
    }
}
