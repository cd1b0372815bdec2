//! Advice of the program about its memory (madvise).
//!
//! A hint about the use of a range stays with its region ([`Hint`]). Advice to act is
//! queued, and `Mm::run` carries it out in small steps, so that no fault waits for it. MADV_WILLNEED reads pages into
//! memory that is not needed otherwise; MADV_COLD makes pages the next victims; MADV_PAGEOUT evicts pages at once and
//! returns their memory. It is advice: pages that do not fit or cannot be moved are left out, as in the kernel.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use super::page_table::{Entry, PageTable, Resident};
use crate::readahead::Hint;
use crate::units::{PageRange, Vpn, len, overlap, without};

/// The largest number of queued ranges for each kind of advice. Beyond it the oldest are dropped.
const MOST: usize = 1024;

/// Kinds of advice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// A hint that holds from now on.
    Use(Hint),
    /// The range will be needed soon.
    WillNeed,
    /// The range will not be needed soon.
    Cold,
    /// The range will not be needed for long.
    PageOut,
}

/// Ranges in the order in which they were advised.
#[derive(Default)]
struct Queue {
    ranges: VecDeque<PageRange>,
}

impl Queue {
    fn push(&mut self, range: PageRange) {
        if let Some(last) = self.ranges.back_mut()
            && last.end == range.start
        {
            last.end = range.end;
            return;
        }
        if self.ranges.len() == MOST {
            self.ranges.pop_front();
        }
        self.ranges.push_back(range);
    }

    fn clear(&mut self) {
        self.ranges.clear();
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    fn cancel(&mut self, range: &PageRange) {
        let touched = |old: &PageRange| len(&overlap(old, range)) > 0;
        if !self.ranges.iter().any(touched) {
            return;
        }
        for old in core::mem::take(&mut self.ranges) {
            self.ranges.extend(without(&old, range));
        }
    }

    /// Take up to `max` pages whose entry is `wanted` from the front, all of one range.
    fn take(
        &mut self,
        table: &PageTable,
        max: usize,
        wanted: impl Fn(Entry) -> bool,
        found: &mut Vec<Vpn>,
    ) {
        while found.is_empty()
            && max > 0
            && let Some(range) = self.ranges.front_mut()
        {
            range.start = table.search(range, max, &wanted, found);
            if range.start >= range.end {
                self.ranges.pop_front();
            }
        }
    }
}

/// Advice that is queued.
#[derive(Default)]
pub(crate) struct Advised {
    needed: Queue,
    /// Pages that may still be read on advice: the free room when it was given.
    budget: u64,
    cold: Queue,
    out: Queue,
}

impl Advised {
    /// Advice about `range` no longer concerns its content.
    pub fn cancel(&mut self, range: &PageRange) {
        self.needed.cancel(range);
        self.cold.cancel(range);
        self.out.cancel(range);
    }

    /// The program gives advice to act about `range`.
    pub fn push(&mut self, range: PageRange, advice: Advice) {
        match advice {
            Advice::Use(_) => {}
            Advice::WillNeed => self.needed.push(range),
            Advice::Cold => self.cold.push(range),
            Advice::PageOut => self.out.push(range),
        }
    }

    /// Pages that will be needed may be read into `room` free pages.
    pub fn set_room(&mut self, room: u64) {
        self.budget = room;
    }

    /// Pages will be needed.
    pub fn has_needed(&self) -> bool {
        !self.needed.is_empty()
    }

    /// Take up to `max` pages that will be needed and are on an area only.
    pub fn take_needed(&mut self, table: &PageTable, max: u64, found: &mut Vec<Vpn>) {
        let max = self.budget.min(max) as usize;
        let swapped = |entry| matches!(entry, Entry::Swapped { .. });
        self.needed.take(table, max, swapped, found);
    }

    /// Pages that will be needed are being read. If there are none, no room is left, or all of them are in memory.
    pub fn on_read(&mut self, pages: u64) {
        self.budget -= pages;
        if pages == 0 {
            self.needed.clear();
        }
    }

    /// Pages are to leave memory.
    pub fn has_out(&self) -> bool {
        !self.out.is_empty()
    }

    /// Take up to `max` mapped pages that are to leave memory.
    pub fn take_out(&mut self, table: &PageTable, max: usize, found: &mut Vec<Vpn>) {
        let resident = |entry| matches!(entry, Entry::Resident(_));
        self.out.take(table, max, resident, found);
    }

    /// Pages that were taken could not leave now, and are the next ones.
    pub fn put_back_out(&mut self, range: PageRange) {
        self.out.ranges.push_front(range);
    }

    /// No area has room: the pages stay.
    pub fn clear_out(&mut self) {
        self.out.clear();
    }

    /// Take up to `max` pages that the program called cold and that were not needed since.
    pub fn take_cold(&mut self, table: &PageTable, max: usize, found: &mut Vec<Vpn>) {
        let cold = |entry| matches!(entry, Entry::Resident(Resident { rank: 0, .. }));
        self.cold.take(table, max, cold, found);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    #[test]
    fn a_queue_joins_cuts_and_forgets() {
        let mut queue = Queue::default();
        queue.push(range(0, 10));
        queue.push(range(10, 20));
        queue.push(range(30, 40));
        assert_eq!(queue.ranges, [range(0, 20), range(30, 40)]);
        queue.cancel(&range(5, 35));
        assert_eq!(queue.ranges, [range(0, 5), range(35, 40)]);
        for n in 100..100 + MOST as u64 {
            queue.push(range(2 * n, 2 * n + 1));
        }
        assert_eq!(queue.ranges.len(), MOST);
        assert_eq!(queue.ranges[0], range(200, 201));
    }
}
