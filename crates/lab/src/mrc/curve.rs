//! A miss-ratio curve: the fraction of touches that miss, by memory size in pages.

use std::collections::BTreeMap;

/// Buckets per power of two in a coarse histogram: depths are exact to half a percent.
const FINE: u32 = 8;

/// Touches by their depth in the stack.
pub enum Depths {
    /// One by one; index 0 is not used.
    Exact(Vec<u64>),
    /// By weight, in buckets whose width grows with the depth; the key is the largest depth of the bucket.
    Coarse(BTreeMap<u64, f64>),
}

impl Depths {
    /// A touch at `depth` with this `weight`.
    pub fn add(&mut self, depth: u64, weight: f64) {
        match self {
            Depths::Exact(counts) => {
                let at = depth as usize;
                if counts.len() <= at {
                    counts.resize(at + 1, 0);
                }
                counts[at] += 1;
            }
            Depths::Coarse(counts) => {
                let shift = (64 - depth.leading_zeros()).saturating_sub(FINE);
                let bucket = ((depth >> shift) << shift) | ((1 << shift) - 1);
                *counts.entry(bucket).or_default() += weight;
            }
        }
    }
}

/// The decrease of misses with memory.
#[derive(Clone, Debug)]
pub struct Curve {
    /// All touches.
    pub touches: f64,
    /// First touches of pages: they miss in any memory.
    pub first: f64,
    /// Below this memory, in pages, the curve is unknown.
    pub floor: u64,
    /// Depth, and the number of repeated touches at most that deep; both rise.
    upto: Vec<(u64, f64)>,
}

impl Curve {
    /// The curve of `depths` and `first` touches.
    pub(super) fn new(depths: Depths, first: f64, floor: u64) -> Self {
        let mut sum = 0.0;
        let mut upto = Vec::new();
        let mut push = |depth: u64, count: f64| {
            if count != 0.0 {
                sum += count;
                upto.push((depth, sum));
            }
        };
        match depths {
            Depths::Exact(counts) => {
                (0..)
                    .zip(counts)
                    .for_each(|(depth, count)| push(depth, count as f64));
            }
            Depths::Coarse(counts) => {
                counts
                    .into_iter()
                    .for_each(|(depth, count)| push(depth, count));
            }
        }
        Curve {
            touches: first + sum,
            first,
            floor,
            upto,
        }
    }

    /// Touches missing from a sample count as the shallowest (SHARDS-adj): there are `touches` in all.
    pub(super) fn adjust(&mut self, touches: f64) {
        let missing = touches - self.touches;
        if self.upto.is_empty() {
            self.upto.push((self.floor.max(1), 0.0));
        }
        for (_, upto) in &mut self.upto {
            *upto += missing;
        }
        self.touches = touches;
    }

    /// Repeated touches that miss in `pages` of memory.
    pub fn again(&self, pages: u64) -> f64 {
        let all = self.upto.last().map_or(0.0, |&(_, sum)| sum);
        let at = self.upto.partition_point(|&(depth, _)| depth <= pages);
        let hits = at.checked_sub(1).map_or(0.0, |at| self.upto[at].1);
        (all - hits).clamp(0.0, self.touches.max(0.0))
    }

    /// The fraction of all touches that miss in `pages` of memory, first ones included.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        self.part(self.again(pages) + self.first)
    }

    /// As [`Curve::miss_ratio`], without first touches.
    pub fn again_ratio(&self, pages: u64) -> f64 {
        self.part(self.again(pages))
    }

    fn part(&self, touches: f64) -> f64 {
        if self.touches > 0.0 {
            (touches / self.touches).min(1.0)
        } else {
            0.0
        }
    }

    /// The least memory in pages in which at most `ratio` of all touches miss again; at least the floor.
    pub fn needed(&self, ratio: f64) -> u64 {
        let enough = |pages: u64| self.again_ratio(pages) <= ratio;
        if enough(self.floor) {
            return self.floor;
        }
        let at = self.upto.partition_point(|&(depth, _)| !enough(depth));
        self.upto
            .get(at)
            .or(self.upto.last())
            .map_or(self.floor, |&(depth, _)| depth)
    }

    /// Sufficient memory in pages: more changes nothing.
    pub fn enough(&self) -> u64 {
        self.upto
            .last()
            .map_or(0, |&(depth, _)| depth)
            .max(self.floor)
    }

    /// The error of `self` against `exact` at `steps` evenly spaced sizes: the mean, the maximum, and its place in
    /// pages.
    pub fn error(&self, exact: &Curve, steps: u64) -> (f64, f64, u64) {
        let (floor, most) = (exact.floor, exact.enough().max(self.enough()));
        let (mut sum, mut worst, mut at) = (0.0, 0.0, floor);
        let size =
            |n: u64| floor + ((most - floor) as u128 * u128::from(n) / u128::from(steps)) as u64;
        for pages in (0..=steps).map(size) {
            let error = (self.miss_ratio(pages) - exact.miss_ratio(pages)).abs();
            sum += error;
            if error > worst {
                (worst, at) = (error, pages);
            }
        }
        (sum / (steps + 1) as f64, worst, at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_fall_as_memory_grows() {
        // a b c a b c a: three first touches, then four at depth 3.
        let mut depths = Depths::Exact(Vec::new());
        (0..4).for_each(|_| depths.add(3, 1.0));
        let curve = Curve::new(depths, 3.0, 0);
        assert_eq!(curve.miss_ratio(0), 1.0);
        assert_eq!(curve.miss_ratio(2), 1.0);
        assert_eq!(curve.miss_ratio(3), 3.0 / 7.0);
        assert_eq!(curve.again_ratio(3), 0.0);
        assert_eq!(
            (curve.needed(0.01), curve.needed(0.9), curve.enough()),
            (3, 0, 3)
        );
    }

    #[test]
    fn coarse_depths_are_near_the_exact_ones() {
        let (mut exact, mut coarse) = (Depths::Exact(Vec::new()), Depths::Coarse(BTreeMap::new()));
        for depth in 1..50_000u64 {
            exact.add(depth, 1.0);
            coarse.add(depth, 1.0);
        }
        let (exact, coarse) = (Curve::new(exact, 1.0, 0), Curve::new(coarse, 1.0, 0));
        let (mean, worst, _) = coarse.error(&exact, 1000);
        assert!(mean < 0.002 && worst < 0.008, "{mean} {worst}");
        // The curves differ.
        assert!(worst > 0.0);
    }
}
