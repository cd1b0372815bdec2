//! Reads and writes in flight.
//!
//! One I/O covers slots that follow each other; its frames may lie anywhere. State is published
//! when the I/O that makes it true has succeeded, and each page that comes in is checked against
//! the digest taken when it went out: a wrong byte is never given to the program.

use alloc::vec::Vec;

use crate::frames::{Holding, State};
use crate::mm::Mm;
use crate::swap::slots::Slots;
use crate::units::{Frame, Nanos, Slot};
use crate::world::{IoId, IoResult, Notice, World};

/// Slots that one I/O covers at the most (512 KiB).
pub const SLOTS_PER_IO: usize = 128;
/// Slots that one I/O of a huge page covers.
pub(crate) const SLOTS_PER_UNIT_IO: usize = crate::units::LEAF_PAGES;
/// Pages that are looked at together to be written.
const BATCH: usize = 256;
/// Pages that are worth an I/O.
const WORTH_WRITING: usize = 64;
/// The system's error number for "no space left on device".
const ENOSPC: i32 = 28;

#[derive(Clone, Default)]
struct Io {
    slot: Option<Slot>,
    write: bool,
    since: Nanos,
    /// A read of swapoff.
    drain: bool,
    /// Pages that count as in flight beside what threads wait for.
    beside: u32,
    frames: Vec<Frame>,
}

/// All I/Os in flight, by number; numbers are used again.
#[derive(Default)]
pub struct Ios {
    all: Vec<Io>,
    idle: Vec<IoId>,
    /// What a read takes, smoothed.
    latency: Nanos,
}

impl Ios {
    /// I/Os in flight.
    pub fn in_flight(&self) -> usize {
        self.all.len() - self.idle.len()
    }

    /// What a read takes from its start to its end, smoothed.
    pub fn latency(&self) -> Nanos {
        self.latency
    }

    pub(crate) fn begin(
        &mut self,
        slot: Slot,
        write: bool,
        since: Nanos,
        frames: impl Iterator<Item = Frame>,
    ) -> IoId {
        let io = self.idle.pop().unwrap_or_else(|| {
            self.all.push(Io::default());
            IoId(self.all.len() as u32 - 1)
        });
        let entry = &mut self.all[io.0 as usize];
        entry.slot = Some(slot);
        entry.write = write;
        entry.since = since;
        entry.drain = false;
        entry.beside = 0;
        entry.frames.clear();
        entry.frames.extend(frames);
        io
    }

    /// Mark a read as swapoff's.
    pub(crate) fn set_drain(&mut self, io: IoId) {
        self.all[io.0 as usize].drain = true;
    }

    /// Where an I/O begins, and whether it is a write.
    pub(crate) fn what(&self, io: IoId) -> Option<(Slot, bool)> {
        let entry = self.all.get(io.0 as usize)?;
        Some((entry.slot?, entry.write))
    }

    /// No thread waits for it: its pages, which count as such until it ends.
    pub(crate) fn count_beside(&mut self, io: IoId) -> u32 {
        let entry = &mut self.all[io.0 as usize];
        entry.beside = entry.frames.len() as u32;
        entry.beside
    }

    fn beside(&self, io: IoId) -> u32 {
        self.all.get(io.0 as usize).map_or(0, |io| io.beside)
    }

    fn is_drain(&self, io: IoId) -> bool {
        self.all.get(io.0 as usize).is_some_and(|io| io.drain)
    }

    /// I/Os on an area are in flight.
    pub(crate) fn any_on(&self, area: u8) -> bool {
        let slots = self.all.iter().filter_map(|io| io.slot);
        slots.into_iter().any(|slot| slot.area == area)
    }

    pub(crate) fn frames(&self, io: IoId) -> &[Frame] {
        &self.all[io.0 as usize].frames
    }

    /// The I/O is over; its frames' list goes back with [`Ios::recycle`].
    pub(crate) fn end(&mut self, io: IoId) -> Option<(Slot, bool, Vec<Frame>)> {
        let entry = self.all.get_mut(io.0 as usize)?;
        let slot = entry.slot.take()?;
        Some((slot, entry.write, core::mem::take(&mut entry.frames)))
    }

    fn ended(&mut self, io: IoId, now: Nanos) {
        let since = self.all[io.0 as usize].since;
        self.latency = (7 * self.latency + now.saturating_sub(since)) / 8;
    }

    /// The I/O did not start.
    pub(crate) fn drop(&mut self, io: IoId) {
        if let Some((_, _, frames)) = self.end(io) {
            self.recycle(io, frames);
        }
    }

    pub(crate) fn recycle(&mut self, io: IoId, frames: Vec<Frame>) {
        self.all[io.0 as usize].frames = frames;
        self.idle.push(io);
    }
}

impl Mm {
    /// I/Os that the disk has.
    pub(crate) fn in_flight(&self) -> usize {
        self.ios.in_flight() - self.pace.waiting()
    }

    /// Start the reads of `batch`; slots that follow each other become one I/O, of `most` at the most. The
    /// one that holds `first`, for which a thread waits, goes first.
    pub(crate) fn submit_reads(
        &mut self,
        w: &mut impl World,
        batch: &mut [(Slot, Frame)],
        first: Option<Frame>,
        most: usize,
    ) {
        let most = match first {
            Some(_) if !self.shares_disk() => most,
            _ => self.piece(most, false),
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

    pub(crate) fn submit_read(
        &mut self,
        w: &mut impl World,
        slot: Slot,
        frames: impl Iterator<Item = Frame>,
        awaited: bool,
    ) {
        let io = self.ios.begin(slot, false, w.now(), frames);
        let wanted = |frame: &Frame| self.frames.get(*frame).wanted;
        // What no thread waits for yet of a unit that one waits for is queued and counted with the rest of it.
        let shared = awaited && self.shares_disk();
        let started = if shared || self.ios.frames(io).iter().any(wanted) {
            self.start_awaited(w, io);
            true
        } else if awaited {
            !self.lacks_place() && w.read(io, slot, self.ios.frames(io))
        } else {
            self.start_beside(w, io)
        };
        if started {
            self.stats.swap_read_ios += 1;
            return;
        }
        // The queue is full: the pages go back to where they were.
        let Some((_, _, frames)) = self.ios.end(io) else {
            return;
        };
        for &frame in &frames {
            self.un_read(frame);
        }
        self.ios.recycle(io, frames);
    }

    /// A page that was to be read is on its area only, as before.
    pub(crate) fn un_read(&mut self, frame: Frame) {
        let holding = *self.frames.get(frame);
        if let (Some(page), true) = (holding.page, holding.ahead) {
            self.uncount_ahead(page);
        }
        self.leave_frame(frame);
    }

    /// What is in the frame is on its area only from now on.
    pub(crate) fn leave_frame(&mut self, frame: Frame) {
        self.leave_for_area(frame);
        self.frames.free_up(frame);
    }

    /// Write what waits for it, many pages at once, as far as slots, queue and depth go; unless in a
    /// `hurry`, not before it is worth an I/O.
    pub(crate) fn submit_writes(&mut self, w: &mut impl World, hurry: bool) {
        if !self.write_units(w) {
            return;
        }
        let least = match hurry {
            true => 1,
            false if self.gathers(w) => self.gathered(),
            false => WORTH_WRITING,
        };
        if self.frames.dirty().len() < least {
            return;
        }
        let least = least.min(SLOTS_PER_IO);
        while self.frames.dirty().len() >= least && self.frames.writing() < self.marks.writes {
            let mut batch = core::mem::take(&mut self.batch);
            batch.clear();
            let oldest = self.frames.dirty().iter().take(BATCH);
            batch.extend(oldest.filter_map(|&frame| Some((self.frames.get(frame).slot?, frame))));
            let done = if batch.is_empty() {
                let mut frames = core::mem::take(&mut self.homeless);
                let done = self.write_anew(w, &mut frames);
                self.homeless = frames;
                done
            } else {
                batch.sort_unstable_by_key(|&(slot, _)| slot);
                self.write_at_home(w, &batch)
            };
            self.batch = batch;
            if !done {
                return;
            }
        }
    }

    /// Write pages to the slots that they had. False: the queue is full.
    fn write_at_home(&mut self, w: &mut impl World, batch: &[(Slot, Frame)]) -> bool {
        let follows = |a: &(Slot, Frame), b: &(Slot, Frame)| a.0.plus(1) == b.0;
        let most = self.piece(SLOTS_PER_IO, true);
        let ios = batch.chunk_by(follows).flat_map(|run| run.chunks(most));
        for run in ios {
            let frames = run.iter().map(|&(_, frame)| frame);
            let io = self.ios.begin(run[0].0, true, 0, frames);
            if !self.may_write() || !self.start_beside(w, io) {
                self.ios.drop(io);
                return false;
            }
            self.on_writing(w, run.iter().copied());
        }
        true
    }

    /// Write pages that have no slot to slots that follow each other. False: no slot is free, or the
    /// queue is full.
    fn write_anew(&mut self, w: &mut impl World, frames: &mut Vec<Frame>) -> bool {
        let homeless = |frame: &&Frame| self.frames.get(**frame).slot.is_none();
        let mut oldest = self.frames.dirty().iter().take(BATCH).filter(homeless);
        let first = oldest.clone().next();
        let whole = first.is_some_and(|&frame| self.frames.get(frame).whole);
        let alike = |frame: &&Frame| self.frames.get(**frame).whole == whole;
        let oldest = oldest.by_ref().filter(alike);
        if !self.may_write() {
            return false;
        }
        let most = self.piece(SLOTS_PER_IO, true);
        frames.clear();
        frames.extend(oldest.copied().take(most));
        let max = frames.len() as u32;
        let take = |slots: &mut Slots, w: &mut _| match whole {
            true => slots.take_whole(w, max),
            false => slots.take(w, max),
        };
        let Some((slot, n)) = take(&mut self.slots, w).or_else(|| {
            (self.take_back_slots(w) > 0)
                .then(|| take(&mut self.slots, w))
                .flatten()
        }) else {
            if !self.areas_full {
                self.areas_full = true;
                w.notice(Notice::AreasFull);
            }
            return false;
        };
        let frames = &frames[..n as usize];
        let io = self.ios.begin(slot, true, 0, frames.iter().copied());
        let started = match whole {
            true => w.write_as_it_is(io, slot, self.ios.frames(io)),
            false => self.start_beside(w, io),
        };
        if !started {
            for i in 0..n {
                self.put(w, Some(slot.plus(i)));
            }
            self.ios.drop(io);
            return false;
        }
        self.on_writing(w, (0..).map(|i| slot.plus(i)).zip(frames.iter().copied()));
        true
    }

    pub(crate) fn on_writing(
        &mut self,
        w: &mut impl World,
        pages: impl Iterator<Item = (Slot, Frame)>,
    ) {
        self.stats.swap_write_ios += 1;
        for (slot, frame) in pages {
            self.frames.turn(frame, State::Writing);
            let holding = self.frames.get_mut(frame);
            holding.slot = Some(slot);
            w.set_digest(slot, holding.digest);
            if let Some(page) = holding.page {
                self.note_owner(slot, page);
            }
        }
    }

    /// An I/O ended.
    pub fn on_io(&mut self, w: &mut impl World, io: IoId, result: IoResult) {
        let drain = self.ios.is_drain(io);
        self.pace.pages -= self.ios.beside(io);
        let Some((slot, write, frames)) = self.ios.end(io) else {
            return;
        };
        if drain {
            self.drain.ended(frames.len());
        }
        match (write, result) {
            (false, IoResult::Ok) if drain => self.on_drained(w, slot, &frames),
            (false, IoResult::Failed(_)) if frames.len() > 1 => {
                // One bad page must not take the others along: read each alone.
                for (i, &frame) in (0..).zip(&frames) {
                    if self.frames.get(frame).page.is_none() {
                        self.frames.free_up(frame);
                    } else {
                        self.submit_read(w, slot.plus(i), core::iter::once(frame), true);
                    }
                }
            }
            (false, _) => {
                self.ios.ended(io, w.now());
                for (i, &frame) in (0..).zip(&frames) {
                    self.on_read(w, slot.plus(i), frame, result);
                }
                self.map_direct(w, &frames);
                self.settle_units(w, &frames, false);
            }
            (true, _) => {
                let areas_full = self.areas_full;
                for (i, &frame) in (0..).zip(&frames) {
                    let result = match result {
                        IoResult::Refused(refusal) if !refusal.has(i) => IoResult::Ok,
                        result => result,
                    };
                    self.on_written(w, slot.plus(i), frame, result);
                }
                self.settle_units(w, &frames, true);
                match result {
                    // Others may have made room.
                    IoResult::Ok => self.areas_full = false,
                    IoResult::Refused(refusal) => {
                        // The slots that were given back are no room.
                        self.areas_full = areas_full;
                        if refusal.full {
                            self.slots.no_room(slot.area);
                        }
                    }
                    IoResult::Failed(error) => {
                        w.notice(Notice::WriteFailed { slot, error });
                        if error == ENOSPC {
                            self.slots.no_room(slot.area);
                        } else {
                            self.slots.write_failed(slot.area);
                        }
                    }
                }
            }
        }
        self.ios.recycle(io, frames);
        self.start_waiting(w);
    }

    pub(crate) fn on_read(
        &mut self,
        w: &mut impl World,
        slot: Slot,
        frame: Frame,
        result: IoResult,
    ) {
        let Some(page) = self.frames.get(frame).page else {
            #[cfg(feature = "planted")]
            if self.has(crate::planted::Bug::LeakedFrame) && matches!(result, IoResult::Failed(_)) {
                return;
            }
            self.frames.free_up(frame);
            return;
        };
        let lost = match result {
            IoResult::Failed(error) => Some(Notice::ReadFailed { slot, page, error }),
            #[cfg(feature = "planted")]
            IoResult::Ok if self.has(crate::planted::Bug::UncheckedDigest) => None,
            IoResult::Ok if w.digest_read(frame).number() != w.digest(slot) => {
                Some(Notice::Corrupt { slot, page })
            }
            // A read is never taken in part.
            IoResult::Ok | IoResult::Refused(_) => None,
        };
        if let Some(notice) = lost {
            w.notice(notice);
            self.bad.push(slot);
            self.frames.get_mut(frame).slot = None;
            self.lose(w, page);
            return;
        }
        self.stats.swap_in += 1;
        self.frames.turn(frame, State::Clean);
        let holding = self.frames.get(frame);
        if holding.wanted {
            self.deliver(w, frame);
        } else if holding.whole && !self.held {
            self.send_on(w, slot, frame);
        }
    }

    /// Map what has just come and may be mapped before it is touched.
    fn map_direct(&mut self, w: &mut impl World, frames: &[Frame]) {
        if self.held {
            return;
        }
        let mut maps = core::mem::take(&mut self.maps);
        maps.clear();
        maps.extend(frames.iter().filter_map(|&frame| {
            let holding = self.frames.get(frame);
            let direct = holding.direct && holding.state == State::Clean && !holding.wanted;
            Some((holding.page.filter(|_| direct)?, frame))
        }));
        self.map_pages(w, &maps);
        self.maps = maps;
    }

    fn on_written(&mut self, w: &mut impl World, slot: Slot, frame: Frame, result: IoResult) {
        let orphan = self.frames.get(frame).page.is_none();
        #[cfg(feature = "planted")]
        let result = match result {
            IoResult::Failed(_) if self.has(crate::planted::Bug::EarlyPublish) => IoResult::Ok,
            result => result,
        };
        match result {
            IoResult::Ok => {
                self.stats.swap_out += 1;
                if orphan {
                    self.put(w, Some(slot));
                    self.frames.free_up(frame);
                    return;
                }
                let &Holding { leaves, wanted, .. } = self.frames.get(frame);
                if leaves && !wanted {
                    self.leave_frame(frame);
                    return;
                }
                self.frames.turn(frame, State::Clean);
            }
            IoResult::Failed(_) | IoResult::Refused(_) => {
                let holding = self.frames.get_mut(frame);
                holding.slot = None;
                if let IoResult::Refused(refusal) = result {
                    holding.whole = !refusal.full;
                }
                if matches!(result, IoResult::Failed(error) if error != ENOSPC) {
                    self.bad.push(slot);
                } else {
                    self.put(w, Some(slot));
                }
                if orphan {
                    self.frames.free_up(frame);
                    return;
                }
                self.frames.turn(frame, State::Dirty);
            }
        }
        if self.frames.get(frame).wanted {
            self.deliver(w, frame);
        }
    }
}
