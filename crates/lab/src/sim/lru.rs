//! The order in which the modelled kernel gives pages up: that in which they came, all tasks together,
//! with a second chance for those that were touched since they were last looked at.
//!
//! foreswap cannot see touches of mapped pages and goes by address instead. A kernel sees the accessed
//! bit, so on the machines of the seeds this list tells the core, as advice, which pages are cold; the
//! core evicts cold ones first. That matters for more than which page goes: pages get their slots in
//! the order in which they leave, so the pages of tasks that run beside each other come to lie beside
//! each other on the area: a few pages of the one, then a few of the other, as a CPU puts the pages that
//! it brings on the list a few at a time. It does so as well when its task reads ahead
//! (`lru_add_drain`), so tasks that read small windows beside each other mix more finely.

use std::collections::VecDeque;

/// Cold pages that the core is told of in advance.
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
    /// Tells entries of the list that are out of date.
    stamp: u32,
}

/// The pages that are mapped, by number.
#[derive(Debug)]
pub struct Lru {
    pages: Vec<Page>,
    list: VecDeque<(u32, u32)>,
    /// Ends of the tasks' memory, and the pages of each that are not on the list yet.
    owners: Vec<(usize, Vec<(u32, u32)>)>,
    told: u32,
}

impl Lru {
    /// So many pages, none of them mapped; `ends` are the ends of what belongs to one task each, in
    /// rising order.
    pub fn new(pages: usize, ends: impl Iterator<Item = usize>) -> Self {
        Lru {
            pages: vec![Page::default(); pages],
            list: VecDeque::new(),
            owners: ends.map(|end| (end, Vec::new())).collect(),
            told: 0,
        }
    }

    /// A page is mapped; a touch is what brought it.
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

    /// The task that a page belongs to reads ahead: what it has brought so far comes onto the list.
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

    /// A page is mapped no longer.
    pub fn went(&mut self, page: usize) {
        let entry = &mut self.pages[page];
        self.told -= u32::from(entry.state == State::Told);
        entry.state = State::Absent;
        entry.stamp = entry.stamp.wrapping_add(1);
    }

    /// The next page that the core should be told of; `None` when it knows of enough.
    pub fn next_cold(&mut self) -> Option<usize> {
        if self.told >= AHEAD {
            return None;
        }
        // Each page has its second chance once, so two rounds find one that has had it.
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
    fn what_came_first_goes_first_unless_it_was_touched_again() {
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
