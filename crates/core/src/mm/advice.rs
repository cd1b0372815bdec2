//! Advice to act (madvise) is carried out in small steps.
//!
//! MADV_WILLNEED reads pages into memory that is not needed otherwise; MADV_COLD makes pages the next victims;
//! MADV_PAGEOUT evicts pages at once and returns their memory. Pages that do not fit or cannot be moved are left out, as
//! in the kernel.

use super::Mm;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::huge::unit_of;
use crate::io::SLOTS_PER_IO;
use crate::space::advice::Advice;
use crate::space::page_table::{Entry, Resident};
use crate::units::{Frame, PageRange, Vpn};
use crate::world::{Stop, World};
use alloc::vec::Vec;

/// Above this number of I/Os in flight, advice starts no read: a fault's read must find an entry.
const READS: usize = 32;

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
                    self.each_cached(&part, |mm, frame| mm.frames.set_leaves(frame, false));
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
            let spare = u64::from(
                self.frames
                    .empty()
                    .saturating_sub(self.reclaim.marks().empty),
            );
            let clean = self
                .frames
                .clean()
                .saturating_sub(self.reclaim.marks().reserve);
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
            (State::Dirty | State::Writing, _) => self.frames.set_leaves(frame, true),
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
    pub(super) fn bring_needed(&mut self, w: &mut impl World) -> bool {
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
    pub(super) fn page_out(&mut self, w: &mut impl World) -> u32 {
        if self.space.advised.out.is_empty() {
            return 0;
        }
        if self.slots.are_full() {
            self.space.advised.out.clear();
            return 0;
        }
        let mut batch = self
            .reclaim
            .marks()
            .writes
            .saturating_sub(self.frames.unwritten());
        batch = batch.min(self.reclaim.batch(self.is_awaited()));
        // They are moved to frames without memory.
        let short = batch.saturating_sub(self.frames.empty());
        if self.frames.free() < short {
            self.drop_clean(short - self.frames.free());
        }
        self.release_free(w, short);
        batch = batch.min(self.frames.empty());
        let mut victims = core::mem::take(&mut self.buffers.victims);
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
        self.buffers.victims = victims;
        self.submit_writes(w, true);
        moved
    }

    /// Victims that the program called cold, and that were not needed since.
    pub(super) fn take_cold(&mut self, max: u32, victims: &mut Vec<Vpn>) {
        let cold = |entry| matches!(entry, Entry::Resident(Resident { refs: 0, .. }));
        self.space
            .advised
            .cold
            .take(&self.space.table, max as usize, cold, victims);
    }
}
