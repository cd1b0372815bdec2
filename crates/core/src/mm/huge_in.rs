//! How a unit is mapped: by a first touch, by a read for a thread or a stream, or from its frames.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::frames::clusters::{ClusterId, List, UNIT};
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::huge::{Thp, may_wait, unit_of};
use crate::io::SLOTS_PER_UNIT_IO;
use crate::readahead::follow::Predictor;
use crate::readahead::streams::StreamId;
use crate::reclaim::policy::Came;
use crate::space::page_table::{Entry, Fill};
use crate::units::{Frame, Nanos, PageRange, Vpn, overlap};
use crate::world::{Done, Stop, World};

/// The cluster for a fault that a unit would serve.
enum Cluster {
    Taken(ClusterId),
    /// One will be available in a moment.
    Soon,
    /// None: serve the page alone.
    None,
}

/// Why a unit's move stopped; `since` is when a thread began to wait for it. The kernel releases a frame a moment after
/// it has reported the end of its I/O, and the move is tried again.
fn passing(done: Done, since: Nanos, now: Nanos) -> Option<Stop> {
    match done {
        Done {
            pages: 0,
            stop: Some(Stop::Busy),
        } if may_wait(since, now) => Some(Stop::Again),
        Done { stop, .. } => stop,
    }
}

/// The reader of a unit.
enum Reader {
    Thread(Pending),
    Stream(StreamId),
}

impl Mm {
    /// A first touch that maps a whole unit, or a touch of a same-filled unit. `None`: serve it page by page.
    pub(super) fn touch_unit(
        &mut self,
        w: &mut impl World,
        pending: Pending,
        batch: u32,
        fill: Option<Fill>,
    ) -> Option<Outcome> {
        let unit = unit_of(pending.page);
        let in_order = batch >= crate::fault::first_touch::MAX_BATCH && unit == pending.page;
        let wanted = in_order || self.config.thp == Thp::Always;
        let end = unit.plus(UNIT.into());
        let is_of_it = match fill {
            None => self.table.next_used(unit, end).is_none(),
            Some(fill) => self.table.is_filled(unit, fill),
        };
        if !wanted || !is_of_it || !self.holds_unit(unit) {
            return None;
        }
        self.huge.want(w.now());
        let id = match self.cluster_for(w, pending, 1, Mm::obtain_cluster) {
            Cluster::Taken(id) => id,
            Cluster::Soon => return Some(self.stall(w, pending)),
            Cluster::None => return None,
        };
        let first = self.frames.clusters().first(id);
        if let Some(fill) = fill {
            let word = self.table.word_of(fill);
            self.frames.set_not_zeroed(id);
            w.fill_with(first, UNIT, word);
            if self.held {
                crate::units::pages(&(unit..end)).for_each(|page| w.returns(page));
            }
        } else if !self.frames.clusters().get(id).zeroed {
            w.clear(first, UNIT);
        }
        let done = w.move_in(first, unit, UNIT);
        for n in 0..done.pages {
            self.set_mapped(w, unit.plus(n.into()), None, Came::Beside);
        }
        if done.pages == UNIT {
            let whole = self.came_whole(w, id, unit);
            self.frames.end_all(id, State::Empty);
            if whole {
                self.make_huge(unit, Came::Touched);
            }
            if let Some(vma) = self.vmas.find_mut(unit) {
                if in_order {
                    vma.took_unit(true);
                }
                vma.streams.mapped(unit, UNIT);
            }
            match fill {
                None => self.stats.faults_zero += 1,
                Some(_) => self.stats.faults_minor += 1,
            }
            self.stats.first_touched += u64::from(UNIT);
            match fill {
                None => self.on_touched(w, &pending),
                Some(_) => self.on_served(w, pending.page, pending.since),
            }
            return Some(Outcome::Served);
        }
        for n in 0..done.pages {
            self.frames
                .set_empty(self.frames.clusters().first(id).plus(n));
        }
        self.frames.settle(id);
        if matches!(self.table.get(pending.page), Entry::Resident(_)) {
            return Some(Outcome::Served);
        }
        (passing(done, pending.since, w.now()) == Some(Stop::Again)).then(|| {
            self.waiters.retry_later(pending);
            Outcome::Waits
        })
    }

    /// A page on an area is touched, and its unit is to be read whole: start the read, or let the fault wait for a huge
    /// page. False: read the page alone.
    pub(super) fn swap_in_unit(&mut self, w: &mut impl World, pending: Pending) -> bool {
        let page = pending.page;
        if !self.table.is_away(page) || !self.holds_unit(page) {
            return false;
        }
        let whole = self.uses(Heuristic::WholeReads) && self.streams.comes_to(page, w.now());
        if self.config.thp != Thp::Always && !whole {
            return false;
        }
        let id = match self.cluster_for(w, pending, UNIT, Mm::cluster_to_read) {
            Cluster::Taken(id) => id,
            Cluster::Soon => {
                self.stall(w, pending);
                return true;
            }
            Cluster::None => return false,
        };
        let at = Some((pending.address(), w.now()));
        let predictor = self.ask_policy(page, at, |policy, history, _| policy.predictor(history));
        if let Some(Some(Predictor::Stream(stream))) = predictor {
            self.streams.missed(stream);
            self.judge(stream);
            self.streams.pass_unit(stream, unit_of(page));
            if let Some(vma) = self.vmas.find_mut(page) {
                vma.took_unit(false);
            }
        }
        self.stats.faults_major += 1;
        self.read_unit(w, id, unit_of(page), Reader::Thread(pending));
        true
    }

    /// A cluster for a fault, by `obtain`. A cluster in writeback is free sooner than all pages of the unit could be
    /// read one by one; single pages would also leave a page table behind, which splits later units. The fault
    /// therefore waits for a moment, and while `least` pages are in writeback nothing further is evicted for it.
    fn cluster_for<W: World>(
        &mut self,
        w: &mut W,
        pending: Pending,
        least: u32,
        obtain: impl FnOnce(&mut Self, &mut W, bool) -> Option<ClusterId>,
    ) -> Cluster {
        let patient =
            !self.held && may_wait(pending.since, w.now()) && self.uses(Heuristic::UnitPatience);
        let soon = |mm: &Mm| patient && mm.frames.writing() >= least;
        let hard = patient && !soon(self);
        match obtain(self, w, hard) {
            Some(id) => Cluster::Taken(id),
            None if soon(self) => Cluster::Soon,
            None => Cluster::None,
        }
    }

    /// Whether a stream reads the unit of `page` whole.
    pub(super) fn reads_whole(&self, stream: StreamId, page: Vpn) -> bool {
        self.streams.is_dense(stream)
            && self.table.is_away(page)
            && self.holds_unit(page)
            && self.uses(Heuristic::WholeReads)
    }

    /// A stream has reached a unit: read it whole. False: there is no memory for it now.
    pub(super) fn read_unit_ahead(
        &mut self,
        w: &mut impl World,
        stream: StreamId,
        page: Vpn,
    ) -> bool {
        let unit = unit_of(page);
        self.huge.want(w.now());
        let Some(id) = self.cluster_to_read(w, false) else {
            self.reclaim.wake();
            return false;
        };
        self.note_distance(stream, page, UNIT.into());
        w.window(UNIT.into());
        self.count_ahead(unit, UNIT.into());
        self.read_unit(w, id, unit, Reader::Stream(stream));
        self.streams.pass_unit(stream, unit);
        true
    }

    /// Read a unit into a taken cluster; a thread waits for a page of it, or it is read ahead.
    fn read_unit(&mut self, w: &mut impl World, id: ClusterId, unit: Vpn, reader: Reader) {
        let (stream, pending) = match reader {
            Reader::Stream(stream) => (Some(stream), None),
            Reader::Thread(pending) => (None, Some(pending)),
        };
        let ahead = stream.is_some();
        let mut batch = core::mem::take(&mut self.buffers.batch);
        batch.clear();
        self.frames.begin_unit(id, unit, ahead, false);
        let mut first = None;
        for (n, frame) in (0..).zip(self.frames.clusters().frames(id)) {
            let page = unit.plus(n);
            let Entry::Swapped { slot, evicted } = self.table.get(page) else {
                debug_assert!(false, "a unit that is away has a slot for each page");
                continue;
            };
            // Pages that the stream leaves out are read too, and count as no hit.
            let mut desc = FrameDesc {
                ahead: stream.is_some_and(|id| self.streams.touches(id, page)),
                streamed: ahead,
                ..NOTHING
            };
            if let Some(pending) = pending.filter(|pending| pending.page == page) {
                desc.wanted = true;
                desc.refault = self.was_here(evicted);
                desc.since = pending.since;
                self.stats.refaults += u64::from(desc.refault);
                first = Some(frame);
            }
            self.begin_read(page, slot, frame, desc);
            batch.push((slot, frame));
        }
        self.stats.huge_swap_in += 1;
        self.submit_reads(w, &mut batch, first, SLOTS_PER_UNIT_IO);
        self.buffers.batch = batch;
    }

    /// An I/O on frames of clusters has ended: process the units that are complete.
    pub(super) fn settle_units(&mut self, w: &mut impl World, frames: &[Frame], written: bool) {
        let mut last = None;
        for &frame in frames {
            let Some((id, unit)) = self.frames.unit_of(frame) else {
                continue;
            };
            let cluster = *self.frames.clusters().get(id);
            if last == Some(id) || cluster.busy > 0 {
                continue;
            }
            last = Some(id);
            let wanted = |frame: &Frame| self.frames.get(*frame).wanted;
            if let Some(frame) = self.frames.clusters().frames(id).find(wanted) {
                self.deliver_unit(w, id, unit, frame);
            } else if written && cluster.dirty > 0 {
                self.unfinished(id);
            } else if cluster.leaves && cluster.dirty == 0 {
                self.drop_unit(id);
            } else {
                self.frames.file(id);
            }
        }
        self.deliver_orphans(w);
    }

    /// Part of a unit could not be written, or not yet. If the area refused it, its pages continue as single pages.
    fn unfinished(&mut self, id: ClusterId) {
        let without_slot = |frame| self.frames.get(frame).slot.is_none();
        if self.frames.clusters().frames(id).any(without_slot) {
            self.frames.split_unit(id);
        } else {
            self.frames.file(id);
        }
    }

    /// Map a unit that is complete in its cluster, for the threads that wait for its pages.
    pub(super) fn deliver_unit(
        &mut self,
        w: &mut impl World,
        id: ClusterId,
        unit: Vpn,
        wanted: Frame,
    ) -> Outcome {
        if self.frames.clusters().get(id).busy > 0 {
            // The end of the I/O maps it.
            return Outcome::Waits;
        }
        if self.held {
            for n in 0..UNIT {
                w.returns(unit.plus(n.into()));
            }
        }
        let first = self.frames.clusters().first(id);
        let done = w.move_in(first, unit, UNIT);
        let asked = self.frames.get(wanted);
        let since = if asked.wanted { asked.since } else { w.now() };
        match (done.pages, passing(done, since, w.now())) {
            (UNIT, _) => {
                self.on_unit_mapped(w, id, unit);
                return Outcome::Served;
            }
            (0, Some(stop @ (Stop::Again | Stop::NoMemory | Stop::Gone))) => {
                for frame in self.frames.clusters().frames(id) {
                    let desc = *self.frames.get(frame);
                    let Some(page) = desc.page.filter(|_| desc.wanted) else {
                        continue;
                    };
                    let since = desc.since;
                    let pending = Pending::of(page, since);
                    match stop {
                        Stop::Again => self.waiters.retry_later(pending),
                        Stop::NoMemory => {
                            self.stall(w, pending);
                        }
                        _ => {
                            // The mapping is gone; its event will be read soon.
                            self.frames.unwant(frame);
                            w.wake(page);
                        }
                    }
                }
                self.frames.file(id);
                return Outcome::Waits;
            }
            _ => {}
        }
        self.stats.huge_splits += 1;
        self.frames.split_unit(id);
        for n in 0..done.pages {
            let desc = *self.frames.get(first.plus(n));
            self.on_page_mapped(w, first.plus(n), &desc);
        }
        self.deliver_orphans(w);
        let served = wanted.0 - first.0 < done.pages;
        if served {
            Outcome::Served
        } else {
            Outcome::Waits
        }
    }

    fn on_page_mapped(&mut self, w: &mut impl World, frame: Frame, desc: &FrameDesc) {
        let slot = desc.slot.filter(|&slot| self.keeps_slots(w, slot));
        if slot != desc.slot {
            self.slots.put(w, desc.slot);
        }
        self.frames.set_empty(frame);
        let Some(page) = desc.page else {
            return;
        };
        self.set_mapped(w, page, slot, Came::Ahead);
        if desc.wanted {
            self.on_served(w, page, desc.since);
        }
    }

    /// A stream has reached `page`, and its unit is mapped: map the next one too, if it is complete. The program then
    /// finds every second unit mapped, and its position shows at the others.
    pub(super) fn map_next_unit(&mut self, w: &mut impl World, predictor: Predictor, page: Vpn) {
        let Predictor::Stream(stream) = predictor else {
            return;
        };
        if !self.uses(Heuristic::NextUnit) {
            return;
        }
        if self.held || !self.table.is_huge(page) || !self.streams.is_dense(stream) {
            return;
        }
        let next = self.streams.next_unit(stream, unit_of(page));
        let Some(Entry::Cached(frame)) = next.map(|next| self.table.get(next)) else {
            return;
        };
        if let Some((id, unit)) = self.frames.unit_of(frame)
            && self.frames.clusters().get(id).list == List::Ahead
        {
            self.deliver_unit(w, id, unit, frame);
        }
    }

    fn on_unit_mapped(&mut self, w: &mut impl World, id: ClusterId, unit: Vpn) {
        let first = self.frames.clusters().first(id);
        let keeps = self
            .frames
            .get(first)
            .slot
            .is_some_and(|slot| self.keeps_slots(w, slot));
        let (mut unseen, mut came) = (0, Came::Ahead);
        for n in 0..UNIT {
            let desc = *self.frames.get(first.plus(n));
            let slot = desc.slot.filter(|_| keeps);
            if slot != desc.slot {
                self.slots.put(w, desc.slot);
            }
            unseen += u64::from(desc.ahead);
            if desc.wanted {
                // The first page that is needed again speaks for the unit.
                if !matches!(came, Came::Returned { soon: true, .. }) {
                    came = self.returned(&desc);
                }
                self.on_served(w, unit.plus(n.into()), desc.since);
            }
            self.set_mapped(w, unit.plus(n.into()), slot, Came::Beside);
        }
        let whole = self.came_whole(w, id, unit);
        self.frames.end_all(id, State::Empty);
        if whole {
            // The next unit of a stream has not proved that it is needed again.
            let came = if unseen == 0 { came } else { Came::Ahead };
            self.make_huge(unit, came);
        }
        self.stats.ahead.unseen += unseen;
        if let Some(vma) = self.vmas.find_mut(unit) {
            vma.ahead.unseen += unseen;
        }
    }

    /// Check whether a unit that was just mapped is still one huge page. If not, make it one before it is evicted
    /// again: small pages would leave a fragmented cluster behind, and the next unit would need a fresh huge page. If
    /// it was split, its cluster has a page table of small pages now as well.
    pub(super) fn came_whole(&mut self, w: &mut impl World, id: ClusterId, unit: Vpn) -> bool {
        let whole = self.frames.clusters().get(id).is_thp && w.is_mapped_huge(unit);
        self.frames.set_thp(id, whole);
        whole
    }

    /// Deliver complete pages that threads wait for, and whose unit was split.
    pub(super) fn deliver_orphans(&mut self, w: &mut impl World) {
        while let Some(frame) = self.frames.take_orphan() {
            self.deliver(w, frame);
        }
    }

    /// Part of a huge page changes alone: it is split.
    pub(super) fn split_in(&mut self, range: &PageRange) {
        for edge in [range.start, Vpn(range.end.0.saturating_sub(1))] {
            let unit = unit_of(edge);
            let all = unit..unit.plus(UNIT.into());
            if overlap(&all, range) != all {
                self.stats.huge_splits += u64::from(self.table.split_mapping(edge));
            }
        }
    }
}
