//! Belady's MIN: the least misses that any order of eviction has.
//!
//! It evicts the page whose next touch is the farthest away, which only a reader of the whole trace can know. A touch of
//! a page that is not in memory is a miss, except the first one, and the first one after a discard: there is nothing to
//! read. It reads each page when it is touched, and all of memory holds pages. Tasks execute in the order of the trace.

use std::collections::{BTreeMap, BinaryHeap};

use foreswap_core::units::PageRange;

use super::machine::SPACE_SHIFT;
use crate::trace::{Event, Record};

/// A touch or discard of the page with this number; the highest bit tells them apart.
type Use = u32;
const DISCARD: Use = 1 << 31;
/// The most uses that are kept: 512 MiB.
const MOST: usize = 1 << 26;
/// The next use of a page that is not touched again.
const NEVER: u32 = u32::MAX;

/// The touches of a trace.
#[derive(Default)]
pub struct Min {
    uses: Vec<Use>,
    /// The number of each page that has content.
    pages: BTreeMap<u64, u32>,
    numbers: u32,
    spaces: Vec<u32>,
    living: BTreeMap<u32, u32>,
    too_long: bool,
}

impl Min {
    /// The next record.
    pub fn record(&mut self, record: &Record) {
        if let Event::Start(start) = &record.event {
            self.spaces.push(start.space);
            *self.living.entry(start.space).or_default() += 1;
            return;
        }
        let space = self.spaces.get(record.task as usize).copied().unwrap_or(0);
        let first = u64::from(space) << SPACE_SHIFT;
        let place = |pages: &PageRange| first + pages.start.0..first + pages.end.0;
        match &record.event {
            Event::Touch { page, .. } => self.touch(first + page.0),
            Event::Prefetched(pages) => place(pages).for_each(|page| self.touch(page)),
            Event::Unmap(pages) | Event::Discard(pages) => self.forget(place(pages)),
            Event::Move { from, to } => {
                let (from, to) = (place(from), first + to.0);
                self.forget(to..to + (from.end - from.start));
                let moved: Vec<_> = self
                    .pages
                    .range(from.clone())
                    .map(|(&p, &n)| (p, n))
                    .collect();
                for (page, number) in moved {
                    self.pages.remove(&page);
                    self.pages.insert(page - from.start + to, number);
                }
            }
            Event::End => {
                let living = self.living.entry(space).or_default();
                *living = living.saturating_sub(1);
                if *living == 0 {
                    self.forget(first..first + (1 << SPACE_SHIFT));
                }
            }
            Event::Start(_)
            | Event::Map(_)
            | Event::Evicted(_)
            | Event::File { .. }
            | Event::Lost(_) => {}
        }
    }

    fn touch(&mut self, page: u64) {
        let number = *self.pages.entry(page).or_insert_with(|| {
            self.numbers += 1;
            self.numbers - 1
        });
        self.push(number);
    }

    fn forget(&mut self, pages: std::ops::Range<u64>) {
        let gone: Vec<_> = self.pages.range(pages).map(|(&p, &n)| (p, n)).collect();
        for (page, number) in gone {
            self.pages.remove(&page);
            self.push(number | DISCARD);
        }
    }

    fn push(&mut self, a_use: Use) {
        self.too_long |= self.uses.len() == MOST;
        if !self.too_long {
            self.uses.push(a_use);
        }
    }

    /// Its misses with each of these memory sizes, in pages; `None`: the trace is too long.
    pub fn misses(&self, memory: &[u64]) -> Option<Vec<u64>> {
        if self.too_long {
            return None;
        }
        // A page that returns after a discard has another number: each has one first touch.
        let mut next = vec![NEVER; self.uses.len()];
        let mut later = vec![NEVER; self.numbers as usize];
        for (at, &a_use) in self.uses.iter().enumerate().rev() {
            if a_use & DISCARD == 0 {
                next[at] = std::mem::replace(&mut later[a_use as usize], at as u32);
            }
        }
        Some(
            memory
                .iter()
                .map(|&pages| self.misses_in(pages, &next))
                .collect(),
        )
    }

    fn misses_in(&self, memory: u64, next: &[u32]) -> u64 {
        #[derive(Clone, Copy, PartialEq, Eq)]
        enum State {
            New,
            /// In memory, with its next use.
            In(u32),
            Out,
        }
        let mut states = vec![State::New; self.numbers as usize];
        // An entry whose next use is not that of its page is outdated.
        let mut farthest = BinaryHeap::new();
        let (mut held, mut misses) = (0, 0);
        for (&a_use, &next) in self.uses.iter().zip(next) {
            let number = (a_use & !DISCARD) as usize;
            let was = states[number];
            held -= u64::from(matches!(was, State::In(_)));
            if a_use & DISCARD != 0 {
                states[number] = State::New;
                continue;
            }
            misses += u64::from(was == State::Out);
            while held + 1 > memory
                && let Some((at, other)) = farthest.pop()
            {
                if other as usize != number && states[other as usize] == State::In(at) {
                    states[other as usize] = State::Out;
                    held -= 1;
                }
            }
            states[number] = State::In(next);
            farthest.push((next, number as u32));
            held += 1;
        }
        misses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(pages: impl IntoIterator<Item = u64>) -> Min {
        let mut min = Min::default();
        for page in pages {
            min.touch(page);
        }
        min
    }

    #[test]
    fn a_loop_misses_what_does_not_fit() {
        // Of 10 pages in a loop, 8 places keep all but 2 at each turn; a page that is read takes the place of one.
        let min = touches((0..100).map(|n| n % 10));
        let misses = min.misses(&[10, 8, 1]).expect("short");
        assert_eq!(misses[0], 0);
        assert_eq!(misses[2], 90);
        assert!((20..=22).contains(&misses[1]), "{misses:?}");
    }

    #[test]
    fn what_was_discarded_is_new() {
        let mut min = touches([1, 2, 3, 1]);
        min.forget(1..2);
        for page in [1, 2, 3] {
            min.touch(page);
        }
        assert_eq!(min.misses(&[3]).expect("short"), [0]);
        assert_eq!(min.misses(&[1]).expect("short"), [1 + 2]);
    }
}
