//! Whether readahead pays in a region: how many touches in a row a stream needs there before it is read ahead.
//!
//! Chance makes streams, too: where threads touch a dense working set at random, two of the last touches are often
//! neighbours, and a stray touch pulls a stream along. What is read for it takes memory from the working set. A hit is no
//! proof: most pages of such a set are touched before they are evicted, whether readahead chose them or not. So each
//! page has a price, in misses: its handling, and the misses that its memory would have saved until its touch or its end
//! ([`crate::reclaim::Reclaim::cost_since`]). A hit earns one miss. Where a region loses, a stream needs twice as many
//! touches in a row that skip no absent page; where it earns, half as many. It costs nothing to follow a stream that is not read.

use crate::reclaim::refault::MISS;

/// The touches after which a stream is read: the least, and the most. With more, records of a few pages at random places
/// are not read ahead any more (up to three times as slow on a disk).
const NEEDED: (u32, u32) = (2, 4);
/// A mark stands for this many pages.
const MARK: i32 = 16;
/// The loss after which twice the evidence is demanded, and the gain after which half of it is: 64 misses.
const STEP: i32 = 64 * MISS as i32;

/// The evidence that a region demands.
#[derive(Clone, Copy, Debug)]
pub struct Profit {
    needed: u32,
    /// Losses less gains, in parts of a miss.
    loss: i32,
}

impl Default for Profit {
    fn default() -> Self {
        Profit {
            needed: NEEDED.0,
            loss: 0,
        }
    }
}

impl Profit {
    /// Touches without an absent page between them, after which a stream is read ahead.
    pub(super) fn needed(&self) -> u32 {
        self.needed
    }

    /// Of the pages that were read for a stream, `pages` are touched (`used`) or evicted untouched. Each has cost `cost`.
    /// `mark`: a page that stands for its block.
    pub(crate) fn end(&mut self, pages: u32, mark: bool, used: bool, cost: u32) {
        let pages = pages as i32 * if mark { MARK } else { 1 };
        let gain = if used { MISS } else { 0 };
        self.weigh(pages * (cost as i32 - gain as i32));
    }

    fn weigh(&mut self, loss: i32) {
        self.loss = self.loss.saturating_add(loss);
        let (least, most) = NEEDED;
        if self.loss >= STEP {
            (self.needed, self.loss) = ((2 * self.needed).min(most), 0);
        } else if self.loss <= -STEP {
            (self.needed, self.loss) = ((self.needed / 2).max(least), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The evidence after `pages` pages, of which every `unused`th is evicted untouched, at this price.
    fn needed(profit: &mut Profit, pages: u32, unused: u32, cost: u32) -> u32 {
        (0..pages).for_each(|n| profit.end(1, false, n % unused > 0, cost));
        profit.needed()
    }

    #[test]
    fn losses_double_the_evidence_and_gains_halve_it() {
        let mut profit = Profit::default();
        assert_eq!(needed(&mut profit, 1000, 2, MISS / 8), 2, "cheap");
        let mut profit = Profit::default();
        assert_eq!(needed(&mut profit, 63, 1, MISS), 2);
        assert_eq!(needed(&mut profit, 1, 1, MISS), 4, "64 misses");
        assert_eq!(needed(&mut profit, 1000, 1, MISS), 4, "the most");
        let mut profit = Profit::default();
        assert_eq!(needed(&mut profit, 64, 1, MISS), 4);
        assert_eq!(
            needed(&mut profit, 10_000, 2, MISS / 2),
            4,
            "hits pay exactly"
        );
        profit.end(512, false, true, 0);
        assert_eq!(profit.needed(), 2, "a huge page is used");
    }
}
