//! The life of a page fault.
//!
//! A first touch maps zeros. A page in a frame is moved in (a minor fault). A page on an area is read together with the
//! pages that readahead foresees (a major fault), and moved in when the read has completed. The faulting thread sleeps
//! in the kernel; mapping its page wakes it. A fault that cannot be served now waits ([`crate::fault::Waiters`]).

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::frames::clusters::List;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::reclaim::policy::Came;
use crate::space::page_table::Entry;
use crate::swap::slots;
use crate::units::{Frame, LEAF_PAGES, Nanos, PAGE_SIZE, Slot, Vpn};
use crate::world::{Stop, World};

impl Mm {
    /// How a page comes that was in a frame.
    pub(super) fn returned(&self, desc: &FrameDesc) -> Came {
        Came::Returned {
            distance: desc.distance,
            soon: (desc.again || desc.refault) && self.uses(Heuristic::RefaultReferences),
        }
    }

    /// A thread of the program touched the byte at `address` and found its page absent.
    pub fn on_fault(&mut self, w: &mut impl World, address: u64) -> Outcome {
        let pending = Pending {
            offset: (address % PAGE_SIZE as u64) as u16,
            ..Pending::of(Vpn::of(address), w.now())
        };
        self.serve(w, pending)
    }

    /// The address space has settled: try the faults again that waited for it.
    pub fn retry(&mut self, w: &mut impl World) {
        let waiting = self.waiters.take_retries();
        for pending in waiting {
            self.serve_or_wake(w, pending);
        }
    }

    /// As [`Mm::on_fault`], but wakes the threads if the page is not managed, as nothing else would.
    pub(super) fn serve_or_wake(&mut self, w: &mut impl World, pending: Pending) {
        if self.serve(w, pending) == Outcome::Unmanaged {
            w.wake(pending.page);
        }
    }

    /// The page for which a thread waits since `since` has just been mapped.
    pub(super) fn on_served(&mut self, w: &mut impl World, page: Vpn, since: Nanos) {
        let now = w.now();
        self.waiters.on_served(page, now);
        self.waiters.on_stall(since, now);
        w.served(now.saturating_sub(since));
    }

    /// As [`Mm::on_served`], for a page that was never there. The wait is due to the limit only while memory is short.
    pub(super) fn on_touched(&mut self, w: &mut impl World, pending: &Pending) {
        let now = w.now();
        self.waiters.on_served(pending.page, now);
        if pending.stalled.is_some() || self.reclaim.is_awake() {
            self.waiters.on_stall(pending.since, now);
        }
        w.served(now.saturating_sub(pending.since));
    }

    /// The time in which at least one thread waited for a page that more memory would have kept.
    pub fn stall_time(&self) -> Nanos {
        self.waiters.stall_time()
    }

    /// Faults wait for the address space to settle.
    pub fn must_retry(&self) -> bool {
        !self.waiters.retries().is_empty()
    }

    pub(super) fn serve(&mut self, w: &mut impl World, pending: Pending) -> Outcome {
        let page = pending.page;
        if self.vmas.find(page).is_none() {
            return Outcome::Unmanaged;
        }
        let entry = self.table.get(page);
        if self.has_to_wait(entry) {
            self.waiters.wait_for_turn(pending, w.now());
            return Outcome::Waits;
        }
        match entry {
            Entry::Unmapped => self.first_touch(w, pending),
            Entry::SameFilled(fill) => self.on_filled(w, pending, fill),
            Entry::Resident(resident) => self.on_present(w, pending, resident),
            Entry::Cached(frame) => self.on_cached(w, pending, frame),
            Entry::Swapped { slot, evicted } => self.on_swapped(w, pending, slot, evicted),
            Entry::Poisoned => {
                match w.poison(page).stop {
                    Some(Stop::Again) => return self.again(pending),
                    Some(_) => w.wake(page),
                    None => {}
                }
                Outcome::Served
            }
            Entry::Guarded => self.on_guarded(w, pending),
        }
    }

    pub(super) fn again(&mut self, pending: Pending) -> Outcome {
        self.waiters.retry_later(pending);
        Outcome::Waits
    }

    fn first_touch(&mut self, w: &mut impl World, pending: Pending) -> Outcome {
        let page = pending.page;
        let Some(vma) = self.vmas.find(page) else {
            return Outcome::Unmanaged;
        };
        let batch = match self.uses(Heuristic::FirstTouchGrowth) {
            true => vma.streams.batch(page).min(self.config.first_touch.max(1)),
            false => 1,
        };
        let end = vma.range.end;
        if let Some(outcome) = self.touch_unit(w, pending, batch, None) {
            return outcome;
        }
        // The next unit may be mapped whole.
        let edge = page.0.next_multiple_of(LEAF_PAGES as u64).max(page.0 + 1);
        let end = end.min(page.plus(u64::from(batch))).min(Vpn(edge));
        let end = self
            .table
            .next_used(page, end)
            .map_or(end, |(used, _)| used);
        let batch = (end.0 - page.0) as u32;
        let (mapped, stop) = self.map_zeros(w, page, batch);
        for n in 0..mapped {
            let came = if n == 0 { Came::Touched } else { Came::Beside };
            self.set_mapped(w, page.plus(u64::from(n)), None, came);
        }
        if mapped > 0 {
            if let Some(vma) = self.vmas.find_mut(page) {
                vma.streams.mapped(page, mapped);
            }
            self.stats.faults_zero += 1;
            self.stats.first_touched += u64::from(mapped);
            self.on_touched(w, &pending);
            return Outcome::Served;
        }
        match stop {
            Some(Stop::Exists) => {
                // Touched before it was adopted.
                w.charge_existing(1);
                self.set_found(page);
                w.wake(page);
                Outcome::Served
            }
            Some(Stop::Again) => self.again(pending),
            Some(Stop::NoMemory) | None => self.stall(w, pending),
            Some(_) => {
                w.wake(page);
                Outcome::Served
            }
        }
    }

    /// The part of a batch of `wanted` pages that may be mapped. The reserve for coming faults stays: beyond one page,
    /// a batch takes only pages above the reserve.
    pub(super) fn spared(&self, w: &impl World, wanted: u32) -> u32 {
        let spare = self
            .headroom(w)
            .saturating_sub(u64::from(self.reclaim.marks().reserve));
        wanted.min(spare.min(u64::from(u32::MAX)) as u32).max(1)
    }

    /// Map up to `batch` pages of zeros: fresh memory while the limit allows, recycled frames otherwise. Returns the
    /// number of pages, and why none was mapped.
    fn map_zeros(&mut self, w: &mut impl World, page: Vpn, batch: u32) -> (u32, Option<Stop>) {
        let batch = self.spared(w, batch);
        if w.available() > u64::from(self.reclaim.marks().high) && w.try_charge(u64::from(batch)) {
            let done = w.zero_in(page, batch);
            w.uncharge(u64::from(batch - done.pages));
            return (done.pages, done.stop);
        }
        if self.frames.free() < batch {
            // Pages that were written together are adjacent: dropped together they make a run.
            self.drop_clean(batch - self.frames.free());
        }
        let Some((frame, n)) = self.obtain(w, batch) else {
            return (0, Some(Stop::NoMemory));
        };
        w.clear(frame, n);
        let done = w.move_in(frame, page, n);
        let mut mapped = done.pages;
        for i in 0..n {
            if i < done.pages {
                self.frames.set_empty(frame.plus(i));
            } else {
                self.frames.set_free(frame.plus(i));
            }
        }
        let mut stop = done.stop;
        if mapped == 0 && matches!(stop, Some(Stop::Fixed | Stop::Busy)) {
            // The mapping has another protection than our frames: it gets a page of its own, paid for with one frame.
            if !w.try_charge(1) {
                let Some((frame, _)) = self.frames.take_free(1) else {
                    return (0, Some(Stop::NoMemory));
                };
                w.release(frame, 1);
                self.frames.set_empty(frame);
            }
            let done = w.zero_in(page, 1);
            w.uncharge(u64::from(1 - done.pages));
            (mapped, stop) = (done.pages, done.stop);
        }
        (mapped, stop)
    }

    /// Take up to `max` contiguous frames that have memory. Pages are evicted for the first one.
    pub(super) fn obtain(&mut self, w: &mut impl World, max: u32) -> Option<(Frame, u32)> {
        if let Some(run) = self.frames.take_free(max) {
            return Some(run);
        }
        if self.frames.empty() > self.reclaim.marks().empty
            && let Some(run) = self.back_empty(w, max)
        {
            return Some(run);
        }
        let cluster = self.faults_at_random()
            && self.uses(Heuristic::KeptSingles)
            && self.frames.clusters().count(List::Free) > 0;
        // A thread's page goes before the pages that streams will use.
        if !self.drop_for_one() && !cluster && self.drop_ahead(w.now(), 1) == 0 {
            if self.held {
                // Nothing is evicted now; the fork will be over soon.
                return None;
            }
            if !self.is_much_unwritten() {
                self.stats.direct_reclaims += 1;
                let moved = self.evict(w, self.reclaim.batch(false));
                if moved == 0 && self.frames.in_flight() == 0 && !self.slots.are_full() {
                    self.evict_recent_faults(w);
                }
            }
            if self.frames.free() == 0 {
                self.drop_clean(1);
            }
            self.submit_writes(w, true);
        }
        if self.frames.free() == 0 {
            self.break_cluster(w, max);
        }
        self.frames.take_free(max)
    }

    /// Drop clean pages until a frame is free, or a unit was dropped. The frames of a cluster give no single frame.
    fn drop_for_one(&mut self) -> bool {
        while self.frames.free() == 0 && self.drop_singles(1) > 0 {}
        self.frames.free() > 0 || self.drop_clean(1) > 0
    }

    /// Back empty frames with fresh memory, as far as the limit allows.
    pub(super) fn back_empty(&mut self, w: &mut impl World, max: u32) -> Option<(Frame, u32)> {
        let max = u64::from(max).min(w.available()) as u32;
        let (frame, n) = self.frames.take_empty(max)?;
        let backed = if w.try_charge(u64::from(n)) {
            let done = w.fill(frame, n);
            w.uncharge(u64::from(n - done.pages));
            done.pages
        } else {
            0
        };
        for i in backed..n {
            self.frames.put_back(frame.plus(i));
        }
        (backed > 0).then(|| {
            for i in 0..backed {
                self.frames.set_backed(frame.plus(i));
            }
            (frame, backed)
        })
    }

    fn on_cached(&mut self, w: &mut impl World, pending: Pending, frame: Frame) -> Outcome {
        let desc = *self.frames.get(frame);
        let predictor = self.on_hit(w, pending.address(), frame);
        let outcome = if desc.state == State::Reading {
            if !desc.wanted {
                self.frames.want(frame, pending.since);
                self.stats.faults_major += 1;
            }
            // A thread waits now: its read must not be given up when the queue is full.
            self.hasten(w, frame);
            Outcome::Waits
        } else {
            self.frames.want(frame, pending.since);
            if !desc.wanted {
                self.stats.faults_minor += 1;
            }
            self.deliver(w, frame)
        };
        if let Some(predictor) = predictor {
            self.map_ahead(w, predictor);
            self.map_next_unit(w, predictor, pending.page);
        }
        outcome
    }

    /// Map a page that is complete in its frame and that a thread waits for.
    pub(super) fn deliver(&mut self, w: &mut impl World, frame: Frame) -> Outcome {
        let desc = *self.frames.get(frame);
        let Some(page) = desc.page else {
            return Outcome::Served;
        };
        if let Some((id, unit)) = self.frames.unit_of(frame) {
            return self.deliver_unit(w, id, unit, frame);
        }
        let pending = Pending::of(page, desc.since);
        if self.held {
            w.returns(page);
        }
        let mut stop = if desc.state == State::Writing {
            Some(Stop::Busy)
        } else {
            w.move_in(frame, page, 1).stop
        };
        let moved = stop.is_none();
        let mut exchanged = false;
        if matches!(stop, Some(Stop::Busy | Stop::Fixed)) {
            let charged = w.try_charge(1);
            if !charged && desc.state == State::Writing {
                return Outcome::Waits;
            }
            stop = w.copy_in(frame, page).stop;
            if charged && stop.is_some() {
                w.uncharge(1);
            }
            // If the limit allows no more, the frame's memory pays for the copy.
            exchanged = !charged && stop.is_none();
        }
        match stop {
            None => {}
            Some(Stop::Again) => return self.again(pending),
            Some(Stop::NoMemory) => return self.stall(w, pending),
            Some(Stop::Exists) => {
                // The program mapped a page there: it is newer than our copy.
                w.charge_existing(1);
                w.wake(page);
            }
            Some(_) => {
                // The mapping is gone; its event will be read soon.
                self.frames.unwant(frame);
                w.wake(page);
                return Outcome::Served;
            }
        }
        let foreign = stop == Some(Stop::Exists);
        let keeps = matches!(desc.state, State::Clean | State::Dirty) && !foreign;
        let mut slot = desc.slot.filter(|_| keeps);
        if slot.is_some_and(|slot| !self.keeps_slots(w, slot)) {
            slot = None;
        }
        if desc.state == State::Writing {
            // The write continues; frame and slot are freed when it is done.
            self.frames.abandon(frame);
        } else {
            if slot != desc.slot {
                self.slots.put(w, desc.slot);
                #[cfg(feature = "planted")]
                if self.has(crate::planted::Bug::SlotFreedTwice) {
                    self.slots.put(w, desc.slot);
                }
            }
            if exchanged {
                w.release(frame, 1);
            }
            if moved || exchanged {
                self.frames.set_empty(frame);
            } else {
                self.frames.set_free(frame);
            }
        }
        if foreign {
            self.set_found(page);
        } else {
            self.set_mapped(w, page, slot, self.returned(&desc));
        }
        self.count_loss(w, &desc);
        self.on_served(w, page, desc.since);
        Outcome::Served
    }

    /// Whether a page that was read from `slot` keeps it, to save a later write.
    pub(super) fn keeps_slots(&self, w: &impl World, slot: Slot) -> bool {
        let keeps = || !self.drains(slot.area) && slots::keeps(w, slot.area);
        let stays = || keeps() && !self.comes_nearer(w, slot);
        slot.is_file() || stays() && self.uses(Heuristic::KeptSlots)
    }

    fn on_swapped(
        &mut self,
        w: &mut impl World,
        pending: Pending,
        slot: Slot,
        evicted: u32,
    ) -> Outcome {
        let page = pending.page;
        if self.swap_in_unit(w, pending) {
            return Outcome::Waits;
        }
        let Some((frame, _)) = self.obtain(w, 1).or_else(|| self.last_frame(w)) else {
            return self.stall(w, pending);
        };
        let refault = self.was_here(evicted);
        let distance = self.reclaim.evicted_since(evicted);
        self.reclaim
            .on_return(Some(distance), self.table.resident());
        let wanted = FrameDesc {
            wanted: true,
            refault,
            since: pending.since,
            ..NOTHING
        };
        self.begin_read(page, slot, frame, wanted);
        self.stats.faults_major += 1;
        self.stats.refaults += u64::from(refault);
        self.read_with(w, pending.address(), slot, frame);
        Outcome::Waits
    }

    /// Whether a little more memory would have kept the page that was evicted as number `evicted`.
    pub(super) fn was_here(&self, evicted: u32) -> bool {
        self.uses(Heuristic::RefaultReferences)
            && u64::from(self.reclaim.evicted_since(evicted)) < self.table.resident()
    }

    pub(super) fn begin_read(&mut self, page: Vpn, slot: Slot, frame: Frame, desc: FrameDesc) {
        let distance = match self.table.get(page) {
            Entry::Swapped { evicted, .. } => Some(self.reclaim.evicted_since(evicted)),
            _ => None,
        };
        if !slot.is_file() && desc.least_tier == 0 {
            self.note_read(slot.area, distance);
        }
        let desc = FrameDesc {
            state: State::Reading,
            page: Some(page),
            slot: Some(slot),
            distance,
            arrived: self.reclaim.eviction_number(),
            ..desc
        };
        self.frames.install(frame, desc);
        self.table.set(page, Entry::Cached(frame));
    }

    /// The content of a page is lost: every touch raises SIGBUS until the range is discarded.
    pub(super) fn lose(&mut self, w: &mut impl World, page: Vpn) {
        match self.table.get(page) {
            Entry::Resident(_) => return w.wake(page),
            Entry::Swapped { slot, .. } => self.slots.put(w, Some(slot)),
            Entry::Cached(frame) if self.frames.get(frame).state == State::Writing => {
                return w.wake(page);
            }
            Entry::Cached(frame) => {
                let slot = self.frames.get(frame).slot;
                self.slots.put(w, slot);
                self.frames.set_free(frame);
            }
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {}
        }
        self.table.set(page, Entry::Poisoned);
        self.serve_or_wake(w, Pending::of(page, w.now()));
    }
}
