//! How a unit is evicted: collapsed, moved to a cluster, digested, written to slots of its own, or split.

use super::Mm;
use crate::frames::clusters::{ClusterId, List, UNIT};
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::huge::{stays_whole, unit_of, writes_all};
use crate::reclaim::REST;
use crate::reclaim::policy::{Came, ReclaimPolicy as _};
use crate::space::page_table::{Entry, Resident};
use crate::units::{Frame, Slot, Vpn};
use crate::world::{Digest, Stop, World};

impl Mm {
    /// Make the leaf of `page` a huge page, if all of it is mapped and its region is touched in order.
    pub(super) fn collapse(&mut self, w: &mut impl World, page: Vpn) -> bool {
        let unit = unit_of(page);
        if self.table.is_huge(unit) {
            return true;
        }
        let fit =
            self.table.is_full(unit) && self.holds_unit(unit) && self.uses(Heuristic::Collapse);
        if !fit || !self.is_touched_in_order(unit) || self.huge.is_scarce() {
            return false;
        }
        if !self.huge.may_collapse() {
            return false;
        }
        let done = w.collapse(unit);
        if done {
            let rank = match self.table.get(unit) {
                Entry::Resident(first) => first.rank,
                _ => 0,
            };
            self.make_huge(unit, Came::Joined(rank));
        } else if self.uses(Heuristic::LeanUnits) {
            self.huge.on_not_collapsed();
        }
        done
    }

    /// Move a resident unit to a cluster. `leaves`: its memory is to be free as soon as it is on an area. Returns how
    /// many pages were evicted.
    pub(super) fn move_unit_out(
        &mut self,
        w: &mut impl World,
        unit: Vpn,
        leaves: bool,
    ) -> (u32, Option<Stop>) {
        let Some(id) = self.empty_cluster(w) else {
            return (0, Some(Stop::NoMemory));
        };
        let first = self.frames.clusters().first(id);
        let done = w.move_out(unit, first, UNIT);
        if done.pages < UNIT {
            if done.pages > 0 {
                self.frames.set_thp(id, false);
            }
            if done.stop != Some(Stop::Again) || done.pages > 0 {
                self.stats.huge_splits += u64::from(self.table.split_mapping(unit));
            }
            for n in 0..done.pages {
                self.on_moved_out(w, unit.plus(n.into()), first.plus(n), leaves);
            }
            self.frames.settle(id);
            match done.stop {
                Some(Stop::Busy) => {
                    self.on_immovable(w, unit.plus(done.pages.into()), UNIT - done.pages);
                }
                Some(Stop::Fixed) if self.uses(Heuristic::LeafRest) => self.table.rest(unit, REST),
                _ => {}
            }
            let refused = matches!(done.stop, Some(Stop::Busy | Stop::Fixed));
            if refused && self.uses(Heuristic::LeanUnits) {
                // Otherwise the next pass would make it a huge page again, and be refused again.
                self.huge.on_not_collapsed();
            }
            return (done.pages, done.stop);
        }
        let whole = w.is_huge(first);
        self.frames.set_thp(id, whole);
        self.frames.begin_unit(id, unit, false, leaves);
        self.reclaim.on_evicted(UNIT);
        self.streams.on_evicted(UNIT);
        let copied = self.table.unshare(&(unit..unit.plus(UNIT.into())));
        if copied > 0 {
            w.on_copied(copied);
        }
        let beside = w.begin_digest(first);
        for n in 0..UNIT {
            let (page, frame) = (unit.plus(n.into()), first.plus(n));
            let slot = match self.table.get(page) {
                Entry::Resident(resident) => resident.slot,
                _ => None,
            };
            let desc = FrameDesc {
                state: State::Writing,
                page: Some(page),
                slot,
                ..NOTHING
            };
            self.frames.install(frame, desc);
            self.table.set(page, Entry::Cached(frame));
        }
        if beside {
            self.huge.begin_digest();
        } else {
            self.weigh_unit(w, id, |w, frame| w.digest_of(frame));
        }
        (UNIT, None)
    }

    /// The digests of an evicted unit are known ([`crate::world::Store::begin_digest`]).
    pub fn on_digested(&mut self, w: &mut impl World, first: Frame) {
        if let Some(id) = self.frames.clusters().of(first) {
            self.huge.end_digest();
            self.weigh_unit(w, id, |w, frame| w.digest_read(frame));
        }
    }

    /// Decide by their digests which pages of an evicted unit are clean and which must be written. Meanwhile a discard
    /// may have split it, and threads may wait for it.
    fn weigh_unit<W: World>(
        &mut self,
        w: &mut W,
        id: ClusterId,
        digest_of: impl Fn(&mut W, Frame) -> Digest,
    ) {
        for frame in self.frames.clusters().frames(id) {
            let FrameDesc { page, slot, .. } = *self.frames.get(frame);
            if page.is_none() {
                self.slots.put(w, slot);
                self.frames.set_free(frame);
                continue;
            }
            let digest = digest_of(w, frame).number();
            let clean = slot.is_some_and(|slot| self.holds(w, slot, digest));
            self.frames.set_digest(frame, digest, clean);
        }
        let Some(unit) = self.frames.clusters().get(id).unit else {
            return self.weigh_pages(w, id);
        };
        let wanted = |frame: &Frame| self.frames.get(*frame).wanted;
        let wanted = self.frames.clusters().frames(id).find(wanted);
        if wanted.is_none() && self.drop_filled(w, id) {
            return;
        }
        self.choose_slots(w, id);
        if let Some(frame) = wanted {
            // If it was split, `deliver_orphans` below delivers the pages that threads wait for.
            if self.frames.clusters().get(id).unit.is_some() {
                self.deliver_unit(w, id, unit, frame);
            }
            self.deliver_orphans(w);
        }
    }

    /// As [`Mm::weigh_unit`], if the unit was split meanwhile.
    fn weigh_pages(&mut self, w: &mut impl World, id: ClusterId) {
        for frame in self.frames.clusters().frames(id) {
            let desc = *self.frames.get(frame);
            if desc.page.is_none() {
                continue;
            }
            match desc.state {
                State::Clean => self.stats.clean_drops += 1,
                State::Dirty => {
                    self.slots.put(w, desc.slot);
                    self.frames.forget_slot(frame);
                }
                _ => {}
            }
            if desc.wanted {
                self.deliver(w, frame);
            } else if desc.leaves && desc.state == State::Clean {
                self.leave_frame(frame);
            }
        }
    }

    /// Choose the slots of a unit that was just evicted: its old ones, if they are a slot cluster that no other process
    /// shares, or new ones.
    fn choose_slots(&mut self, w: &mut impl World, id: ClusterId) {
        let dirty = u32::from(self.frames.clusters().get(id).dirty);
        self.stats.clean_drops += u64::from(UNIT - dirty);
        if dirty > 0 && !self.has_home(w, id) {
            let anew = stays_whole(dirty) && self.uses(Heuristic::StaysWhole);
            for frame in self.frames.clusters().frames(id) {
                let desc = *self.frames.get(frame);
                if anew || desc.state == State::Dirty {
                    self.slots.put(w, desc.slot);
                    self.frames.clear_slot(frame, desc.digest);
                }
            }
            if !anew {
                self.frames.split_unit(id);
                return;
            }
        }
        self.frames.file(id);
        if dirty == 0 && self.frames.clusters().get(id).leaves {
            self.drop_unit(id);
        }
    }

    /// Whether a unit has a slot cluster that it can be written to again.
    fn has_home(&self, w: &impl World, id: ClusterId) -> bool {
        let first = self.frames.get(self.frames.clusters().first(id)).slot;
        let Some(first) = first.filter(|slot| !slot.is_file() && !self.drains(slot.area)) else {
            return false;
        };
        let mut frames = (0..).zip(self.frames.clusters().frames(id));
        first.index.is_multiple_of(UNIT)
            && frames.all(|(n, frame)| {
                self.frames.get(frame).slot == Some(first.plus(n)) && w.count(first.plus(n)) == 1
            })
    }

    /// Write units, as far as slots, queue and depth allow. False: the queue is full.
    pub(super) fn write_units(&mut self, w: &mut impl World) -> bool {
        while let Some(id) = self.frames.clusters().oldest(List::Dirty) {
            if !self.io.may_write() {
                return false;
            }
            let without_slot = |frame: &Frame| self.frames.get(*frame).slot.is_none();
            let without_slot = self
                .frames
                .clusters()
                .frames(id)
                .filter(without_slot)
                .count() as u32;
            let slot = match without_slot {
                UNIT => self.slots.take_cluster(w),
                _ => None,
            };
            let started = match slot {
                Some(slot) => self.write_unit(w, id, slot, 0, UNIT),
                None if without_slot == 0 => self.write_unit_at_home(w, id),
                // No slot cluster is free, or some were refused while a thread waited for the unit.
                None => {
                    self.stats.huge_splits += 1;
                    self.frames.split_unit(id);
                    continue;
                }
            };
            self.frames.file(id);
            if !started {
                return false;
            }
        }
        true
    }

    fn write_unit_at_home(&mut self, w: &mut impl World, id: ClusterId) -> bool {
        let first = self.frames.clusters().first(id);
        let Some(home) = self.frames.get(first).slot else {
            return true;
        };
        let is_dirty = |mm: &Mm, n: u32| mm.frames.get(first.plus(n)).state == State::Dirty;
        let begins = |&n: &u32| is_dirty(self, n) && (n == 0 || !is_dirty(self, n - 1));
        if self.uses(Heuristic::WritesAll) && writes_all((0..UNIT).filter(begins).count()) {
            for frame in self.frames.clusters().frames(id) {
                self.frames.set_state(frame, State::Dirty);
            }
        }
        let mut at = 0;
        while at < UNIT {
            if !is_dirty(self, at) {
                at += 1;
                continue;
            }
            let end = (at..UNIT).find(|&n| !is_dirty(self, n)).unwrap_or(UNIT);
            if !self.write_unit(w, id, home.plus(at), at, end - at) {
                return false;
            }
            at = end;
        }
        true
    }

    /// Start the write of `n` frames of a unit, from number `at` on. False: the queue is full, and not all were
    /// started.
    fn write_unit(
        &mut self,
        w: &mut impl World,
        id: ClusterId,
        slot: Slot,
        at: u32,
        n: u32,
    ) -> bool {
        let first = self.frames.clusters().first(id).plus(at);
        let new = self.frames.get(first).slot.is_none();
        let piece = self.io.request_size(self.contention(), UNIT as usize, true) as u32;
        let mut done = 0;
        while done < n {
            let (part, begin) = (piece.min(n - done), done);
            let frames = move || (begin..begin + part).map(move |i| first.plus(i));
            let io = self.io.begin_write(slot.plus(done), frames(), w.now());
            if !self.io.start_background(w, self.contention(), io) {
                if new {
                    for i in done..n {
                        self.slots.put(w, Some(slot.plus(i)));
                    }
                }
                self.io.cancel(io);
                return false;
            }
            self.on_writing(w, (begin..).map(|i| slot.plus(i)).zip(frames()));
            done += part;
        }
        self.stats.huge_swap_out += u64::from(n == UNIT);
        true
    }

    /// Resident units among the victims that reclaim has chosen page by page are evicted as units: they leave
    /// `victims`.
    pub(super) fn take_units(&mut self, victims: &mut alloc::vec::Vec<Vpn>) {
        let (table, units) = (&self.table, &mut self.buffers.units);
        units.clear();
        victims.retain(|&page| {
            let huge = table.is_huge(page);
            if huge && units.last() != Some(&unit_of(page)) {
                units.push(unit_of(page));
            }
            !huge
        });
        units.dedup();
    }

    /// For the page table, the content of the frame is on its area only from now on.
    pub(super) fn leave_for_area(&mut self, frame: Frame) {
        let desc = *self.frames.get(frame);
        if let (Some(page), Some(slot)) = (desc.page, desc.slot) {
            let evicted = self.reclaim.eviction_number();
            self.table.set(page, Entry::Swapped { slot, evicted });
            let was_read = desc.state != State::Reading;
            self.stats.file_drops += u64::from(slot.is_file() && was_read);
        }
    }

    /// Whether a page that a stream has passed can be evicted: of a huge page, only with its last one.
    pub(super) fn may_pass(&self, page: Vpn, next: Vpn) -> bool {
        if self.table.is_huge(page) {
            let needed = self.reclaim.policy().is_needed(self.table.huge_rank(page));
            return unit_of(page) != unit_of(next) && !needed;
        }
        let entry = self.table.get(page);
        matches!(entry, Entry::Resident(Resident { rank, .. }) if !self.reclaim.policy().is_needed(rank))
    }
}
