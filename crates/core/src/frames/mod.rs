//! The engine's frames: the content of each, and which are free.
//!
//! A frame is *empty* (no memory behind it: the destination of an evicted page), *free* (memory that is not needed: for
//! a read or a first touch), or it holds a page of the program: being read, clean (its slot holds the same bytes),
//! dirty, or in writeback. Frames circulate: a full one is moved out, written, read into, and moved in. Memory is
//! recycled, not freed.
//!
//! The frames of clusters (`clusters`) are behind the frames for single pages. The frames of a unit are on no
//! list themselves; their cluster is, until the unit is split.

pub(crate) mod clusters;
mod lists;
mod units;

use alloc::collections::VecDeque;
use alloc::vec;
use alloc::vec::Vec;

use crate::units::{Frame, Nanos, Slot, Vpn};
use clusters::{Clusters, List, UNIT};
use lists::{Queue, Runs};

/// State of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// No memory.
    Empty,
    /// Memory, content not needed.
    Free,
    /// A read into it is in flight.
    Reading,
    /// A page whose slot holds the same bytes.
    Clean,
    /// A page that must be written first.
    Dirty,
    /// A write of it is in flight, or its digest is being computed, which tells whether it must be written.
    Writing,
}

/// The frame descriptor.
#[derive(Clone, Copy, Debug)]
pub struct FrameDesc {
    /// Its state.
    pub state: State,
    /// Readahead read it, and it has not been used since.
    pub ahead: bool,
    /// A stream read it, and is to use it.
    pub streamed: bool,
    /// To be mapped before it is touched.
    pub direct: bool,
    /// A mark: its touch stands for the pages around it that are mapped before their touch.
    pub mark: bool,
    /// A thread waits for the page.
    pub wanted: bool,
    /// A little more memory would have kept the page in the program.
    pub refault: bool,
    /// Pages that were evicted between the page's eviction and its read; `None`: it was not read since.
    pub distance: Option<u32>,
    /// The number of the last page that was evicted before its read.
    pub arrived: u32,
    /// The program wants its memory free once it is on an area.
    pub leaves: bool,
    /// It was still in its frame when a thread touched it again.
    pub again: bool,
    /// It goes to an area of this tier or beyond: nearer ones have refused it, or send it on.
    pub least_tier: u8,
    /// The page; `None` if it was discarded or mapped again while an I/O was in flight.
    pub page: Option<Vpn>,
    /// Its slot, present or future.
    pub slot: Option<Slot>,
    /// Digest of the bytes, known once the page was evicted.
    pub digest: u64,
    /// When the fault that waits for it arrived.
    pub since: Nanos,
}

/// The descriptor of a frame that holds no page.
pub const NOTHING: FrameDesc = FrameDesc {
    state: State::Empty,
    ahead: false,
    streamed: false,
    direct: false,
    mark: false,
    wanted: false,
    refault: false,
    distance: None,
    arrived: 0,
    again: false,
    least_tier: 0,
    leaves: false,
    page: None,
    slot: None,
    digest: 0,
    since: 0,
};

/// All frames.
pub struct Frames {
    descs: Vec<FrameDesc>,
    empty: Runs,
    free: Runs,
    /// Clean pages.
    clean: Queue,
    /// Clean pages that a stream read and has not used yet.
    ahead: Queue,
    arrivals: Vec<u32>,
    /// Frames to be written, in order.
    dirty: VecDeque<Frame>,
    writing: u32,
    reading: u32,
    /// Frames being read for which a thread waits.
    awaited: u32,
    /// Frames for huge pages.
    clusters: Clusters,
    /// Complete pages that a thread waits for, whose unit was split.
    orphans: Vec<Frame>,
    /// Frames of clusters with memory that is not needed, beside frames that hold pages.
    strays: Vec<Frame>,
}

impl Frames {
    /// `count` frames for pages, and `clusters` clusters for huge ones; all empty.
    pub fn new(count: u32, clusters: u32) -> Self {
        let mut empty = Runs::new(count);
        for frame in 0..count {
            empty.insert(frame);
        }
        Frames {
            descs: vec![NOTHING; (count + clusters * UNIT) as usize],
            empty,
            free: Runs::new(count),
            clean: Queue::default(),
            ahead: Queue::default(),
            arrivals: vec![0; (count + clusters * UNIT) as usize],
            dirty: VecDeque::new(),
            writing: 0,
            reading: 0,
            awaited: 0,
            // Clusters are aligned as their memory is: they begin at a multiple of the cluster size.
            clusters: Clusters::new(count, clusters),
            orphans: Vec::new(),
            strays: Vec::new(),
        }
    }

    /// The descriptor of `frame`.
    pub fn get(&self, frame: Frame) -> &FrameDesc {
        &self.descs[frame.0 as usize]
    }

    /// All frames with their descriptors.
    pub fn iter(&self) -> impl Iterator<Item = (Frame, &FrameDesc)> {
        self.descs
            .iter()
            .enumerate()
            .map(|(i, h)| (Frame(i as u32), h))
    }

    /// The descriptor, to change anything but its state.
    fn get_mut(&mut self, frame: Frame) -> &mut FrameDesc {
        &mut self.descs[frame.0 as usize]
    }

    /// Frames for single pages without memory.
    pub fn empty(&self) -> u32 {
        self.empty.count
    }

    /// Frames for single pages with memory that is not needed.
    pub fn free(&self) -> u32 {
        self.free.count
    }

    /// Frames with memory.
    pub fn backed(&self) -> u32 {
        self.descs.len() as u32 - self.empty.count - self.clusters.bare()
    }

    /// Pages that could be dropped at once, without those that streams are to use.
    pub fn clean(&self) -> u32 {
        self.clean.count + self.clusters.count(List::Clean) * UNIT
    }

    /// Of those, the ones that are in no unit.
    pub fn clean_singles(&self) -> u32 {
        self.clean.count
    }

    /// Pages that streams read, complete and not used yet.
    pub fn ahead(&self) -> u32 {
        self.ahead.count + self.clusters.count(List::Ahead) * UNIT
    }

    /// Pages that wait for writeback or are in it.
    pub fn unwritten(&self) -> u32 {
        self.dirty.len() as u32 + self.clusters.count(List::Dirty) * UNIT + self.writing
    }

    /// Frames that are being written.
    pub fn writing(&self) -> u32 {
        self.writing
    }

    /// Frames that wait for writeback, in order, without those of units.
    pub fn dirty(&self) -> &VecDeque<Frame> {
        &self.dirty
    }

    /// Reads and writes in flight, in frames.
    pub fn in_flight(&self) -> u32 {
        self.reading + self.writing
    }

    /// Frames that are being read and for which a thread waits.
    pub fn awaited(&self) -> u32 {
        self.awaited
    }

    /// Take up to `max` contiguous empty frames; they stay `Empty` until [`Frames::install`].
    pub fn take_empty(&mut self, max: u32) -> Option<(Frame, u32)> {
        self.empty.take(max)
    }

    /// Take up to `max` contiguous free frames; they stay `Free` until [`Frames::install`] or [`Frames::set_empty`].
    pub fn take_free(&mut self, max: u32) -> Option<(Frame, u32)> {
        self.free.take(max)
    }

    /// Put a taken frame back unused.
    pub fn put_back(&mut self, frame: Frame) {
        match self.get(frame).state {
            State::Empty => self.empty.insert(frame.0),
            State::Free => self.free.insert(frame.0),
            _ => {}
        }
    }

    /// A taken frame without memory has some now, and stays taken.
    pub fn set_backed(&mut self, frame: Frame) {
        self.get_mut(frame).state = State::Free;
    }

    /// A taken frame holds a page from now on.
    pub fn install(&mut self, frame: Frame, desc: FrameDesc) {
        debug_assert!(!self.empty.has(frame.0) && !self.free.has(frame.0));
        self.leave(frame);
        *self.get_mut(frame) = desc;
        self.enter(frame);
    }

    /// The memory of a frame (taken or holding a page) went to the program or the system.
    pub fn set_empty(&mut self, frame: Frame) {
        self.end(frame, State::Empty);
    }

    /// A frame (taken or holding a page) has memory that is not needed.
    pub fn set_free(&mut self, frame: Frame) {
        self.end(frame, State::Free);
    }

    fn end(&mut self, frame: Frame, state: State) {
        let cluster = self.clusters.of(frame);
        if let Some(id) = cluster {
            self.split_unit(id);
            if state == State::Empty {
                // One page was taken out of it.
                self.clusters.get_mut(id).is_thp = false;
            }
        }
        self.leave(frame);
        *self.get_mut(frame) = FrameDesc { state, ..NOTHING };
        self.enter(frame);
        match (cluster, state) {
            (Some(id), _) => {
                if state == State::Free {
                    self.strays.push(frame);
                }
                self.settle(id);
            }
            (None, State::Empty) => self.empty.insert(frame.0),
            (None, _) => self.free.insert(frame.0),
        }
    }

    /// A frame that holds a page changes state.
    pub fn set_state(&mut self, frame: Frame, state: State) {
        self.leave(frame);
        self.get_mut(frame).state = state;
        self.enter(frame);
    }

    /// The page moved in the program, with its content.
    pub fn set_page(&mut self, frame: Frame, page: Vpn) {
        self.get_mut(frame).page = Some(page);
    }

    /// An I/O is in flight, and the page is gone. A write keeps its slot until it ends; the slot of a read is free.
    pub fn abandon(&mut self, frame: Frame) {
        let desc = self.get_mut(frame);
        desc.page = None;
        if desc.state == State::Reading {
            desc.slot = None;
        }
    }

    /// The page has no slot any more.
    pub fn forget_slot(&mut self, frame: Frame) {
        self.get_mut(frame).slot = None;
    }

    /// The program wants the memory free once the page is on an area, or it does not.
    pub fn set_leaves(&mut self, frame: Frame, leaves: bool) {
        self.get_mut(frame).leaves = leaves;
    }

    /// A page that is being read is to be mapped before it is touched.
    pub fn set_direct(&mut self, frame: Frame) {
        self.get_mut(frame).direct = true;
    }

    /// The digest of an evicted page is known; `clean`: its slot holds the same bytes.
    pub fn set_digest(&mut self, frame: Frame, digest: u64, clean: bool) {
        self.get_mut(frame).digest = digest;
        self.set_state(frame, if clean { State::Clean } else { State::Dirty });
    }

    /// A page with this digest is to be written to a new slot; it has lost its old one.
    pub fn clear_slot(&mut self, frame: Frame, digest: u64) {
        let desc = self.get_mut(frame);
        (desc.slot, desc.digest) = (None, digest);
        self.set_state(frame, State::Dirty);
    }

    /// The write of a page to `slot` begins.
    pub fn begin_write(&mut self, frame: Frame, slot: Slot) -> &FrameDesc {
        self.set_state(frame, State::Writing);
        let desc = self.get_mut(frame);
        desc.slot = Some(slot);
        desc
    }

    /// A write failed. `least_tier`: what is known from that of the areas that take the page.
    pub fn on_write_failed(&mut self, frame: Frame, least_tier: Option<u8>) {
        let desc = self.get_mut(frame);
        desc.least_tier = least_tier.unwrap_or(desc.least_tier);
        self.clear_slot(frame, self.get(frame).digest);
    }

    fn enter(&mut self, frame: Frame) {
        let &FrameDesc {
            state,
            streamed,
            wanted,
            ..
        } = self.get(frame);
        let single = self.count_in_cluster(frame, 1);
        match state {
            State::Clean if !single => {}
            State::Clean if streamed => self.ahead.enter(frame, &mut self.arrivals),
            State::Clean => self.clean.enter(frame, &mut self.arrivals),
            State::Dirty if single => self.dirty.push_back(frame),
            State::Writing => self.writing += 1,
            State::Reading => {
                self.reading += 1;
                self.awaited += u32::from(wanted);
            }
            State::Dirty | State::Empty | State::Free => {}
        }
    }

    fn leave(&mut self, frame: Frame) {
        let &FrameDesc {
            state,
            streamed,
            wanted,
            ..
        } = self.get(frame);
        let single = self.count_in_cluster(frame, -1);
        match state {
            State::Clean if !single => {}
            State::Clean if streamed => self.ahead.leave(frame, &mut self.arrivals),
            State::Clean => self.clean.leave(frame, &mut self.arrivals),
            State::Dirty if single => {
                // Almost always the first one: writes are submitted in order.
                if let Some(at) = self.dirty.iter().position(|f| *f == frame) {
                    self.dirty.remove(at);
                }
            }
            State::Writing => self.writing -= 1,
            State::Reading => {
                self.reading -= 1;
                self.awaited -= u32::from(wanted);
            }
            State::Dirty | State::Empty | State::Free => {}
        }
    }

    /// A thread waits for the page since `since`, if none did before.
    pub fn want(&mut self, frame: Frame, since: Nanos) {
        let desc = self.get_mut(frame);
        let reading = desc.state == State::Reading;
        desc.again |= !reading;
        let newly = !core::mem::replace(&mut desc.wanted, true);
        if newly {
            desc.since = since;
        }
        self.awaited += u32::from(newly && reading);
    }

    /// No thread waits for the page any more, which is complete.
    pub fn unwant(&mut self, frame: Frame) {
        self.get_mut(frame).wanted = false;
    }

    /// The time that a thread has waited for the page counts from `since` on.
    pub fn set_since(&mut self, frame: Frame, since: Nanos) {
        self.get_mut(frame).since = since;
    }

    /// A complete page that a thread waits for, and whose unit was split. Each is named once.
    pub fn take_orphan(&mut self) -> Option<Frame> {
        while let Some(frame) = self.orphans.pop() {
            let desc = self.get(frame);
            if desc.wanted && matches!(desc.state, State::Clean | State::Dirty) {
                return Some(frame);
            }
        }
        None
    }

    /// A page that readahead read is used.
    pub fn use_ahead(&mut self, frame: Frame) {
        if let Some((id, _)) = self.unit_of(frame) {
            let cluster = self.clusters.get_mut(id);
            if core::mem::take(&mut cluster.ahead) && cluster.list == List::Ahead {
                self.clusters.put(id, List::Clean);
            }
        }
        self.leave(frame);
        let desc = self.get_mut(frame);
        (desc.ahead, desc.streamed) = (false, false);
        (desc.direct, desc.mark) = (false, false);
        self.enter(frame);
    }

    /// The oldest clean page, without those that streams are to use; it stays on its list.
    pub fn oldest_clean(&mut self) -> Option<Frame> {
        self.clean.oldest(&self.arrivals)
    }

    /// As [`Frames::oldest_clean`], for pages that streams are to use.
    pub fn oldest_ahead(&mut self) -> Option<Frame> {
        self.ahead.oldest(&self.arrivals)
    }

    /// The newest of those.
    pub fn newest_ahead(&mut self) -> Option<Frame> {
        self.ahead.newest(&self.arrivals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn desc(state: State) -> FrameDesc {
        FrameDesc {
            state,
            page: Some(Vpn(1)),
            ..NOTHING
        }
    }

    #[test]
    fn runs_are_contiguous_and_wrap() {
        let mut frames = Frames::new(130, 0);
        assert_eq!(frames.take_empty(100), Some((Frame(0), 100)));
        assert_eq!(frames.take_empty(100), Some((Frame(100), 30)));
        assert_eq!(frames.take_empty(1), None);
        for n in [5, 6, 128] {
            frames.put_back(Frame(n));
        }
        assert_eq!(frames.take_empty(8), Some((Frame(5), 2)));
        assert_eq!(frames.take_empty(8), Some((Frame(128), 1)));
    }

    #[test]
    fn counts_follow_the_states() {
        let mut frames = Frames::new(4, 0);
        let (first, n) = frames.take_empty(4).unwrap();
        assert_eq!(n, 4);
        frames.install(first, desc(State::Dirty));
        frames.install(Frame(1), desc(State::Clean));
        frames.install(Frame(2), desc(State::Reading));
        frames.set_free(Frame(3));
        assert_eq!((frames.backed(), frames.free(), frames.clean()), (4, 1, 1));
        frames.set_state(first, State::Writing);
        assert_eq!((frames.dirty().len(), frames.in_flight()), (0, 2));
        frames.set_state(first, State::Clean);
        frames.set_empty(Frame(1));
        assert_eq!(frames.oldest_clean(), Some(first));
        frames.set_empty(first);
        assert_eq!(frames.oldest_clean(), None);
        assert_eq!((frames.empty(), frames.in_flight()), (2, 1));
    }
}
