//! Requests for pages: which pages one request reads or writes, and their state when it starts.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::FrameDesc;
use crate::frames::clusters::ClusterId;
use crate::heuristics::Heuristic;
use crate::io::SLOTS_PER_IO;
use crate::io::random_faults::ReclaimClock;
use crate::io::scheduler::{Class, Contention, Dispatch};
use crate::swap::slots::Slots;
use crate::units::{Frame, Nanos, Slot};
use crate::world::{IoId, Notice, World};

/// Pages that are considered together for a write.
const BATCH: usize = 256;
/// Pages that are worth a request.
const WORTH_WRITING: usize = 64;
/// Pages that are gathered before they are written while threads fault at random, and the largest part of reclaim's
/// high mark that they may be.
const GATHERED: u32 = 512;
const GATHERED_PART: u32 = 2;

impl Mm {
    fn reclaim_clock(&self) -> ReclaimClock {
        ReclaimClock {
            evictions: self.reclaim.evictions(),
            resident: self.table.resident(),
        }
    }

    /// Which processes fault at random on the disk.
    pub(super) fn contention(&self) -> Contention {
        self.io.contention(self.reclaim_clock())
    }

    /// Threads of this process fault at random.
    pub(super) fn faults_at_random(&self) -> bool {
        self.contention() == Contention::Own
    }

    /// A fault that no readahead predicted.
    pub(super) fn on_random_fault(&mut self, now: Nanos) {
        self.io.on_random_fault(self.reclaim_clock(), now);
    }

    /// Threads fault at random, and there is memory for their next faults: writes can wait until there are many.
    pub(super) fn gathers_writes(&self, w: &impl World) -> bool {
        self.faults_at_random()
            && self.uses(Heuristic::GatheredWrites)
            && self.headroom(w) >= u64::from(self.reclaim.marks().reserve)
            && w.excess() == 0
    }

    /// Pages that are gathered then.
    fn gathered(&self) -> usize {
        GATHERED
            .min(self.reclaim.marks().high / GATHERED_PART)
            .max(1) as usize
    }

    /// Between two faults: look at the disk's state, and dispatch waiting requests.
    pub(super) fn schedule_io(&mut self, w: &mut impl World) {
        self.io.expire(w.now());
        let clock = self.reclaim_clock();
        let others_fault = w.share_disk(self.faults_at_random());
        self.io
            .observe(w.disk(), others_fault, has_memory(w), clock, w.now());
        self.dispatch_waiting(w);
    }

    /// Dispatch waiting requests, as far as the limits allow.
    pub(super) fn dispatch_waiting(&mut self, w: &mut impl World) {
        while self.io.synchronous_waits() {
            let (contention, frames) = (self.contention(), &self.frames);
            let is_stale = |frame| frames.get(frame).page.is_none();
            match self.io.dispatch_synchronous(w, contention, is_stale) {
                Dispatch::Blocked => return,
                Dispatch::Started => {}
                Dispatch::Stale(io) => self.read_anew(w, io),
            }
            self.io.dispatched(Class::Synchronous);
        }
        loop {
            let (contention, frames) = (self.contention(), &self.frames);
            let is_stale = |frame| frames.get(frame).page.is_none();
            let (class, dispatch) = self.io.dispatch_background(w, contention, is_stale);
            match dispatch {
                Dispatch::Blocked => return,
                Dispatch::Started => {}
                Dispatch::Stale(io) => self.read_anew(w, io),
            }
            self.io.dispatched(class);
        }
    }

    /// A thread waits for the read `io`.
    fn start_synchronous(&mut self, w: &mut impl World, io: IoId) {
        let (contention, frames) = (self.contention(), &self.frames);
        let is_stale = |frame| frames.get(frame).page.is_none();
        let dispatch = self.io.start_synchronous(w, contention, io, is_stale);
        if let Dispatch::Stale(io) = dispatch {
            self.read_anew(w, io);
        }
    }

    /// A thread waits for the read of `frame`, which may be a background read: it goes first, with all of its huge
    /// page.
    pub(super) fn hasten(&mut self, w: &mut impl World, frame: Frame) {
        if !self.uses(Heuristic::Hasten) {
            return;
        }
        let unit: Option<ClusterId> = self.frames.unit_of(frame).map(|(id, _)| id);
        let mut at = 0;
        loop {
            let clusters = self.frames.clusters();
            let concerned = |frames: &[Frame]| match (unit, frames.first()) {
                (Some(id), Some(&first)) => clusters.of(first) == Some(id),
                _ => frames.contains(&frame),
            };
            let Some(io) = self.io.take_background(&mut at, concerned) else {
                return;
            };
            self.start_synchronous(w, io);
        }
    }

    /// Some pages of a waiting read were discarded: read the others, each by itself.
    fn read_anew(&mut self, w: &mut impl World, io: IoId) {
        if let Some(ended) = self.io.end(io) {
            self.read_singly(w, ended.slot, &ended.frames);
            self.io.recycle(io, ended.frames);
        }
    }

    /// Read each of `frames` by itself, from `slot` on, except those whose page was discarded.
    pub(super) fn read_singly(&mut self, w: &mut impl World, slot: Slot, frames: &[Frame]) {
        for (n, &frame) in (0..).zip(frames) {
            if self.frames.get(frame).page.is_none() {
                self.frames.set_free(frame);
            } else {
                self.submit_read(w, slot.plus(n), core::iter::once(frame), true);
            }
        }
    }

    /// Start the reads of `batch`. Consecutive slots become one I/O, of up to `most` slots. The I/O that holds `first`,
    /// for which a thread waits, goes first.
    pub(super) fn submit_reads(
        &mut self,
        w: &mut impl World,
        batch: &mut [(Slot, Frame)],
        first: Option<Frame>,
        most: usize,
    ) {
        let contention = self.contention();
        let most = match first {
            Some(_) if contention != Contention::Others => most,
            _ => self.io.request_size(contention, most, false),
        };
        batch.sort_unstable_by_key(|&(slot, _)| slot);
        let follows = |a: &(Slot, Frame), b: &(Slot, Frame)| a.0.plus(1) == b.0;
        for urgent in [true, false] {
            let ios = batch.chunk_by(follows).flat_map(|run| run.chunks(most));
            for run in ios {
                if run.iter().any(|&(_, frame)| Some(frame) == first) == urgent {
                    let frames = run.iter().map(|&(_, frame)| frame);
                    self.submit_read(w, run[0].0, frames, first.is_some());
                }
            }
        }
    }

    pub(super) fn submit_read(
        &mut self,
        w: &mut impl World,
        slot: Slot,
        frames: impl Iterator<Item = Frame>,
        awaited: bool,
    ) {
        let io = self.io.begin_read(slot, frames, w.now());
        let wanted = |frame: &Frame| self.frames.get(*frame).wanted;
        // Parts of a huge page that no thread waits for yet are queued and counted with the part that a thread waits
        // for.
        let contention = self.contention();
        let shared = awaited && contention == Contention::Others;
        let started = if shared || self.io.frames(io).iter().any(wanted) {
            self.start_synchronous(w, io);
            true
        } else if awaited {
            self.io.start_at_once(w, io)
        } else {
            self.io.start_background(w, contention, io)
        };
        if started {
            self.stats.swap_read_ios += 1;
            return;
        }
        // The queue is full: the pages are swapped again, as before.
        let Some(ended) = self.io.end(io) else {
            return;
        };
        for &frame in &ended.frames {
            self.un_read(frame);
        }
        self.io.recycle(io, ended.frames);
    }

    /// A page that was to be read is on its area only, as before.
    pub(super) fn un_read(&mut self, frame: Frame) {
        let desc = *self.frames.get(frame);
        if let (Some(page), true) = (desc.page, desc.ahead) {
            self.uncount_ahead(page);
        }
        self.leave_frame(frame);
    }

    /// The content of the frame is on its area only from now on.
    pub(super) fn leave_frame(&mut self, frame: Frame) {
        self.leave_for_area(frame);
        self.frames.set_free(frame);
    }

    /// Write waiting pages, many at once, as far as slots, queue and depth allow; unless in a `hurry`, not before there
    /// are enough for an I/O.
    pub(super) fn submit_writes(&mut self, w: &mut impl World, hurry: bool) {
        if !self.write_units(w) {
            return;
        }
        let least = match hurry {
            true => 1,
            false if self.gathers_writes(w) => self.gathered(),
            false if !self.uses(Heuristic::WorthWriting) => 1,
            false => WORTH_WRITING,
        };
        if self.frames.dirty().len() < least {
            return;
        }
        let least = least.min(SLOTS_PER_IO);
        while self.frames.dirty().len() >= least
            && self.frames.writing() < self.reclaim.marks().writes
        {
            let mut batch = core::mem::take(&mut self.buffers.batch);
            batch.clear();
            let oldest = self.frames.dirty().iter().take(BATCH);
            batch.extend(oldest.filter_map(|&frame| Some((self.frames.get(frame).slot?, frame))));
            let done = if batch.is_empty() {
                let mut frames = core::mem::take(&mut self.buffers.without_slot);
                let done = self.write_anew(w, &mut frames);
                self.buffers.without_slot = frames;
                done
            } else {
                batch.sort_unstable_by_key(|&(slot, _)| slot);
                self.write_at_home(w, &batch)
            };
            self.buffers.batch = batch;
            if !done {
                return;
            }
        }
    }

    /// Write pages to their old slots. False: the queue is full.
    fn write_at_home(&mut self, w: &mut impl World, batch: &[(Slot, Frame)]) -> bool {
        let follows = |a: &(Slot, Frame), b: &(Slot, Frame)| a.0.plus(1) == b.0;
        let most = self.io.request_size(self.contention(), SLOTS_PER_IO, true);
        let ios = batch.chunk_by(follows).flat_map(|run| run.chunks(most));
        for run in ios {
            let frames = run.iter().map(|&(_, frame)| frame);
            let io = self.io.begin_write(run[0].0, frames, w.now());
            if !self.io.may_write() || !self.io.start_background(w, self.contention(), io) {
                self.io.cancel(io);
                return false;
            }
            self.on_writing(w, run.iter().copied());
        }
        true
    }

    /// Write pages that have no slot to consecutive slots. False: no slot is free, or the queue is full.
    fn write_anew(&mut self, w: &mut impl World, frames: &mut Vec<Frame>) -> bool {
        let without_slot = |frame: &&Frame| self.frames.get(**frame).slot.is_none();
        let mut oldest = self.frames.dirty().iter().take(BATCH).filter(without_slot);
        let first = oldest.clone().next();
        let least = first.map_or(0, |&frame| self.frames.get(frame).least_tier);
        let alike = |frame: &&Frame| self.frames.get(**frame).least_tier == least;
        let oldest = oldest.by_ref().filter(alike);
        if !self.io.may_write() {
            return false;
        }
        let most = self.io.request_size(self.contention(), SLOTS_PER_IO, true);
        frames.clear();
        frames.extend(oldest.copied().take(most));
        let max = frames.len() as u32;
        let take = |slots: &mut Slots, w: &mut _| slots.take_from_tier(w, least, max);
        let Some((slot, n)) = take(&mut self.slots, w).or_else(|| {
            (self.take_back_slots(w) > 0)
                .then(|| take(&mut self.slots, w))
                .flatten()
        }) else {
            if self.slots.set_full() {
                w.notice(Notice::AreasFull);
            }
            return false;
        };
        let frames = &frames[..n as usize];
        let io = self.io.begin_write(slot, frames.iter().copied(), w.now());
        // Compressed memory takes what it has refused as it is, if nothing else has room.
        let started = match least > 0 && w.compresses(slot.area) {
            true => w.write_uncompressed(io, slot, self.io.frames(io)),
            false => self.io.start_background(w, self.contention(), io),
        };
        if !started {
            for i in 0..n {
                self.slots.put(w, Some(slot.plus(i)));
            }
            self.io.cancel(io);
            return false;
        }
        self.on_writing(w, (0..).map(|i| slot.plus(i)).zip(frames.iter().copied()));
        true
    }

    pub(super) fn on_writing(
        &mut self,
        w: &mut impl World,
        pages: impl Iterator<Item = (Slot, Frame)>,
    ) {
        self.stats.swap_write_ios += 1;
        for (slot, frame) in pages {
            let &FrameDesc { page, digest, .. } = self.frames.begin_write(frame, slot);
            w.set_digest(slot, digest);
            if let Some(page) = page {
                self.owners.note(slot, page);
            }
        }
    }
}

/// An area is in RAM: its reads and writes do not wait for a disk.
fn has_memory(w: &impl World) -> bool {
    (0..).map_while(|n| w.nth(n)).any(|area| w.compresses(area))
}
