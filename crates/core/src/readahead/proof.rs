//! How much evidence a region demands of a stream before it is read ahead.
//!
//! Chance makes streams, too: where threads touch a dense working set at random, two of the last touches are often
//! neighbours, and a stray touch pulls a stream along. What is read for it costs memory that the working set needs.
//! Whether a stream is one, only its further touches tell. A region in which readahead is used reads at the second
//! touch. Where a part of it is evicted unused, a stream must show more touches that leave no absent page out, twice
//! as many each time, until it is read at all; and half as many again for each stretch that is used. It costs nothing to
//! follow a stream that is not read.

use crate::units::LEAF_PAGES;

/// The touches after which a stream is read: the least, and the most (a huge page).
const NEEDED: (u32, u32) = (2, LEAF_PAGES as u32);
/// A mark stands for the pages of its block.
const MARK: i32 = 16;
/// Pages read ahead and evicted unused, less a quarter of those used, after which twice the evidence is demanded.
const WASTE: i32 = 64;

/// The evidence that a region demands.
#[derive(Clone, Copy, Debug)]
pub struct Proof {
    needed: u32,
    /// Quarter pages: four for each page wasted, less one for each used.
    waste: i32,
}

impl Default for Proof {
    fn default() -> Self {
        Proof {
            needed: NEEDED.0,
            waste: 0,
        }
    }
}

impl Proof {
    /// Touches without an absent page between them, after which a stream is read ahead.
    pub(super) fn needed(&self) -> u32 {
        self.needed
    }

    /// A huge page that was read whole is touched.
    pub(crate) fn on_unit(&mut self) {
        self.weigh(-(LEAF_PAGES as i32));
    }

    /// A page that was read for a stream is touched (`used`), or is evicted before that. `mark`: it stands for its
    /// block.
    pub(crate) fn end(&mut self, mark: bool, used: bool) {
        let pages = if mark { MARK } else { 1 };
        self.weigh(if used { -pages } else { 4 * pages });
    }

    fn weigh(&mut self, waste: i32) {
        self.waste += waste;
        let (least, most) = NEEDED;
        if self.waste >= 4 * WASTE {
            (self.needed, self.waste) = ((2 * self.needed).min(most), 0);
        } else if self.waste <= -4 * WASTE {
            (self.needed, self.waste) = ((self.needed / 2).max(least), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waste_doubles_the_evidence_and_use_halves_it() {
        let mut proof = Proof::default();
        for _ in 0..100 {
            proof.end(true, true);
        }
        assert_eq!(proof.needed(), 2);
        for _ in 0..5 {
            proof.end(true, false);
        }
        assert_eq!(proof.needed(), 4);
        (0..192).for_each(|_| proof.end(false, false));
        assert_eq!(proof.needed(), 32);
        // Four of five pages are used: it stays.
        (0..1000).for_each(|n| proof.end(false, n % 5 > 0));
        assert_eq!(proof.needed(), 32);
        (0..800).for_each(|_| proof.end(false, true));
        assert_eq!(proof.needed(), 4);
    }
}
