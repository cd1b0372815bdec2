//! The eviction order of the modelled kernel: order of arrival, over all tasks, with a second chance for pages that
//! were touched since the last look.
//!
//! foreswap cannot see touches of mapped pages and sweeps by address instead. A kernel sees the accessed bit. On the
//! machines of the seeds, this list tells the core by advice which pages are cold; the core evicts cold pages first.
//! The list also affects the place of pages on the area, because slots are assigned in eviction order. A CPU puts the
//! pages of its task on the list a few at a time, and pages of parallel tasks come to alternate on the area
//! accordingly. It also does so when its task reads ahead (`lru_add_drain`), and tasks with small windows mix more
//! finely.

use std::collections::VecDeque;

/// Cold pages reported to the core in advance.
const AHEAD: u32 = 64;
/// Pages that a CPU puts on the list together (the kernel's pagevec).
const TOGETHER: usize = 14;

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum State {
    #[default]
    Absent,
    Listed,
    /// The core knows that it is cold.
    Told,
}

#[derive(Clone, Copy, Default, Debug)]
struct Page {
    state: State,
    touched: bool,
    /// Identifies outdated entries of the list.
    stamp: u32,
}

/// The mapped pages, by number.
#[derive(Debug)]
pub struct Lru {
    pages: Vec<Page>,
    list: VecDeque<(u32, u32)>,
    /// Ends of the tasks' memory, and the pages of each that are not on the list yet.
    owners: Vec<(usize, Vec<(u32, u32)>)>,
    told: u32,
}

impl Lru {
    /// This many pages, none mapped; `ends` are the ends of each task's memory, in rising order.
    pub fn new(pages: usize, ends: impl Iterator<Item = usize>) -> Self {
        Lru {
            pages: vec![Page::default(); pages],
            list: VecDeque::new(),
            owners: ends.map(|end| (end, Vec::new())).collect(),
            told: 0,
        }
    }

    /// A page is mapped, because it was touched.
    pub fn came(&mut self, page: usize) {
        let entry = &mut self.pages[page];
        entry.state = State::Listed;
        entry.touched = true;
        let item = (page as u32, entry.stamp);
        let owner = self.owners.partition_point(|(end, _)| *end <= page);
        let Some((_, waiting)) = self.owners.get_mut(owner) else {
            return self.list.push_back(item);
        };
        waiting.push(item);
        if waiting.len() == TOGETHER {
            self.list.extend(waiting.drain(..));
        }
    }

    /// The task of a page reads ahead: its pages so far are put on the list.
    pub fn drain(&mut self, page: usize) {
        let owner = self.owners.partition_point(|(end, _)| *end <= page);
        if let Some((_, waiting)) = self.owners.get_mut(owner) {
            self.list.extend(waiting.drain(..));
        }
    }

    /// A page is touched.
    pub fn touch(&mut self, page: usize) {
        self.pages[page].touched = true;
    }

    /// A page is unmapped.
    pub fn went(&mut self, page: usize) {
        let entry = &mut self.pages[page];
        self.told -= u32::from(entry.state == State::Told);
        entry.state = State::Absent;
        entry.stamp = entry.stamp.wrapping_add(1);
    }

    /// The next page to report to the core as cold; `None` if it knows enough.
    pub fn next_cold(&mut self) -> Option<usize> {
        if self.told >= AHEAD {
            return None;
        }
        // Each page has one second chance: two rounds find a page that has used it.
        for _ in 0..2 * self.list.len() + 1 {
            let (page, stamp) = self.list.pop_front()?;
            let entry = &mut self.pages[page as usize];
            if entry.stamp != stamp || entry.state != State::Listed {
                continue;
            }
            if std::mem::take(&mut entry.touched) {
                self.list.push_back((page, stamp));
                continue;
            }
            entry.state = State::Told;
            self.told += 1;
            return Some(page as usize);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_page_goes_first_unless_it_was_touched_again() {
        let mut lru = Lru::new(10, std::iter::empty());
        for page in [3, 1, 4, 5] {
            lru.came(page);
        }
        assert_eq!(lru.next_cold(), Some(3), "all have had their second chance");
        lru.touch(1);
        lru.went(4);
        lru.came(4);
        assert_eq!(lru.next_cold(), Some(5));
        assert_eq!(lru.next_cold(), Some(1));
        assert_eq!(lru.next_cold(), Some(4));
        assert_eq!(lru.next_cold(), None);
    }

    #[test]
    fn pages_of_a_task_come_to_lie_together() {
        let mut lru = Lru::new(200, [100, 200].into_iter());
        for n in 0..2 * TOGETHER {
            lru.came(n);
            lru.came(100 + n);
        }
        let order: Vec<usize> = (0..4 * TOGETHER).map_while(|_| lru.next_cold()).collect();
        let expected = [0..14, 100..114, 14..28, 114..128];
        assert_eq!(order, expected.into_iter().flatten().collect::<Vec<_>>());
    }

    #[test]
    fn a_task_that_reads_ahead_puts_what_it_has_on_the_list() {
        let mut lru = Lru::new(200, [100, 200].into_iter());
        for (own, other) in [(3, 2), (2, 2)] {
            (0..own).for_each(|n| lru.came(own * 10 + n));
            (0..other).for_each(|n| lru.came(100 + own * 10 + n));
            lru.drain(7);
        }
        lru.drain(107);
        let order: Vec<usize> = (0..20).map_while(|_| lru.next_cold()).collect();
        assert_eq!(order, [30, 31, 32, 20, 21, 130, 131, 120, 121]);
    }

    #[test]
    fn the_core_is_told_of_a_few_in_advance() {
        let mut lru = Lru::new(1000, std::iter::empty());
        (0..1000).for_each(|page| lru.came(page));
        assert_eq!(
            (0..1000).map_while(|_| lru.next_cold()).count(),
            AHEAD as usize
        );
        lru.went(0);
        assert!(lru.next_cold().is_some());
    }
}
