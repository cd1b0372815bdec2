//! Advice of the program about its memory (madvise).
//!
//! A hint about the use of a range stays with its region and overrides the readahead policy there. Advice to act is
//! queued, and [`Mm::run`] carries it out in small steps, so that no fault waits for it. MADV_WILLNEED reads pages into
//! memory that is not needed otherwise; MADV_COLD makes pages the next victims; MADV_PAGEOUT evicts pages at once and
//! returns their memory. It is advice: pages that do not fit or cannot be moved are left out, as in the kernel.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::frames::{FrameDesc, NOTHING, State};
use crate::huge::unit_of;
use crate::io::SLOTS_PER_IO;
use crate::mm::Mm;
use crate::readahead::{Touch, Window};
use crate::reclaim::BESIDE_READS;
use crate::space::page_table::{Entry, PageTable, Resident};
use crate::units::{Frame, PageRange, Vpn, len, overlap, without};
use crate::world::{Stop, World};

/// The largest number of queued ranges for each kind of advice. Beyond it the oldest are dropped.
const MOST: usize = 1024;
/// Above this number of I/Os in flight, advice starts no read: a fault's read must find an entry.
const READS: usize = 32;

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

/// How the program says that it will use a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Hint {
    /// No hint.
    #[default]
    Normal = 0,
    /// In order of address, once.
    Sequential = 1,
    /// In no order.
    Random = 2,
}

impl Hint {
    /// The window for a miss where the hint decides; `max` is the largest window of the policy, in pages. `None` leaves
    /// the decision to the policy.
    pub fn window(self, touch: &Touch, max: u32) -> Option<Window> {
        let pages = match self {
            Hint::Normal => return None,
            Hint::Sequential => u64::from(max.max(1)),
            Hint::Random => 1,
        };
        let ahead = touch.page..touch.page.plus(pages);
        Some(Window::of(&overlap(&ahead, touch.region)))
    }
}

/// Ranges in the order in which they were advised.
#[derive(Default)]
pub(crate) struct Queue {
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
    pub(crate) fn take(
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
    pub(crate) cold: Queue,
    out: Queue,
}

impl Advised {
    /// Advice about `range` no longer concerns its content.
    pub(crate) fn cancel(&mut self, range: &PageRange) {
        self.needed.cancel(range);
        self.cold.cancel(range);
        self.out.cancel(range);
    }
}

impl Mm {
    /// The program gives advice about `range`. Parts that are not managed are skipped.
    pub fn advise(&mut self, w: &mut impl World, range: &PageRange, advice: Advice) {
        if let Advice::Use(hint) = advice {
            return self.space.vmas.set_hint(range, hint);
        }
        self.space.advised.cancel(range);
        for part in self.space.vmas.overlapping(range) {
            match advice {
                Advice::Use(_) => {}
                Advice::WillNeed => {
                    self.each_cached(&part, |mm, frame| mm.frames.get_mut(frame).leaves = false);
                    self.space.advised.needed.push(part);
                }
                Advice::Cold => {
                    self.space.table.chill(&part);
                    self.space.advised.cold.push(part);
                }
                Advice::PageOut => {
                    self.each_cached(&part, Mm::let_go);
                    self.space.advised.out.push(part);
                }
            }
        }
        if advice == Advice::WillNeed {
            let spare = u64::from(self.frames.empty().saturating_sub(self.reclaim.marks.empty));
            let clean = self
                .frames
                .clean()
                .saturating_sub(self.reclaim.marks.low / 2);
            self.space.advised.budget =
                u64::from(self.frames.free() + clean) + spare.min(w.available());
        }
    }

    /// A page in a frame is to leave memory.
    fn let_go(&mut self, frame: Frame) {
        let desc = *self.frames.get(frame);
        match (desc.state, desc.page) {
            (State::Clean, Some(page)) if !desc.wanted => {
                if desc.ahead {
                    self.end_ahead(page, &desc, false);
                }
                self.leave_frame(frame);
            }
            (State::Dirty | State::Writing, _) => self.frames.get_mut(frame).leaves = true,
            _ => {}
        }
    }

    fn each_cached(&mut self, range: &PageRange, mut f: impl FnMut(&mut Self, Frame)) {
        let mut pages = Vec::new();
        let cached = |entry| matches!(entry, Entry::Cached(_));
        self.space
            .table
            .search(range, usize::MAX, cached, &mut pages);
        for page in pages {
            if let Entry::Cached(frame) = self.space.table.get(page) {
                f(self, frame);
            }
        }
    }

    /// Read some pages that will be needed. Returns whether it did.
    pub(crate) fn bring_needed(&mut self, w: &mut impl World) -> bool {
        if self.space.advised.needed.is_empty() || self.io.in_flight() >= READS {
            return false;
        }
        let mut pages = Vec::new();
        let max = self.space.advised.budget.min(SLOTS_PER_IO as u64) as usize;
        let swapped = |entry| matches!(entry, Entry::Swapped { .. });
        let advised = &mut self.space.advised;
        advised
            .needed
            .take(&self.space.table, max, swapped, &mut pages);
        let spare = self.spare_frames(w, pages.len() as u32);
        pages.truncate(spare as usize);
        let mut batch = Vec::new();
        for &page in &pages {
            let Entry::Swapped { slot, .. } = self.space.table.get(page) else {
                debug_assert!(false, "making frames free changes no swapped page");
                continue;
            };
            let Some((frame, _)) = self.frames.take_free(1) else {
                break;
            };
            let ahead = true;
            self.begin_read(page, slot, frame, FrameDesc { ahead, ..NOTHING });
            self.count_ahead(page, 1);
            batch.push((slot, frame));
        }
        self.space.advised.budget -= batch.len() as u64;
        if batch.is_empty() {
            // No room is left, or all of it is in memory.
            self.space.advised.needed.clear();
            return false;
        }
        self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
        true
    }

    /// Evict some of the pages that the program wants out, with their memory. Returns the number of pages evicted.
    pub(crate) fn page_out(&mut self, w: &mut impl World) -> u32 {
        if self.space.advised.out.is_empty() {
            return 0;
        }
        if self.swap.areas_full {
            self.space.advised.out.clear();
            return 0;
        }
        let mut batch = self
            .reclaim
            .marks
            .writes
            .saturating_sub(self.frames.unwritten());
        batch = batch.min(match self.is_awaited() {
            true => BESIDE_READS,
            false => self.reclaim.marks.batch,
        });
        // They are moved to frames without memory.
        let short = batch.saturating_sub(self.frames.empty());
        if self.frames.free() < short {
            self.drop_clean(short - self.frames.free());
        }
        self.release_free(w, short);
        batch = batch.min(self.frames.empty());
        let mut victims = core::mem::take(&mut self.reclaim.victims);
        victims.clear();
        let resident = |entry| matches!(entry, Entry::Resident(_));
        let advised = &mut self.space.advised;
        advised
            .out
            .take(&self.space.table, batch as usize, resident, &mut victims);
        let (mut moved, mut left) = (0, victims.as_slice());
        while let (Some(&first), Some(&last)) = (left.first(), left.last()) {
            if self.space.table.is_huge(first) {
                let (gone, stop) = self.move_unit_out(w, unit_of(first), true);
                moved += gone;
                if stop == Some(Stop::Again) {
                    self.space
                        .advised
                        .out
                        .ranges
                        .push_front(first..last.plus(1));
                    break;
                }
                let same = |page: &&Vpn| unit_of(**page) == unit_of(first);
                left = &left[left.iter().take_while(same).count()..];
                continue;
            }
            let run = left.chunk_by(|a, b| a.plus(1) == *b).next();
            let run = run.map_or(1, <[Vpn]>::len);
            let (gone, stop) = self.move_out(w, first, run as u32, true);
            moved += gone;
            left = &left[gone as usize..];
            let skip = match stop {
                None => 0,
                Some(Stop::Again) => {
                    let start = first.plus(gone.into());
                    self.space
                        .advised
                        .out
                        .ranges
                        .push_front(start..last.plus(1));
                    break;
                }
                // All pages that a fork shares are being made movable; that takes too long to wait for.
                Some(Stop::Busy) => run - gone as usize,
                Some(_) => 1,
            };
            left = &left[skip.min(left.len())..];
        }
        self.reclaim.victims = victims;
        self.submit_writes(w, true);
        moved
    }

    /// Victims that the program called cold, and that were not needed since.
    pub(crate) fn take_cold(&mut self, max: u32, victims: &mut Vec<Vpn>) {
        let cold = |entry| matches!(entry, Entry::Resident(Resident { refs: 0, .. }));
        self.space
            .advised
            .cold
            .take(&self.space.table, max as usize, cold, victims);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    #[test]
    fn a_hint_decides_the_window_within_the_region() {
        let region = range(10, 100);
        let window = |hint: Hint, page, max| {
            let touch = Touch {
                page: Vpn(page),
                slot: None,
                ahead: false,
                region: &region,
            };
            hint.window(&touch, max)
        };
        let of = |start, end| Some(Window::of(&range(start, end)));
        assert_eq!(window(Hint::Normal, 20, 32), None);
        assert_eq!(window(Hint::Random, 20, 32), of(20, 21));
        assert_eq!(window(Hint::Sequential, 20, 32), of(20, 52));
        assert_eq!(window(Hint::Sequential, 90, 32), of(90, 100));
        assert_eq!(window(Hint::Sequential, 20, 0), of(20, 21));
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
