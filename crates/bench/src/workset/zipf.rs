//! Pages drawn with skew: the page of rank r has a share of 1 / r^s, and ranks are spread over the region.
//!
//! The generator is that of Gray et al., "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), section
//! 3.2, which YCSB uses too: it needs no table.

use crate::usemem::Draw;

/// The exponent.
const SKEW: f64 = 0.99;
/// Ranks are spread by a multiplication with this prime.
const SPREAD: u64 = 2_654_435_761;

/// Draws pages.
#[derive(Debug)]
pub struct Zipf {
    pages: u64,
    /// The sum of all shares.
    zeta: f64,
    /// The share of the first two ranks, times `zeta`.
    first_two: f64,
    alpha: f64,
    eta: f64,
}

impl Zipf {
    /// Of `pages` pages, fewer than 2^32.
    pub fn new(pages: u64) -> Self {
        let share = |rank: u64| (rank as f64).powf(-SKEW);
        let zeta: f64 = (1..=pages).map(share).sum();
        let first_two = 1.0 + share(2);
        let n = pages as f64;
        Zipf {
            pages,
            zeta,
            first_two,
            alpha: 1.0 / (1.0 - SKEW),
            eta: (1.0 - (2.0 / n).powf(1.0 - SKEW)) / (1.0 - first_two / zeta),
        }
    }

    /// The next page.
    pub fn page(&self, draw: &mut Draw) -> u64 {
        // A prime above all page numbers visits each page once.
        self.rank(draw) * SPREAD % self.pages
    }

    /// Its rank, from 0 on.
    fn rank(&self, draw: &mut Draw) -> u64 {
        const FINE: u64 = 1 << 53;
        let u = draw.below(FINE) as f64 / FINE as f64;
        let at = u * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < self.first_two {
            return 1;
        }
        let rank = self.pages as f64 * (self.eta * u - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(self.pages - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_fall_with_the_rank() {
        let (pages, draws) = (10_000, 400_000_u64);
        let zipf = Zipf::new(pages);
        let mut draw = Draw::new(1, 0);
        let mut counts = vec![0_u64; pages as usize];
        for _ in 0..draws {
            counts[zipf.rank(&mut draw) as usize] += 1;
        }
        let share = |ranks: std::ops::Range<usize>| {
            let counted: u64 = counts[ranks].iter().sum();
            counted as f64 / draws as f64
        };
        let expected = |ranks: std::ops::Range<usize>| -> f64 {
            let shares = ranks.map(|r| (r as f64 + 1.0).powf(-SKEW));
            shares.sum::<f64>() / zipf.zeta
        };
        for ranks in [0..1, 1..2, 2..10, 10..100, 100..1_000, 1_000..10_000] {
            let (found, expected) = (share(ranks.clone()), expected(ranks.clone()));
            assert!(
                (found / expected - 1.0).abs() < 0.15,
                "{ranks:?}: {found:.4}, {expected:.4}"
            );
        }
    }

    #[test]
    fn each_page_has_one_rank() {
        for pages in [64, 1000, 262_144] {
            let all: std::collections::HashSet<u64> =
                (0..pages).map(|r| r * SPREAD % pages).collect();
            assert_eq!(all.len() as u64, pages);
        }
    }
}
