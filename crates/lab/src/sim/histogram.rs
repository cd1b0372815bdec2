//! Latencies in buckets: 64 per power of two, which makes percentiles exact to 1.6 %.

use foreswap_core::units::Nanos;

const FINE: u32 = 6;

/// Times and how often each was met.
#[derive(Clone, Default, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    max: Nanos,
}

fn bucket(value: Nanos) -> usize {
    let order = value.checked_ilog2().unwrap_or(0).max(FINE) - FINE;
    ((u64::from(order) << FINE) + (value >> order)) as usize
}

/// The largest value of a bucket.
fn top(bucket: usize) -> Nanos {
    let bucket = bucket as u64;
    let order = (bucket >> FINE).saturating_sub(1);
    ((bucket - (order << FINE) + 1) << order) - 1
}

impl Histogram {
    /// Adds a time.
    pub fn add(&mut self, value: Nanos) {
        let at = bucket(value);
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        self.count += 1;
        self.sum += u128::from(value);
        self.max = self.max.max(value);
    }

    /// Adds all times of another histogram.
    pub fn merge(&mut self, other: &Histogram) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (sum, n) in self.counts.iter_mut().zip(&other.counts) {
            *sum += n;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Their mean, in nanoseconds; 0 without any.
    pub fn mean(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        self.sum as f64 / self.count as f64
    }

    /// The time that `percent` of them do not exceed.
    pub fn percentile(&self, percent: u32) -> Nanos {
        self.quantile(percent, 100)
    }

    /// The time that `part` of `whole` of them do not exceed.
    pub fn quantile(&self, part: u32, whole: u32) -> Nanos {
        let rank = (u128::from(self.count) * u128::from(part))
            .div_ceil(whole.into())
            .max(1);
        let mut seen = 0;
        for (at, n) in self.counts.iter().enumerate() {
            seen += u128::from(*n);
            if seen >= rank {
                return top(at).min(self.max);
            }
        }
        self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..5_000).chain([1 << 20, (1 << 40) + 12_345, u64::MAX >> 8]) {
            let at = bucket(value);
            assert!(
                top(at) >= value && (at == 0 || top(at - 1) < value),
                "{value}"
            );
            assert!(top(at) - value <= value >> FINE, "{value}");
        }
    }

    #[test]
    fn percentiles_and_mean() {
        let mut all = Histogram::default();
        let mut odd = Histogram::default();
        for value in 1..=1000 {
            if value % 2 == 0 { &mut all } else { &mut odd }.add(value);
        }
        all.merge(&odd);
        assert_eq!(all.mean(), 500.5);
        for (percent, value) in [(50, 500), (90, 900), (99, 990), (100, 1000)] {
            let found = all.percentile(percent);
            assert!((value..=value + 16).contains(&found), "{percent}: {found}");
        }
        assert_eq!(all.quantile(999, 1000), 999);
        assert_eq!(Histogram::default().percentile(50), 0);
    }
}
