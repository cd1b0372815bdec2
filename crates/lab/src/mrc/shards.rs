//! Counts stack depths of all pages, or of a sample (SHARDS).
//!
//! Waldspurger, Park, Garthwaite and Ahmad, "Efficient MRC Construction with SHARDS" (FAST 2015). A page is in the
//! sample if its hash is below a threshold: either all of its touches are seen or none, and a depth within the sample
//! represents that depth divided by the sampling rate. With a fixed size, the threshold falls whenever there are too
//! many pages. A touch counts by the inverse of the rate at its time, which is equivalent to the paper's rescaling of
//! the counts. At the end, missing or excess touches of the sample are corrected (SHARDS-adj).

use std::collections::BinaryHeap;
use std::ops::Range;

use super::curve::{Curve, Depths};
use super::stack::{Page, Stack};
use crate::hash::mix;

/// The sampled pages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Sample {
    /// All.
    All,
    /// This fraction of them.
    Rate(f64),
    /// At most this many.
    Size(usize),
}

/// Counts depths.
pub struct Counter {
    stack: Stack,
    depths: Depths,
    /// Pages with a hash below it are in the sample.
    threshold: u128,
    /// With a fixed size: the size, and the pages of the sample, the largest hash on top. Removed pages may still be
    /// in it.
    most: Option<usize>,
    sampled: BinaryHeap<(u64, Page)>,
    first: f64,
    /// Touches, in the sample or not.
    touches: u64,
    /// Memory before the start of the stack, in pages.
    floor: u64,
    /// Maximum number of pages in the stack.
    peak: usize,
}

/// The threshold at which every page is in the sample.
const ALL: u128 = 1 << 64;

fn hash(page: Page) -> u64 {
    mix(page.number ^ mix(u64::from(page.owner).wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

impl Counter {
    /// `floor`: see [`Curve::floor`].
    pub fn new(sample: Sample, floor: u64) -> Self {
        let (threshold, most) = match sample {
            Sample::All => (ALL, None),
            Sample::Rate(rate) => ((ALL as f64 * rate) as u128, None),
            Sample::Size(most) => (ALL, Some(most.max(1))),
        };
        let depths = match sample {
            Sample::All => Depths::Exact(Vec::new()),
            _ => Depths::Coarse(Default::default()),
        };
        Counter {
            stack: Stack::default(),
            depths,
            threshold,
            most,
            sampled: BinaryHeap::new(),
            first: 0.0,
            touches: 0,
            floor,
            peak: 0,
        }
    }

    fn samples(&self, page: Page) -> bool {
        self.threshold == ALL || u128::from(hash(page)) < self.threshold
    }

    fn weight(&self) -> f64 {
        ALL as f64 / self.threshold as f64
    }

    /// `page` is touched, and becomes the most recent one.
    pub fn touch(&mut self, page: Page) {
        self.touches += 1;
        if self.samples(page) {
            let depth = self.stack.touch(page);
            self.count(depth);
            self.entered(page, depth.is_none());
        }
    }

    /// As [`Counter::touch`], for a page that is in memory from now on and no longer in the stack.
    pub fn touch_and_take(&mut self, page: Page) {
        self.touches += 1;
        if self.samples(page) {
            let depth = self.stack.take(page);
            self.count(depth);
        }
    }

    /// A touch that finds its page in memory, above the stack.
    pub fn touch_above(&mut self, page: Page) {
        self.touches += 1;
        if self.samples(page) {
            self.stack.take(page);
            self.depths.add(self.floor.max(1), self.weight());
        }
    }

    /// `page` is put on the stack without a touch.
    pub fn put(&mut self, page: Page) {
        if self.samples(page) {
            let depth = self.stack.touch(page);
            self.entered(page, depth.is_none());
        }
    }

    fn count(&mut self, depth: Option<u64>) {
        let weight = self.weight();
        match depth {
            Some(depth) => {
                let depth = if weight == 1.0 {
                    depth
                } else {
                    (depth as f64 * weight) as u64
                };
                self.depths.add(self.floor + depth, weight);
            }
            None => self.first += weight,
        }
    }

    fn entered(&mut self, page: Page, new: bool) {
        self.peak = self.peak.max(self.stack.len());
        let Some(most) = self.most else {
            return;
        };
        if new {
            self.sampled.push((hash(page), page));
        }
        while self.stack.len() > most
            && let Some((hash, page)) = self.sampled.pop()
        {
            self.stack.take(page);
            // A hash of 0 would leave nothing to sample.
            self.threshold = u128::from(hash.max(1));
            while let Some(&(other, page)) = self.sampled.peek()
                && u128::from(other) >= self.threshold
            {
                self.stack.take(page);
                self.sampled.pop();
            }
        }
        // Pages that were removed and returned are in it more than once.
        if self.sampled.len() > 4 * most + 64 {
            let mut rest = std::mem::take(&mut self.sampled).into_vec();
            rest.sort_unstable();
            rest.dedup();
            rest.retain(|&(_, page)| self.stack.holds(page));
            self.sampled = rest.into();
        }
    }

    /// The content of pages is discarded: their next touch is a first one.
    pub fn forget(&mut self, owner: u32, range: Range<u64>) {
        self.stack.take_range(owner, range);
    }

    /// Pages move. The sample depends on a page's number: a page that moves into the sample begins anew.
    pub fn rename(&mut self, owner: u32, range: Range<u64>, to: u64) {
        if self.threshold == ALL && self.most.is_none() {
            self.stack.rename(owner, range, to);
        } else {
            self.forget(owner, to..to + (range.end - range.start));
            self.forget(owner, range);
        }
    }

    /// The counts.
    pub fn finish(self) -> Counted {
        let (rate, peak) = (1.0 / self.weight(), self.peak);
        let mut curve = Curve::new(self.depths, self.first, self.floor);
        if rate < 1.0 {
            curve.adjust(self.touches as f64);
        }
        Counted {
            touches: self.touches,
            curve,
            rate,
            peak,
        }
    }
}

/// The result.
pub struct Counted {
    /// Touches, in the sample or not.
    pub touches: u64,
    /// The curve.
    pub curve: Curve,
    /// The fraction of the pages in the sample at the end.
    pub rate: f64,
    /// Maximum number of sampled pages in the stack.
    pub peak: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Touches of 20,000 pages: a scan, and a hot set.
    fn counted(sample: Sample) -> Counted {
        let mut counter = Counter::new(sample, 0);
        let mut state = 7u64;
        for n in 0..600_000u64 {
            state = mix(state.wrapping_add(n));
            let number = match state % 4 {
                0 => n / 4 % 20_000,
                1 => (state >> 8) % 20_000,
                _ => (state >> 8) % 800,
            };
            counter.touch(Page { owner: 0, number });
        }
        counter.finish()
    }

    #[test]
    fn samples_are_near_the_exact_curve() {
        let exact = counted(Sample::All);
        assert_eq!((exact.rate, exact.peak), (1.0, 20_000));
        assert_eq!(exact.curve.touches, 600_000.0);
        assert_eq!(exact.curve.first, 20_000.0);
        for (sample, limit) in [
            (Sample::Rate(0.1), 0.02),
            (Sample::Rate(0.05), 0.03),
            (Sample::Size(4000), 0.02),
            (Sample::Size(1000), 0.03),
        ] {
            let sampled = counted(sample);
            let (mean, _, _) = sampled.curve.error(&exact.curve, 1000);
            assert!(mean > 0.0 && mean < limit, "{sample:?}: {mean}");
            assert_eq!(sampled.curve.touches.round(), 600_000.0);
            if let Sample::Size(most) = sample {
                assert!(sampled.peak <= most + 1, "{} pages", sampled.peak);
                assert!(
                    sampled.rate < 1.2 * most as f64 / 20_000.0,
                    "{}",
                    sampled.rate
                );
            }
        }
    }

    #[test]
    fn a_sample_that_holds_all_is_exact() {
        let (all, sampled) = (counted(Sample::All), counted(Sample::Size(30_000)));
        assert_eq!(sampled.rate, 1.0);
        // Except for the buckets of its histogram.
        assert!(sampled.curve.error(&all.curve, 1000).0 < 0.002);
    }

    #[test]
    fn pages_that_come_and_go_do_not_pile_up() {
        let mut counter = Counter::new(Sample::Size(100), 0);
        for n in 0..200_000u64 {
            counter.touch(Page {
                owner: 0,
                number: n % 90,
            });
            counter.forget(0, n % 90..n % 90 + 1);
        }
        assert!(counter.sampled.len() < 1000);
        assert_eq!(counter.finish().curve.first, 200_000.0);
    }
}
