//! Faults that wait for memory: their order, and how long they wait.
//!
//! They are served in the order in which they reached the core. A fault that has to wait a second time keeps its old
//! place, so that no fault is overtaken for ever. If no memory comes free in time, the page is poisoned when the areas
//! are full; otherwise the limit yields.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::fault::grace::GRACE;
use crate::frames::clusters::List;
use crate::units::{Frame, Nanos};
use crate::world::{Notice, World};

/// How long a fault waits for pages that cannot be evicted (locked, read-only, shared by a fork) before the limit
/// yields. For the same time the limit then yields at once.
pub(crate) const UNMOVABLE: Nanos = 200_000_000;
/// The wait is longer by this factor while I/O is in flight, which may free memory. It is bounded, as an I/O may never
/// complete, and writes may free memory that others take at once.
const LONGER: Nanos = 25;
/// How long a fault waits for the end of a fork before the limit yields. The waiting thread may be the forking thread
/// itself, or hold a lock that it needs.
const HELD: Nanos = 50_000_000;

impl Mm {
    /// Faults wait for memory, or for an entry of the queue.
    pub fn is_stalled(&self) -> bool {
        !self.fault.stalled.is_empty() || self.io.synchronous_waits()
    }

    /// Time until waiting faults may get memory without any event: pages that were just mapped for threads may then be
    /// evicted, or the limit yields once more. `None`: no such time is near.
    pub fn moment_left(&self, now: Nanos) -> Option<Nanos> {
        let first = self.fault.stalled.front()?;
        let yields = now < self.fault.passing_until && self.enough_recent_faults();
        let waited = first.stalled.filter(|_| yields);
        let left = waited.and_then(|since| (since + GRACE).checked_sub(now));
        let left = left.filter(|&left| left > 0);
        self.fault
            .recent_faults
            .untouched_for(now)
            .into_iter()
            .chain(left)
            .min()
    }

    /// How long the oldest fault has waited so far.
    pub fn oldest_stalled(&self) -> Option<Nanos> {
        self.fault.stalled.front().map(|pending| pending.since)
    }

    pub(super) fn stall(&mut self, w: &impl World, mut pending: Pending) -> Outcome {
        pending.stalled.get_or_insert(w.now());
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::ForgottenStall) && !self.fault.stalled.is_empty() {
            return Outcome::Waits;
        }
        // A fault that left its place because the address space was changing comes back to it.
        let later = |other: &Pending| other.since > pending.since;
        let before = self
            .fault
            .stalled
            .iter()
            .rev()
            .take_while(|other| later(other));
        let at = self.fault.stalled.len() - before.count();
        self.fault.stalled.insert(at, pending);
        Outcome::Waits
    }

    /// Serve the faults that wait for memory, in order, as far as possible. A fault that waits longer than allowed gets
    /// SIGBUS when the areas are full. When pages cannot be evicted for other reasons, the limit yields. Returns
    /// whether it did.
    pub(super) fn serve_stalled(&mut self, w: &mut impl World) -> bool {
        for _ in 0..self.fault.stalled.len() {
            let Some(pending) = self.fault.stalled.pop_front() else {
                return false;
            };
            let before = self.fault.stalled.len();
            self.serve_or_wake(w, pending);
            if self.fault.stalled.len() > before {
                // Still no memory. It stays the first of the faults that have waited as long.
                let same = |other: &Pending| other.page == pending.page;
                if let Some(at) = self.fault.stalled.iter().position(same) {
                    self.fault.stalled.remove(at);
                    self.fault.stalled.push_front(pending);
                }
                break;
            }
        }
        let now = w.now();
        let Some(&first) = self.fault.stalled.front() else {
            return false;
        };
        self.look_for_slots(w);
        let patience = if self.space.held {
            self.config.full_timeout.min(HELD)
        } else if self.slots.are_full() && self.is_draining() {
            // Swapoff is given up before a fault is.
            self.config.full_timeout.min(HELD)
        } else if self.slots.are_full() {
            self.config.full_timeout
        } else if now < self.fault.passing_until {
            // A page that was mapped lately may be evicted in a moment.
            if self.enough_recent_faults() {
                GRACE
            } else {
                0
            }
        } else {
            self.config.full_timeout.min(UNMOVABLE)
        };
        let waits = now.saturating_sub(first.stalled.unwrap_or(now));
        let comes = self.frames.in_flight() > 0;
        if waits < patience
            || comes && (self.slots.are_full() || waits < LONGER * patience.max(UNMOVABLE))
        {
            return false;
        }
        if self.slots.are_full() && !self.space.held && self.is_draining() {
            self.drain.starve();
        } else if self.slots.are_full() && !self.space.held {
            self.fault.stalled.pop_front();
            w.notice(Notice::OutOfMemory { page: first.page });
            self.lose(w, first.page);
        } else if self.force_charge(w) {
            if !self.space.held {
                w.notice(Notice::LimitPassed);
                self.fault.passing_until = now + UNMOVABLE;
            }
            // At once: otherwise reclaim would return the frame's memory to the limit.
            if let Some(pending) = self.fault.stalled.pop_front() {
                self.serve_or_wake(w, pending);
            }
            return true;
        }
        false
    }

    /// Other processes may have freed slots since the areas were full. A write would have found them; this looks for
    /// them when there is nothing to write.
    fn look_for_slots(&mut self, w: &mut impl World) {
        let units = self.frames.clusters().count(List::Dirty);
        if !self.slots.are_full() || units > 0 || !self.frames.dirty().is_empty() {
            return;
        }
        if let Some((slot, _)) = self.slots.take(w, 1) {
            self.slots.put(w, Some(slot));
        }
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
