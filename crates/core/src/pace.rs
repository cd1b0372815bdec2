//! What is in flight beside the reads that threads wait for.
//!
//! A disk serves what it is given in about the order in which it is given: who misses one page waits for
//! all that streams and reclaim have asked for before. While only streams miss pages that is well: large
//! I/Os, and many of them, are what a disk is best at. While pages are missed that nothing could foresee,
//! reads ahead and writes are cut into pieces, and only a few of these are with the disk at a time; the
//! others wait here, in order, unless a thread comes to wait for one of them.

use alloc::collections::VecDeque;

use crate::frames::State;
use crate::huge::clusters::ClusterId;
use crate::mm::Mm;
use crate::units::Frame;
use crate::world::{IoId, World};

/// Pages of a piece (128 KiB), and of those that are with the disk at a time.
const PIECE: usize = 32;
const AT_A_TIME: u32 = 128;
/// The part of what is resident that may be moved out after a miss that nothing could foresee, before that
/// is forgotten.
const LATELY: u64 = 8;

/// I/Os that no thread waits for.
#[derive(Default)]
pub(crate) struct Pace {
    /// Pages moved out when a page was missed last that nothing could foresee.
    missed: Option<u64>,
    /// Pages that the disk has.
    pages: u32,
    /// What it is to have next.
    waiting: VecDeque<IoId>,
}

impl Pace {
    /// I/Os that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }
}

impl Mm {
    /// A page is missed that nothing could foresee.
    pub(crate) fn miss_at_random(&mut self) {
        self.pace.missed = Some(self.evictions);
    }

    /// That was so lately.
    pub(crate) fn is_missed_at_random(&self) -> bool {
        let since = self.pace.missed.map(|at| self.evictions.saturating_sub(at));
        since.is_some_and(|since| since < self.table.resident() / LATELY)
    }

    /// The most pages that an I/O may have which could have `most`.
    pub(crate) fn piece(&self, most: usize) -> usize {
        match self.is_missed_at_random() {
            true => most.min(PIECE),
            false => most,
        }
    }

    /// Whether a further I/O would have to wait.
    pub(crate) fn is_paced(&self) -> bool {
        let full = !self.pace.waiting.is_empty() || self.pace.pages >= AT_A_TIME;
        full && self.is_missed_at_random()
    }

    /// Start an I/O that no thread waits for, now or later. False: the queue is full.
    pub(crate) fn start_beside(&mut self, w: &mut impl World, io: IoId) -> bool {
        let started = !self.is_paced() && self.start(w, io);
        let waits = !started && self.is_missed_at_random();
        if waits {
            self.pace.waiting.push_back(io);
        }
        started || waits
    }

    fn start(&mut self, w: &mut impl World, io: IoId) -> bool {
        let Some((slot, write)) = self.ios.what(io) else {
            return true;
        };
        let started = match write {
            true => w.write(io, slot, self.ios.frames(io)),
            false => w.read(io, slot, self.ios.frames(io)),
        };
        if started {
            self.pace.pages += self.ios.count_beside(io);
        }
        started
    }

    /// Give the disk what waits, as far as that may be.
    pub(crate) fn start_waiting(&mut self, w: &mut impl World) {
        while let Some(&io) = self.pace.waiting.front() {
            if self.pace.pages >= AT_A_TIME && self.is_missed_at_random() || !self.start(w, io) {
                return;
            }
            self.pace.waiting.pop_front();
        }
    }

    /// An I/O is over, `pages` of which were counted.
    pub(crate) fn ended_beside(&mut self, pages: u32) {
        self.pace.pages -= pages;
    }

    /// A thread has come to wait for what is read into a frame: it goes first, with all of its unit.
    pub(crate) fn hasten(&mut self, w: &mut impl World, frame: Frame) {
        if self.pace.waiting.is_empty() || self.frames.get(frame).state != State::Reading {
            return;
        }
        let unit: Option<ClusterId> = self.frames.unit_of(frame).map(|(id, _)| id);
        let mut at = 0;
        while let Some(&io) = self.pace.waiting.get(at) {
            let frames = self.ios.frames(io);
            let concerned = match (unit, frames.first()) {
                (Some(id), Some(&first)) => self.frames.clusters.of(first) == Some(id),
                _ => frames.contains(&frame),
            };
            if concerned && self.start(w, io) {
                self.pace.waiting.remove(at);
            } else {
                at += 1;
            }
        }
    }
}
