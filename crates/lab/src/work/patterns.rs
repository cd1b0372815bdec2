//! One program that touches its region in a given order: the patterns of the project's own `usemem`.

use foreswap_core::units::{Nanos, PageRange, Vpn, len};

use crate::sim::program::{Op, Program};
use crate::sim::rng::Rng;

/// The order in which the pages of a region are touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// From the first page to the last.
    Sequential,
    /// From the last page to the first.
    Reverse,
    /// Every eighth page, starting one later after each round.
    Stride,
    /// The first four of every eight pages, then the others: a matrix whose rows have eight pages, by blocks of columns.
    Rows,
    /// A page of each of four sequential scans in turn.
    Interleaved,
    /// Pages drawn uniformly.
    Random,
}

/// Pages from one touch to the next in a strided pass.
const STRIDE: u64 = 8;
/// Pages that are touched of each [`STRIDE`] in a row.
const ROW: u64 = 4;
/// Scans that take turns.
const SCANS: u64 = 4;

impl Pattern {
    /// All of them.
    pub const ALL: [Pattern; 6] = [
        Pattern::Sequential,
        Pattern::Reverse,
        Pattern::Stride,
        Pattern::Rows,
        Pattern::Interleaved,
        Pattern::Random,
    ];

    /// Its name in a table.
    pub const fn name(self) -> &'static str {
        match self {
            Pattern::Sequential => "sequential",
            Pattern::Reverse => "reverse",
            Pattern::Stride => "stride 8",
            Pattern::Rows => "4 pages of 8",
            Pattern::Interleaved => "4 scans in turn",
            Pattern::Random => "random",
        }
    }

    /// Touch number `n` of a pass over `pages` pages, a multiple of [`Pattern::STEP`].
    fn nth(self, n: u64, pages: u64, rng: &mut Rng) -> u64 {
        match self {
            Pattern::Sequential => n,
            Pattern::Reverse => pages - 1 - n,
            Pattern::Stride => {
                let each = pages / STRIDE;
                n % each * STRIDE + n / each
            }
            Pattern::Rows => {
                let (block, n) = (n / (pages / STRIDE * ROW), n % (pages / STRIDE * ROW));
                n / ROW * STRIDE + block * ROW + n % ROW
            }
            Pattern::Interleaved => n % SCANS * (pages / SCANS) + n / SCANS,
            Pattern::Random => rng.below(pages),
        }
    }

    /// A region's pages are a multiple of this.
    pub const STEP: u64 = STRIDE * SCANS;
}

/// The program: it writes its region once in order, which swaps all of it out sooner or later, waits for the signal,
/// and then reads it once in its pattern.
#[derive(Clone, Debug)]
pub struct Walk {
    region: PageRange,
    pattern: Pattern,
    /// CPU time per page.
    work: Nanos,
    rng: Rng,
    mapped: bool,
    at: u64,
    /// The start and the end of the reading.
    pub began: Nanos,
    pub ended: Nanos,
}

impl Walk {
    /// A program on a region whose pages are a multiple of [`Pattern::STEP`].
    pub fn new(region: PageRange, pattern: Pattern, work: Nanos, rng: Rng) -> Self {
        Walk {
            region,
            pattern,
            work,
            rng,
            mapped: false,
            at: 0,
            began: 0,
            ended: 0,
        }
    }
}

impl Program for Walk {
    fn next(&mut self, now: Nanos) -> Op {
        if !std::mem::replace(&mut self.mapped, true) {
            return Op::Map(self.region.clone());
        }
        let pages = len(&self.region);
        let at = self.at;
        if at == pages {
            self.began = now;
        }
        if at == 2 * pages {
            self.ended = now;
            return Op::End;
        }
        self.at += 1;
        let n = match at.checked_sub(pages) {
            None => at,
            Some(n) => self.pattern.nth(n, pages, &mut self.rng),
        };
        Op::Touch {
            page: Vpn(self.region.start.0 + n),
            write: at < pages,
            work: self.work,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pass_but_a_random_one_comes_to_every_page_once() {
        let mut rng = Rng::new(1);
        let pages = 4 * Pattern::STEP;
        for pattern in Pattern::ALL {
            let mut all: Vec<u64> = (0..pages)
                .map(|n| pattern.nth(n, pages, &mut rng))
                .collect();
            all.sort_unstable();
            let once: Vec<u64> = (0..pages).collect();
            assert_eq!(all == once, pattern != Pattern::Random, "{pattern:?}");
            assert!(all.iter().all(|page| *page < pages));
        }
        let first =
            |pattern: Pattern| [0, 1, 2, 3, 4].map(|n| pattern.nth(n, 128, &mut Rng::new(1)));
        assert_eq!(first(Pattern::Stride), [0, 8, 16, 24, 32]);
        assert_eq!(first(Pattern::Rows), [0, 1, 2, 3, 8]);
        assert_eq!(first(Pattern::Interleaved), [0, 32, 64, 96, 1]);
    }
}
