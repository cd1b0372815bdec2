//! When reclaim runs in the background, how far, and what it gives back.
//!
//! [`Mm::run`] is called between faults. It wakes reclaim below the low watermark and lets it run until the high one is
//! reached, counting the pages that become free without further work. Surplus memory goes back to the system, and
//! memory above the fair share to other processes.

use super::Mm;
use crate::frames::clusters::{List, UNIT};
use crate::reclaim::{BESIDE_READS, RUN};
use crate::world::World;

/// If this many pages are kept for units, reclaim evicts a unit as soon as one is taken: the disk always has writes.
/// With fewer, it rests in between, and a scan finds more of its readahead.
const FLOWING: u32 = 4 * UNIT;

impl Mm {
    /// Work that no fault waits for: writes, reclaim, returning memory. Returns whether more work can be done at once.
    pub fn run(&mut self, w: &mut impl World) -> bool {
        self.tidy(w);
        self.keep_singles(w);
        self.schedule_io(w);
        self.submit_writes(w, self.hurry(w));
        if !self.fault.stalled.is_empty() && self.serve_stalled(w) {
            // The thread must find its page before reclaim does.
            return false;
        }
        if self.space.held {
            return false;
        }
        self.read_on(w);
        let headroom = self.headroom(w);
        let kept = self.units_kept(w);
        let wanted = u64::from(self.reclaim.marks.high + kept);
        let flows = kept >= FLOWING;
        let short = match flows {
            true => headroom + self.coming(flows) < wanted,
            false => headroom < u64::from(self.reclaim.marks.low + kept / 2),
        };
        if !self.reclaim.awake && short && self.space.table.resident() > 0 {
            self.reclaim.awake = true;
            self.stats.kswapd_wakeups += 1;
        }
        let mut moved = self.page_out(w);
        let asked = moved > 0;
        let brought = self.bring_needed(w);
        if self.reclaim.awake || w.excess() > 0 {
            let coming = self.coming(flows);
            let soon = coming > 0 && self.headroom(w) + coming >= wanted && w.excess() <= coming;
            if !soon && !self.is_much_unwritten() {
                // A read that completes meanwhile must not wait for a whole batch.
                let batch = if self.is_awaited() {
                    BESIDE_READS
                } else {
                    self.reclaim.marks.batch
                };
                moved += self.evict(w, batch);
                self.submit_writes(w, self.hurry(w));
            }
            self.give_back(w);
            if self.headroom(w) >= wanted {
                self.reclaim.awake = false;
            }
        }
        self.trim(w);
        if !self.fault.stalled.is_empty() {
            self.serve_stalled(w);
        }
        if moved == 0 {
            self.submit_writes(w, !self.gathers_writes(w));
        } else if w.excess() == 0 {
            self.fault.passing_until = 0;
        }
        let drained = self.drain_step(w) || self.write_back_step(w);
        drained || brought || moved > 0 && (asked || self.reclaim.awake || w.excess() > 0)
    }

    /// Evicted pages whose memory will be free without further work. Most pages whose digest is being computed are
    /// clean. While units flow, pages to be written count half, and at most twice the number that is kept: the disk
    /// always has some of them while others are ready.
    fn coming(&self, flows: bool) -> u64 {
        let looked_at = self.digesting();
        if !flows || self.slots.are_full() {
            return looked_at;
        }
        let written = u64::from(self.frames.unwritten().saturating_sub(self.on_probation()));
        looked_at + written.saturating_sub(looked_at) / 2
    }

    /// Whether pages must be written at once, however few: no pending work would add more, or memory is short.
    fn hurry(&self, w: &impl World) -> bool {
        let at_once =
            !self.reclaim.awake || self.headroom(w) < u64::from(self.reclaim.marks.low / 2);
        at_once && !self.gathers_writes(w)
    }

    /// Pages that a fault could have without waiting.
    pub(super) fn headroom(&self, w: &impl World) -> u64 {
        let free = self.frames.free() + self.frames.clusters().count(List::Free) * UNIT;
        w.available() + u64::from(free) + u64::from(self.frames.clean())
    }

    /// Enough pages are in writeback: more would not free memory sooner. During random faults, a page that is evicted
    /// too early may be the very next one to be needed.
    pub(super) fn is_much_unwritten(&self) -> bool {
        let most = match self.faults_at_random() {
            true => (2 * self.reclaim.marks.high).min(self.reclaim.marks.writes),
            false => self.reclaim.marks.writes,
        };
        self.frames.unwritten().saturating_sub(self.on_probation()) >= most
    }

    /// Return memory that other processes need more, or that a lower limit takes.
    fn give_back(&mut self, w: &mut impl World) {
        let excess = w.excess().min(u64::from(u32::MAX)) as u32;
        if excess == 0 {
            return;
        }
        if self.frames.free() < excess {
            self.drop_clean(excess - self.frames.free());
        }
        let left = excess.saturating_sub(self.frames.free());
        self.release_free(w, excess);
        for _ in 0..left.div_ceil(UNIT) {
            self.release_cluster(w);
        }
        self.slots.give_back(w);
    }

    /// Return free frames beyond the reserve to the system.
    fn trim(&mut self, w: &mut impl World) {
        let surplus = self
            .frames
            .free()
            .saturating_sub(2 * self.reclaim.marks.high);
        self.release_free(w, surplus);
        let kept = 2 * self.reclaim.marks.high.max(UNIT) + self.units_kept(w);
        if self.frames.clusters().count(List::Free) * UNIT > kept {
            self.release_cluster(w);
        }
    }

    pub(super) fn release_free(&mut self, w: &mut impl World, mut pages: u32) {
        while pages > 0
            && let Some((frame, n)) = self.frames.take_free(pages.min(RUN))
        {
            w.release(frame, n);
            w.uncharge(u64::from(n));
            for i in 0..n {
                self.frames.set_empty(frame.plus(i));
            }
            pages -= n;
        }
    }
}
