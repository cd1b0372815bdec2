//! A miss-ratio curve: of all touches, how many miss in a memory of so many pages.

use std::collections::BTreeMap;

/// Buckets of a power of two in a coarse histogram: depths are told to within half a percent.
const FINE: u32 = 8;

/// Touches by their depth in the stack.
pub enum Depths {
    /// One by one; index 0 is not used.
    Exact(Vec<u64>),
    /// By weight, in buckets that widen with the depth; the key is the largest depth of the bucket.
    Coarse(BTreeMap<u64, f64>),
}

impl Depths {
    /// A touch at `depth`, which counts `weight` times.
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

/// How the misses fall as the memory grows.
#[derive(Clone, Debug)]
pub struct Curve {
    /// All touches.
    pub touches: f64,
    /// Of those, the first ones of their pages: they miss in any memory.
    pub first: f64,
    /// Below this memory, in pages, the curve is not known.
    pub floor: u64,
    /// Depth, and the touches at most that deep that are not first ones; both rise.
    upto: Vec<(u64, f64)>,
}

impl Curve {
    /// Of `depths`, beside `first` touches.
    pub fn new(depths: Depths, first: f64, floor: u64) -> Self {
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

    /// Touches that are missing from a sample are counted as the shallowest (SHARDS-adj): there are
    /// `touches` in all.
    pub fn adjust(&mut self, touches: f64) {
        let missing = touches - self.touches;
        if self.upto.is_empty() {
            self.upto.push((self.floor.max(1), 0.0));
        }
        for (_, upto) in &mut self.upto {
            *upto += missing;
        }
        self.touches = touches;
    }

    /// Touches that are no first ones and miss in `pages` of memory.
    pub fn again(&self, pages: u64) -> f64 {
        let all = self.upto.last().map_or(0.0, |&(_, sum)| sum);
        let at = self.upto.partition_point(|&(depth, _)| depth <= pages);
        let hits = at.checked_sub(1).map_or(0.0, |at| self.upto[at].1);
        (all - hits).clamp(0.0, self.touches.max(0.0))
    }

    /// The part of all touches that misses in `pages` of memory, first ones included.
    pub fn miss_ratio(&self, pages: u64) -> f64 {
        self.part(self.again(pages) + self.first)
    }

    /// As [`Curve::miss_ratio`], without the first ones.
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

    /// The least memory in pages in which no more than `ratio` of all touches miss again; no less
    /// than the floor.
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

    /// Enough for all: more memory changes nothing. In pages.
    pub fn enough(&self) -> u64 {
        self.upto
            .last()
            .map_or(0, |&(depth, _)| depth)
            .max(self.floor)
    }

    /// How far `self` is from `exact` at `steps` evenly spaced sizes: the mean, the worst, and where
    /// that is, in pages.
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
        // a b c a b c a: three first ones, then four at depth 3.
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
        // And they are not the same.
        assert!(worst > 0.0);
    }
}
