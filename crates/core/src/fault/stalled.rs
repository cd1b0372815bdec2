//! Faults that wait for memory: in which order they get it, and how long they wait.
//!
//! They are served in the order in which they came to the core, one that has to wait a second time in its old
//! place: who is behind others must not be overtaken for ever. When nothing comes free in time, one loses its
//! page where the areas are full, and otherwise the limit yields.

use crate::fault::grace::GRACE;
use crate::frames::State;
use crate::huge::clusters::List;
use crate::mm::{Mm, Outcome, Pending};
use crate::units::{Frame, Nanos};
use crate::world::{Notice, World};

/// How long a fault waits for pages that cannot be moved out (locked, read-only, shared by fork)
/// before the limit yields; and how long it then yields without more ado.
pub(crate) const UNMOVABLE: Nanos = 200_000_000;
/// So many times as long it waits while I/O is in flight, which may bring memory: one that never ends does
/// not, nor do writes that others need more pages for all the time.
const LONGER: Nanos = 25;
/// How long a fault waits for a fork to be over before the limit yields: the forking thread itself,
/// or one that holds a lock it needs, may be the one that waits.
const HELD: Nanos = 50_000_000;

impl Mm {
    /// Faults wait for memory, or for a place in the queue.
    pub fn is_stalled(&self) -> bool {
        !self.stalled.is_empty() || self.io.synchronous_waits()
    }

    /// How long until faults that wait for memory may get it though nothing happens: the pages that were just mapped
    /// for threads may go then, or the limit yields once more. `None`: that is not a matter of a moment.
    pub fn moment_left(&self, now: Nanos) -> Option<Nanos> {
        let first = self.stalled.front()?;
        let yields = now < self.passing_until && self.enough_recent_faults();
        let waited = first.stalled.filter(|_| yields);
        let left = waited.and_then(|since| (since + GRACE).checked_sub(now));
        let left = left.filter(|&left| left > 0);
        self.recent_faults
            .untouched_for(now)
            .into_iter()
            .chain(left)
            .min()
    }

    /// How long service of a fault has taken so far.
    pub fn oldest_stalled(&self) -> Option<Nanos> {
        self.stalled.front().map(|pending| pending.since)
    }

    pub(crate) fn stall(&mut self, w: &impl World, mut pending: Pending) -> Outcome {
        pending.stalled.get_or_insert(w.now());
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::ForgottenStall) && !self.stalled.is_empty() {
            return Outcome::Waits;
        }
        // One that had to leave its place, as the address space was changing, comes back to it.
        let later = |other: &Pending| other.since > pending.since;
        let before = self.stalled.iter().rev().take_while(|other| later(other));
        let at = self.stalled.len() - before.count();
        self.stalled.insert(at, pending);
        Outcome::Waits
    }

    /// Serve who waits for memory, in order, as far as it goes. One that waits longer than allowed
    /// gets SIGBUS when the areas are full; when pages cannot be moved out for other reasons, the
    /// limit yields. Returns whether it did.
    pub(crate) fn serve_stalled(&mut self, w: &mut impl World) -> bool {
        for _ in 0..self.stalled.len() {
            let Some(pending) = self.stalled.pop_front() else {
                return false;
            };
            let before = self.stalled.len();
            self.serve_or_wake(w, pending);
            if self.stalled.len() > before {
                // Still no memory. It stays the first of those that have waited as long.
                let same = |other: &Pending| other.page == pending.page;
                if let Some(at) = self.stalled.iter().position(same) {
                    self.stalled.remove(at);
                    self.stalled.push_front(pending);
                }
                break;
            }
        }
        let now = w.now();
        let Some(&first) = self.stalled.front() else {
            return false;
        };
        self.look_for_slots(w);
        let patience = if self.held {
            self.config.full_timeout.min(HELD)
        } else if self.areas_full && self.is_draining() {
            // Swapoff is given up before a fault is.
            self.config.full_timeout.min(HELD)
        } else if self.areas_full {
            self.config.full_timeout
        } else if now < self.passing_until {
            // One of those that came in lately may go in a moment.
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
            || comes && (self.areas_full || waits < LONGER * patience.max(UNMOVABLE))
        {
            return false;
        }
        if self.areas_full && !self.held && self.is_draining() {
            self.drain.starve();
        } else if self.areas_full && !self.held {
            self.stalled.pop_front();
            w.notice(Notice::OutOfMemory { page: first.page });
            self.lose(w, first.page);
        } else if self.force_charge(w) {
            if !self.held {
                w.notice(Notice::LimitPassed);
                self.passing_until = now + UNMOVABLE;
            }
            // At once: reclaim would give the frame back to where the limit wants it.
            if let Some(pending) = self.stalled.pop_front() {
                self.serve_or_wake(w, pending);
            }
            return true;
        }
        false
    }

    /// Others may have left the areas since they were full. A write would have found out; where there is nothing to
    /// be written, it is found out here.
    fn look_for_slots(&mut self, w: &mut impl World) {
        let units = self.frames.clusters.count(List::Dirty);
        if !self.areas_full || units > 0 || !self.frames.dirty().is_empty() {
            return;
        }
        if let Some((slot, _)) = self.slots.take(w, 1) {
            self.put(w, Some(slot));
        }
    }

    /// A frame with the memory that is kept back, when nothing can go out for want of slots.
    pub(crate) fn last_frame(&mut self, w: &mut impl World) -> Option<(Frame, u32)> {
        if !self.areas_full {
            return None;
        }
        let (frame, n) = self.frames.take_empty(1)?;
        let charged = w.try_charge_last();
        if charged && w.fill(frame, 1).pages == 1 {
            self.frames.get_mut(frame).state = State::Free;
            return Some((frame, n));
        }
        if charged {
            w.uncharge(1);
        }
        self.frames.put_back(frame);
        None
    }

    /// Take one page of memory beyond the limit, as a free frame.
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
