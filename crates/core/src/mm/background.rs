//! The work between faults: the steps of one call of [`Mm::run`], and the memory that it gives back.
//!
//! [`crate::reclaim::wake`] decides when reclaim wakes and sleeps; here it is asked, and batches are evicted. Surplus
//! memory goes back to the system, and memory above the fair share to other processes.

use super::Mm;
use crate::frames::clusters::{List, UNIT};
use crate::heuristics::Heuristic;
use crate::reclaim::RUN;
use crate::reclaim::wake::Evicted;
use crate::world::World;

impl Mm {
    /// Work that no fault waits for: writes, reclaim, returning memory. Returns whether more work can be done at once.
    pub fn run(&mut self, w: &mut impl World) -> bool {
        self.tidy(w);
        self.slots.try_again(w.now());
        self.keep_singles(w);
        self.schedule_io(w);
        self.submit_writes(w, self.hurry(w));
        if self.waiters.are_stalled() && self.serve_stalled(w) {
            // The thread must find its page before reclaim does.
            return false;
        }
        if self.held {
            return false;
        }
        self.read_on(w);
        let (headroom, kept) = (self.headroom(w), self.units_kept(w));
        if self.table.resident() > 0 {
            let wakes = self.reclaim.wake_if_short(headroom, kept, &self.evicted());
            self.stats.kswapd_wakeups += u64::from(wakes);
        }
        let mut moved = self.page_out(w);
        let asked = moved > 0;
        let read = self.read_needed(w) || self.refill_step(w);
        if self.reclaim.is_awake() || w.excess() > 0 {
            let (headroom, evicted) = (self.headroom(w), self.evicted());
            let soon = self
                .reclaim
                .is_enough_coming(headroom, kept, &evicted, w.excess());
            if !soon && !self.is_much_unwritten() {
                let awaited = self.is_awaited() && self.uses(Heuristic::SmallBatches);
                moved += self.evict(w, self.reclaim.batch(awaited));
                self.submit_writes(w, self.hurry(w));
            }
            self.give_back(w);
            self.reclaim.sleep_if_enough(self.headroom(w), kept);
        }
        self.trim(w);
        if self.waiters.are_stalled() {
            self.serve_stalled(w);
        }
        if moved == 0 {
            self.submit_writes(w, !self.gathers_writes(w));
        } else if w.excess() == 0 {
            self.waiters.keep_limit();
        }
        let drained = self.drain_step(w) || self.write_back_step(w);
        drained || read || moved > 0 && (asked || self.reclaim.is_awake() || w.excess() > 0)
    }

    /// Evicted pages that are no free memory yet.
    fn evicted(&self) -> Evicted {
        Evicted {
            digesting: self.huge.digesting(),
            unwritten: self.frames.unwritten(),
            stuck: self.slots.are_full(),
        }
    }

    /// Whether pages must be written at once, however few: no pending work would add more, or memory is short.
    fn hurry(&self, w: &impl World) -> bool {
        let at_once =
            !self.reclaim.is_awake() || self.headroom(w) < u64::from(self.reclaim.marks().reserve);
        at_once && !self.gathers_writes(w)
    }

    /// Pages that a fault could have without waiting.
    pub(super) fn headroom(&self, w: &impl World) -> u64 {
        w.available() + self.free_frames() + u64::from(self.frames.clean())
    }

    /// Enough pages are in writeback.
    pub(super) fn is_much_unwritten(&self) -> bool {
        self.reclaim.is_much_unwritten(self.frames.unwritten())
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
        let (kept_singles, kept) = self.reclaim.marks().kept(self.units_kept(w));
        self.release_free(w, self.frames.free().saturating_sub(kept_singles));
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
