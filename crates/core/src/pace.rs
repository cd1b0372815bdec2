//! What is in flight beside the reads that threads wait for.
//!
//! A disk serves what it is given in about the order in which it is given: who misses one page waits for
//! all that streams and reclaim have asked for before. While only streams miss pages that is well: large
//! I/Os, and many of them, are what a disk is best at. While pages are missed that nothing could foresee,
//! reads ahead are cut into pieces, and only a few of these are with the disk at a time; the
//! others wait here, in order, unless a thread comes to wait for one of them. A disk that ends at once all that it
//! has gets batches ([`crate::at_once`]).
//!
//! A write keeps the disk from the reads behind it, and many small ones do so more often than a few large ones: while
//! this process misses such pages, what has to be written is gathered, as long as there is memory for the misses to
//! come.
//!
//! A read that a thread waits for is not held back, but for a huge page's while other processes miss pages that nothing
//! could foresee: a stream waits for most of its huge pages where it has few ahead, and would give the disk as much as
//! before. Where the queue has no place for what is waited for, it gets the next one, and nothing else begins before.

use alloc::collections::VecDeque;

use crate::at_once::AtOnce;
use crate::huge::clusters::ClusterId;
use crate::mm::Mm;
use crate::units::{Frame, Nanos};
use crate::world::{IoId, World};

/// What the disk may have that no thread waits for.
#[derive(Clone, Copy)]
struct Part {
    /// The most pages of one I/O.
    piece: usize,
    /// Pages that it has when no further I/O begins.
    at_a_time: u32,
}

/// While threads of this process miss pages.
const READS: Part = Part {
    piece: 16,
    at_a_time: 64,
};
const WRITES: Part = Part {
    piece: 128,
    at_a_time: GATHERED,
};
/// While those of others do: each of them gets its share.
const BESIDE_OTHERS: Part = Part {
    piece: 64,
    at_a_time: 320,
};
/// Pages that are gathered before they are written, and the part of what reclaim keeps ready that they may be at the most.
const GATHERED: u32 = 512;
const GATHERED_PART: u32 = 2;
/// Misses that nothing could foresee are forgotten when this part of what is resident was moved out since;
/// fewer of them than this are how every scan begins.
const LATELY: u64 = 8;
const ENOUGH: u32 = 16;
/// And when there was none for this long: what a thread misses may have waited behind all that a scan has in flight.
const CALM: Nanos = 50_000_000;

/// I/Os that no thread waits for.
#[derive(Default)]
pub(crate) struct Pace {
    /// Pages missed lately that nothing could foresee, and pages moved out at the last one.
    misses: u32,
    missed: u64,
    missed_at: Nanos,
    /// Other processes miss such pages.
    others: bool,
    /// Pages that the disk has.
    pub(crate) pages: u32,
    at_once: AtOnce,
    /// The disk is to end what it has before more begins.
    pub(crate) batched: bool,
    /// Reads that threads wait for, and that the disk could not have yet.
    awaited: VecDeque<IoId>,
    /// What it is to have next: writes first, as they make the room for all else.
    writes: VecDeque<IoId>,
    reads: VecDeque<IoId>,
}

impl Pace {
    /// I/Os that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.awaited.len() + self.writes.len() + self.reads.len()
    }
}

impl Mm {
    /// A page is missed that nothing could foresee.
    pub(crate) fn miss_at_random(&mut self, now: Nanos) {
        if !self.is_lately(self.pace.missed) {
            self.pace.misses = 0;
        }
        self.pace.misses = (self.pace.misses + 1).min(ENOUGH);
        (self.pace.missed, self.pace.missed_at) = (self.evictions, now);
    }

    /// That was so lately, and not just once.
    pub(crate) fn is_missed_at_random(&self) -> bool {
        self.pace.misses == ENOUGH && self.is_lately(self.pace.missed)
    }

    /// So it is, and there is memory for the next ones: writes can wait until there are many.
    pub(crate) fn gathers(&self, w: &impl World) -> bool {
        self.is_missed_at_random()
            && self.headroom(w) >= u64::from(self.marks.low / 2)
            && w.excess() == 0
    }

    /// How many it takes then.
    pub(crate) fn gathered(&self) -> usize {
        GATHERED.min(self.marks.high / GATHERED_PART).max(1) as usize
    }

    /// What the disk may have, if that is bounded: this process misses such pages, or another one does, as the disk
    /// is the same.
    fn part(&self, write: bool) -> Option<Part> {
        match (self.is_missed_at_random(), write) {
            (true, true) => Some(WRITES),
            (true, false) => Some(READS),
            (false, _) => self.pace.others.then_some(BESIDE_OTHERS),
        }
    }

    /// The disk has as much as it may have before another read or write.
    fn is_full(&self, write: bool) -> bool {
        let part = self.part(write);
        part.is_some_and(|part| self.pace.pages >= part.at_a_time)
    }

    fn is_lately(&self, evictions: u64) -> bool {
        self.evictions.saturating_sub(evictions) < self.table.resident() / LATELY
    }

    /// The most pages that a read or write may have which could have `most`.
    pub(crate) fn piece(&self, most: usize, write: bool) -> usize {
        let part = self.part(write);
        part.map_or(most, |part| most.min(part.piece))
    }

    /// A thread's read waits for a place in the queue: nothing else may take it.
    pub(crate) fn lacks_place(&self) -> bool {
        !self.pace.awaited.is_empty()
    }

    /// Whether one more write may begin. Half of the queue is for reads, and where writes wait already there is
    /// no need to begin more.
    pub(crate) fn may_write(&self) -> bool {
        let places = self.config.depth as usize / 2;
        let place = self.in_flight() <= places && self.pace.writes.is_empty();
        place && !self.lacks_place() && !self.pace.batched
    }

    /// Only other processes miss such pages: the disk is shared with them.
    pub(crate) fn shares_disk(&self) -> bool {
        self.pace.others && !self.is_missed_at_random()
    }

    /// Start a read that a thread waits for, as soon as the disk may have it. A single page does not wait for what is
    /// held back of a huge one.
    pub(crate) fn start_awaited(&mut self, w: &mut impl World, io: IoId) {
        let passes = self.shares_disk() && !self.counts_beside(io);
        if self.lacks_place() && !passes || !self.try_awaited(w, io) {
            self.pace.awaited.push_back(io);
        }
    }

    /// Where the disk is shared, a part of a huge page counts as what no thread waits for.
    fn counts_beside(&self, io: IoId) -> bool {
        self.shares_disk() && self.ios.frames(io).len() > READS.piece
    }

    /// As [`Mm::start_awaited`], if the disk may have it now.
    fn try_awaited(&mut self, w: &mut impl World, io: IoId) -> bool {
        let counts = self.counts_beside(io);
        !(counts && self.is_full(false)) && self.start_late(w, io, counts)
    }

    /// Start an I/O that no thread waits for, now or later. False: the queue is full.
    pub(crate) fn start_beside(&mut self, w: &mut impl World, io: IoId) -> bool {
        let write = self.ios.what(io).is_some_and(|(_, write)| write);
        let started = !self.is_full(write) && self.pace.waiting() == 0 && self.start(w, io, true);
        let waits = !started && self.part(write).is_some();
        if waits {
            match write {
                true => self.pace.writes.push_back(io),
                false => self.pace.reads.push_back(io),
            }
        }
        started || waits
    }

    /// Start an I/O; one that is `beside` counts as what no thread waits for.
    fn start(&mut self, w: &mut impl World, io: IoId, beside: bool) -> bool {
        let Some((slot, write)) = self.ios.what(io) else {
            return true;
        };
        let started = match write {
            true => w.write(io, slot, self.ios.frames(io)),
            false => w.read(io, slot, self.ios.frames(io)),
        };
        if started && beside {
            self.pace.pages += self.ios.count_beside(io);
        }
        started
    }

    /// As [`Mm::start`], of an I/O that has waited. Pages may have been discarded meanwhile: their slots,
    /// which may be somebody else's by now, are not read.
    fn start_late(&mut self, w: &mut impl World, io: IoId, beside: bool) -> bool {
        let gone = |frame: &Frame| self.frames.get(*frame).page.is_none();
        let read = self.ios.what(io).is_some_and(|(_, write)| !write);
        if !read || !self.ios.frames(io).iter().any(gone) {
            return self.start(w, io, beside);
        }
        let Some((slot, _, frames)) = self.ios.end(io) else {
            return true;
        };
        for (n, &frame) in (0..).zip(&frames) {
            if self.frames.get(frame).page.is_none() {
                self.frames.free_up(frame);
            } else {
                self.submit_read(w, slot.plus(n), core::iter::once(frame), true);
            }
        }
        self.ios.recycle(io, frames);
        true
    }

    /// Between two faults: misses are forgotten, and the disk gets what it may have then.
    pub(crate) fn keep_pace(&mut self, w: &mut impl World) {
        if self.pace.misses > 0 && w.now().saturating_sub(self.pace.missed_at) > CALM {
            self.pace.misses = 0;
        }
        if self.is_missed_at_random() {
            w.misses();
        }
        self.pace.others = w.others_miss();
        let batched = self.pace.at_once.look(w.disk());
        self.pace.batched = batched && self.part(false).is_none() && !has_ram(w);
        self.start_waiting(w);
    }

    /// Give the disk what waits, as far as that may be.
    pub(crate) fn start_waiting(&mut self, w: &mut impl World) {
        while let Some(&io) = self.pace.awaited.front() {
            if !self.try_awaited(w, io) {
                return;
            }
            self.pace.awaited.pop_front();
        }
        loop {
            let write = self.pace.writes.front().copied();
            let Some(io) = write.or_else(|| self.pace.reads.front().copied()) else {
                return;
            };
            if self.is_full(write.is_some()) || !self.start_late(w, io, true) {
                return;
            }
            match write {
                Some(_) => self.pace.writes.pop_front(),
                None => self.pace.reads.pop_front(),
            };
        }
    }

    /// A thread has come to wait for what is being read into a frame: it goes first, with all of its unit.
    pub(crate) fn hasten(&mut self, w: &mut impl World, frame: Frame) {
        let unit: Option<ClusterId> = self.frames.unit_of(frame).map(|(id, _)| id);
        let mut at = 0;
        while let Some(&io) = self.pace.reads.get(at) {
            let frames = self.ios.frames(io);
            let concerned = match (unit, frames.first()) {
                (Some(id), Some(&first)) => self.frames.clusters.of(first) == Some(id),
                _ => frames.contains(&frame),
            };
            if !concerned {
                at += 1;
                continue;
            }
            self.pace.reads.remove(at);
            self.start_awaited(w, io);
        }
    }
}

/// An area is memory: what goes there, and comes from there, is not to wait for a disk.
fn has_ram(w: &impl World) -> bool {
    (0..).map_while(|n| w.nth(n)).any(|area| w.compresses(area))
}
