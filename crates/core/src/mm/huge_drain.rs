//! Units on an area that swapoff empties: each is read by one read and mapped by one move, as long as the memory that
//! faults need is left alone. A unit that cannot stay in memory is written to another area whole.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::clusters::{List, UNIT};
use crate::frames::{NOTHING, State};
use crate::huge::unit_of;
use crate::reclaim::policy::Came;
use crate::space::page_table::Entry;
use crate::units::{Frame, Slot, Vpn};
use crate::world::{IoResult, Stop, World};

/// How swapoff continues with a huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnitAction {
    /// It has a cluster, and the reads are to be started; or it has left a cluster.
    Issued,
    /// A cluster will be free soon, or the kernel will release one.
    Retry,
    /// Read its pages one by one.
    Split,
}

impl Mm {
    /// Take a cluster for the pages that swapoff found, if they are one whole unit.
    pub(super) fn drain_unit(
        &mut self,
        w: &mut impl World,
        met: &[(Vpn, Entry)],
        batch: &mut Vec<(Slot, Frame)>,
    ) -> UnitAction {
        let swapped = |&(_, entry): &(Vpn, Entry)| matches!(entry, Entry::Swapped { .. });
        let whole = met.len() == UNIT as usize && met.iter().all(swapped);
        let (Some(&(unit, _)), Some(&(last, _)), true) = (met.first(), met.last(), whole) else {
            return UnitAction::Split;
        };
        // If a leaf has some of its pages on another area, slots of the next leaf may follow.
        let one_leaf = unit_of(last) == unit;
        #[cfg(feature = "planted")]
        let one_leaf = one_leaf || self.has(crate::planted::Bug::UnitOfTwoLeaves);
        if unit_of(unit) != unit || !one_leaf || !self.holds_unit(unit) {
            return UnitAction::Split;
        }
        let spare = self
            .headroom(w)
            .saturating_sub(self.reclaim.marks().low.into());
        let id = match spare >= UNIT.into() {
            true => self.obtain_cluster(w, false),
            false => None,
        };
        let Some(id) = id else {
            let has_room = self.slots.room(w) > UNIT.into();
            let passes = self.drain.waits_for_cluster(has_room);
            if passes {
                // It is written to another area: reclaim makes room for the transfer.
                self.huge.want(w.now());
                self.reclaim.wake();
            }
            return match passes || self.drain.is_reading() && !self.huge.is_scarce() {
                true => UnitAction::Retry,
                false => UnitAction::Split,
            };
        };
        self.drain.on_cluster();
        self.frames.begin_unit(id, unit, false, false);
        for (&(page, entry), frame) in met.iter().zip(self.frames.clusters().frames(id)) {
            if let Entry::Swapped { slot, .. } = entry {
                self.begin_read(page, slot, frame, NOTHING);
                batch.push((slot, frame));
            }
        }
        self.stats.huge_swap_in += 1;
        self.stats.huge_drained += 1;
        UnitAction::Issued
    }

    /// A read of swapoff into frames of a unit has succeeded.
    pub(super) fn on_unit_drained(&mut self, w: &mut impl World, slot: Slot, frames: &[Frame]) {
        for (i, &frame) in (0..).zip(frames) {
            self.on_read(w, slot.plus(i), frame, IoResult::Ok);
        }
        self.settle_units(w, frames, false);
        if let Some(&frame) = frames.first()
            && let Some((_, unit)) = self.frames.unit_of(frame)
            && self.place_unit(w, frame) == UnitAction::Retry
        {
            // Before its cluster is reused, or it would be read again and again.
            self.drain.go_back(unit);
        }
    }

    /// The clean unit of `frame` leaves the area that is being emptied: it is mapped, or goes to another area.
    pub(super) fn place_unit(&mut self, w: &mut impl World, frame: Frame) -> UnitAction {
        let Some((id, unit)) = self.frames.unit_of(frame) else {
            return UnitAction::Split;
        };
        let first = self.frames.clusters().first(id);
        if self.held || self.frames.clusters().get(id).list != List::Clean {
            return UnitAction::Split;
        }
        let goes = |frame| {
            let desc = self.frames.get(frame);
            let here = |slot: Slot| self.drains(slot.area);
            !desc.wanted && desc.slot.is_some_and(here)
        };
        if !self.frames.clusters().frames(id).all(goes) {
            return UnitAction::Split;
        }
        let elsewhere = self.slots.room(w) > 0;
        let keep = match elsewhere {
            true => self.reclaim.marks().high,
            false => self.reclaim.marks().low,
        };
        // The unit itself counts as available memory.
        if self.headroom(w) < u64::from(keep + UNIT) {
            let sent = elsewhere && self.send_unit_elsewhere(w, first);
            return if sent {
                UnitAction::Issued
            } else {
                UnitAction::Split
            };
        }
        let done = w.move_in(first, unit, UNIT);
        let all = done.pages == UNIT;
        // The kernel releases a frame a moment after it has reported the end of its read.
        if done.pages == 0 && matches!(done.stop, Some(Stop::Again | Stop::Busy)) {
            return UnitAction::Retry;
        }
        if !all {
            self.stats.huge_splits += 1;
            self.frames.split_unit(id);
        }
        for n in 0..done.pages {
            let slot = self.frames.get(first.plus(n)).slot;
            self.slots.put(w, slot);
            let page = unit.plus(n.into());
            self.set_mapped(w, page, None, Came::Beside);
            if !all {
                self.frames.set_empty(first.plus(n));
            }
        }
        if all {
            let whole = self.came_whole(w, id, unit);
            self.frames.end_all(id, State::Empty);
            if whole {
                self.make_huge(unit, Came::Beside);
            }
        }
        if all {
            UnitAction::Issued
        } else {
            UnitAction::Split
        }
    }

    fn send_unit_elsewhere(&mut self, w: &mut impl World, first: Frame) -> bool {
        if !self.has_room_elsewhere(w, UNIT) {
            return false;
        }
        for n in 0..UNIT {
            let frame = first.plus(n);
            if let Some(slot) = self.frames.get(frame).slot {
                self.frames.clear_slot(frame, w.digest(slot));
                self.slots.put(w, Some(slot));
            }
        }
        if let Some((id, _)) = self.frames.unit_of(first) {
            self.frames.file(id);
        }
        true
    }
}
