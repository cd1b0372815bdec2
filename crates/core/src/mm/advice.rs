//! Advice to act (madvise) is carried out in small steps.
//!
//! MADV_WILLNEED reads pages into memory that is not needed otherwise; MADV_COLD makes pages the next victims;
//! MADV_PAGEOUT evicts pages at once and returns their memory. Pages that do not fit or cannot be moved are left out, as
//! in the kernel.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::huge::unit_of;
use crate::io::SLOTS_PER_IO;
use crate::space::advice::Advice;
use crate::space::page_table::Entry;
use crate::units::{Frame, PageRange, Vpn};
use crate::world::{Stop, World};

/// Above this number of I/Os in flight, advice starts no read: a fault's read must find an entry.
const READS: usize = 32;

impl Mm {
    /// The program gives advice about `range`. Parts that are not managed are skipped.
    pub fn advise(&mut self, w: &mut impl World, range: &PageRange, advice: Advice) {
        if let Advice::Use(hint) = advice {
            return self.vmas.set_hint(range, hint);
        }
        self.advised.cancel(range);
        for part in self.vmas.overlapping(range) {
            match advice {
                Advice::Use(_) => {}
                Advice::WillNeed => {
                    self.each_cached(&part, |mm, frame| mm.frames.set_leaves(frame, false));
                }
                Advice::Cold => self.table.chill(&part),
                Advice::PageOut => self.each_cached(&part, Mm::let_go),
            }
            self.advised.push(part, advice);
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
            let room = u64::from(self.frames.free() + clean) + spare.min(w.available());
            self.advised.set_room(room);
        }
    }

    /// A page in a frame is to leave memory.
    fn let_go(&mut self, frame: Frame) {
        let desc = *self.frames.get(frame);
        match (desc.state, desc.page) {
            (State::Clean, Some(page)) if !desc.wanted => {
                if desc.ahead {
                    self.end_ahead(page, &desc);
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
        self.table.search(range, usize::MAX, cached, &mut pages);
        for page in pages {
            if let Entry::Cached(frame) = self.table.get(page) {
                f(self, frame);
            }
        }
    }

    /// Read some pages that will be needed. Returns whether it did.
    pub(super) fn read_needed(&mut self, w: &mut impl World) -> bool {
        if !self.advised.has_needed() || self.io.in_flight() >= READS {
            return false;
        }
        let mut pages = Vec::new();
        self.advised
            .take_needed(&self.table, SLOTS_PER_IO as u64, &mut pages);
        let spare = self.spare_frames(w, pages.len() as u32);
        pages.truncate(spare as usize);
        let mut batch = Vec::new();
        for &page in &pages {
            let Entry::Swapped { slot, .. } = self.table.get(page) else {
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
        self.advised.on_read(batch.len() as u64);
        if batch.is_empty() {
            return false;
        }
        self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
        true
    }

    /// Evict some of the pages that the program wants out, with their memory. Returns the number of pages evicted.
    pub(super) fn page_out(&mut self, w: &mut impl World) -> u32 {
        if !self.advised.has_out() {
            return 0;
        }
        if self.slots.are_full() {
            self.advised.clear_out();
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
        self.advised
            .take_out(&self.table, batch as usize, &mut victims);
        let (mut moved, mut left) = (0, victims.as_slice());
        while let (Some(&first), Some(&last)) = (left.first(), left.last()) {
            if self.table.is_huge(first) {
                let (gone, stop) = self.move_unit_out(w, unit_of(first), true);
                moved += gone;
                if stop == Some(Stop::Again) {
                    self.advised.put_back_out(first..last.plus(1));
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
                    self.advised.put_back_out(start..last.plus(1));
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
}
