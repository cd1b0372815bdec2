//! Faults that wait for memory are tried again, and end ([`crate::fault::Waiters::ending`]) if they wait too long.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::fault::out_of_memory::{Ending, Shortage};
use crate::frames::clusters::List;
use crate::units::{Frame, Nanos};
use crate::world::{Notice, World};

impl Mm {
    /// Faults wait for memory, or for an entry of the queue.
    pub fn is_stalled(&self) -> bool {
        self.waiters.are_stalled() || self.io.synchronous_waits()
    }

    /// Time until waiting faults may get memory without any event: pages that were just mapped for threads may then be
    /// evicted, or the limit yields once more. `None`: no such time is near.
    pub fn moment_left(&self, now: Nanos) -> Option<Nanos> {
        self.waiters
            .moment_left(now, || self.enough_recent_faults())
    }

    /// When the oldest fault that waits for memory arrived.
    pub fn oldest_stalled(&self) -> Option<Nanos> {
        self.waiters.first().map(|pending| pending.since)
    }

    pub(super) fn stall(&mut self, w: &impl World, pending: Pending) -> Outcome {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::ForgottenStall) && self.waiters.are_stalled() {
            return Outcome::Waits;
        }
        self.waiters.stall(pending, w.now());
        Outcome::Waits
    }

    /// Serve the faults that wait for memory, in order, as far as possible. A fault that waits longer than allowed gets
    /// SIGBUS when the areas are full. When pages cannot be evicted for other reasons, the limit yields. Returns
    /// whether it did.
    pub(super) fn serve_stalled(&mut self, w: &mut impl World) -> bool {
        for _ in 0..self.waiters.stalled() {
            let Some(pending) = self.waiters.take_first() else {
                return false;
            };
            let before = self.waiters.stalled();
            self.serve_or_wake(w, pending);
            if self.waiters.stalled() > before {
                // Still no memory.
                self.waiters.stay_first(pending);
                break;
            }
        }
        let now = w.now();
        if !self.waiters.are_stalled() {
            return false;
        }
        self.look_for_slots(w);
        let shortage = Shortage {
            held: self.held,
            areas_full: self.slots.are_full(),
            drains: self.is_draining(),
            in_flight: self.oldest_in_flight(),
            enough_recent: self.enough_recent_faults(),
        };
        match self.waiters.ending(&shortage, now) {
            Ending::Waits => {}
            // A slot has become free: the next write takes it.
            Ending::Starved | Ending::Lost if self.finds_slot(w) => {}
            Ending::Starved => self.drain.starve(),
            Ending::Lost => {
                if let Some(Pending { page, .. }) = self.waiters.take_longest() {
                    w.notice(Notice::OutOfMemory { page });
                    self.lose(w, page);
                }
            }
            Ending::LimitYields if self.force_charge(w) => {
                if !shortage.held {
                    w.notice(Notice::LimitPassed);
                    self.waiters.yield_limit(now);
                }
                // At once: otherwise reclaim would return the frame's memory to the limit.
                if let Some(pending) = self.waiters.take_longest() {
                    self.serve_or_wake(w, pending);
                }
                return true;
            }
            Ending::LimitYields => {}
        }
        false
    }

    /// When the oldest I/O began that is in flight. What is digested beside has long begun, and soon ends.
    fn oldest_in_flight(&self) -> Option<Nanos> {
        let any = self.frames.in_flight() > 0;
        any.then(|| self.io.oldest().unwrap_or_default())
    }

    /// Other processes may have freed slots since the areas were full. A write would have found them; this looks for
    /// them when there is nothing to write.
    fn look_for_slots(&mut self, w: &mut impl World) {
        let units = self.frames.clusters().count(List::Dirty);
        if !self.slots.are_full() || units > 0 || !self.frames.dirty().is_empty() {
            return;
        }
        self.finds_slot(w);
    }

    /// Whether an area has a slot after all: the areas are full no longer.
    fn finds_slot(&mut self, w: &mut impl World) -> bool {
        let found = self.slots.take(w, 1);
        if let Some((slot, _)) = found {
            self.slots.put(w, Some(slot));
        }
        found.is_some()
    }

    /// A frame with the reserved memory, when nothing can be evicted for want of slots.
    pub(super) fn last_frame(&mut self, w: &mut impl World) -> Option<(Frame, u32)> {
        if !self.slots.are_full() {
            return None;
        }
        let (frame, n) = self.frames.take_empty(1)?;
        let charged = w.try_charge_last();
        if charged && w.fill(frame, 1).pages == 1 {
            self.frames.set_backed(frame);
            return Some((frame, n));
        }
        if charged {
            w.uncharge(1);
        }
        self.frames.put_back(frame);
        None
    }

    /// Charge one page beyond the limit, as a free frame.
    fn force_charge(&mut self, w: &mut impl World) -> bool {
        let Some((frame, _)) = self.frames.take_empty(1) else {
            return false;
        };
        let filled = w.fill(frame, 1).pages == 1;
        if filled {
            w.charge_existing(1);
            self.frames.set_free(frame);
        } else {
            self.frames.put_back(frame);
        }
        filled
    }
}
