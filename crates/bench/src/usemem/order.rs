//! The order in which a pass visits the pages of a region. Each order except `rand` visits every page exactly once;
//! `rand` draws words and is not here.

use crate::args::{Pattern, UsememArgs};

/// One pass over `pages` pages.
#[derive(Debug, Clone)]
pub struct Order {
    pages: u64,
    kind: Kind,
    visited: u64,
}

#[derive(Debug, Clone)]
enum Kind {
    Forward,
    Backward,
    /// Every `distance`'th page from `start`; then again from one page later.
    Stride {
        distance: u64,
        start: u64,
        next: u64,
    },
    /// `row` pages of every `distance` from `start`; then again from `row` pages later.
    Rows {
        row: u64,
        distance: u64,
        start: u64,
        next: u64,
    },
    /// `scans` sequential scans, each of a part of `part` pages, in turns.
    Interleaved {
        scans: u64,
        part: u64,
        scan: u64,
        offset: u64,
    },
}

impl Order {
    /// The order of one pass.
    pub fn new(args: &UsememArgs, pages: u64) -> Self {
        let kind = match args.pattern {
            Pattern::Seq | Pattern::Rand => Kind::Forward,
            Pattern::Reverse => Kind::Backward,
            Pattern::Stride => Kind::Stride {
                distance: args.stride.max(1),
                start: 0,
                next: 0,
            },
            Pattern::Rows => Kind::Rows {
                row: args.row.clamp(1, args.stride.max(1)),
                distance: args.stride.max(1),
                start: 0,
                next: 0,
            },
            Pattern::Interleaved => Kind::Interleaved {
                scans: args.scans.clamp(1, pages),
                part: pages.div_ceil(args.scans.clamp(1, pages)),
                scan: 0,
                offset: 0,
            },
        };
        Self {
            pages,
            kind,
            visited: 0,
        }
    }
}

impl Iterator for Order {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        if self.visited == self.pages {
            return None;
        }
        let at = self.visited;
        self.visited += 1;
        let pages = self.pages;
        Some(match &mut self.kind {
            Kind::Forward => at,
            Kind::Backward => pages - 1 - at,
            Kind::Stride {
                distance,
                start,
                next,
            } => {
                if *next >= pages {
                    *start += 1;
                    *next = *start;
                }
                let page = *next;
                *next += *distance;
                page
            }
            Kind::Rows {
                row,
                distance,
                start,
                next,
            } => {
                if *next >= pages {
                    *start += *row;
                    *next = *start;
                }
                let page = *next;
                *next += 1;
                let place = *next % *distance;
                if place == 0 || place == *start + *row {
                    *next += (*start + *distance - place) % *distance;
                }
                page
            }
            Kind::Interleaved {
                scans,
                part,
                scan,
                offset,
            } => loop {
                let page = *scan * *part + *offset;
                // The last parts may be shorter than the others, or empty.
                let inside = page < pages;
                *scan += 1;
                if *scan == *scans {
                    *scan = 0;
                    *offset += 1;
                }
                if inside {
                    break page;
                }
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    fn order(words: &str, pages: u64) -> Vec<u64> {
        Order::new(&args::parse(words), pages).collect()
    }

    #[test]
    fn every_order_visits_each_page_once() {
        for words in [
            "--pattern=seq",
            "--pattern=reverse",
            "--pattern=stride",
            "--pattern=stride --stride=1000",
            "--pattern=rows --stride=8",
            "--pattern=rows --stride=7 --row=3",
            "--pattern=rows --stride=5 --row=9",
            "--pattern=interleaved --scans=2",
            "--pattern=interleaved --scans=8",
            "--pattern=interleaved --scans=4096",
        ] {
            for pages in [1, 2, 7, 10, 64, 1001] {
                let mut seen = order(words, pages);
                seen.sort_unstable();
                assert!(seen.into_iter().eq(0..pages), "{words} over {pages}");
            }
        }
    }

    #[test]
    fn orders_are_what_they_say() {
        assert_eq!(order("--pattern=reverse", 4), [3, 2, 1, 0]);
        assert_eq!(
            order("--pattern=stride --stride=3", 7),
            [0, 3, 6, 1, 4, 2, 5]
        );
        assert_eq!(
            order("--pattern=rows --stride=4 --row=2", 7),
            [0, 1, 4, 5, 2, 3, 6]
        );
        assert_eq!(
            order("--pattern=interleaved --scans=2", 6),
            [0, 3, 1, 4, 2, 5]
        );
    }
}
