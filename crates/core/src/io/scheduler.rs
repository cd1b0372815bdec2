//! Which request the disk gets next, and how much it has in flight.
//!
//! A disk serves requests in about the order in which it gets them. A fault on one page waits for everything that
//! streams and reclaim have submitted before. While only streams fault, that is well: many large requests are what a
//! disk is best at. While threads fault at random ([`RandomFaults`]), background requests are cut into pieces, and only
//! a few are in flight. The others wait here, in order, until a thread comes to wait for one of them. A disk that
//! completes in batches gets batches ([`CompletionBatching`]).
//!
//! There are three classes. A *synchronous* read has a thread that waits for it: it is not limited, and if the queue
//! is full it takes the next free entry, ahead of the other classes. One exception: while other processes on the same
//! disk fault at random, a read of a huge page is limited as background I/O is. A stream waits for most of its huge
//! pages where it has few ahead, and would otherwise give the disk as much as before. *Writes* go before
//! *background reads*, as they make the room for everything else.

use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;

use super::completion_batching::CompletionBatching;
use super::pipe::Pipe;
use super::random_faults::{RandomFaults, ReclaimClock};
use super::requests::Requests;
use crate::heuristics::{Heuristic, Heuristics};
use crate::units::{Frame, Nanos, PAGE_SIZE, Slot};
use crate::world::{Clock, Disk, IoId, Store, StoreId};

/// How much background I/O the disk may have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepthLimit {
    /// Pages of one request.
    pub request: usize,
    /// Pages in flight when no further request begins.
    pub in_flight: u32,
}

/// The limits of background I/O.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Requests that the queue of the disk takes.
    pub queue: usize,
    /// Reads while this process faults at random. 64 KiB are read in the time of a few single pages.
    pub beside_random_faults: DepthLimit,
    /// Writes while this process faults at random. They are gathered (`mm::submit`), since a write keeps the disk from
    /// the reads behind it, and many small writes do so more often than a few large ones.
    pub writes_beside_random_faults: DepthLimit,
    /// Both while only other processes fault at random: each process gets its share.
    pub beside_others: DepthLimit,
}

impl Config {
    /// For a disk whose queue has this many entries.
    pub fn new(queue: u32) -> Self {
        let limit = |request, in_flight| DepthLimit { request, in_flight };
        Config {
            queue: queue as usize,
            beside_random_faults: limit(16, 64),
            writes_beside_random_faults: limit(128, 512),
            beside_others: limit(64, 320),
        }
    }
}

/// The processes that fault at random.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Contention {
    /// No process on this disk.
    None,
    /// Other processes only.
    Others,
    /// This process.
    Own,
}

/// The classes of requests that can wait here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    Synchronous,
    Write,
    Background,
}

/// The outcome for a request that was to be dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Dispatch {
    /// The disk has it.
    Started,
    /// The disk may not have it yet, or its queue is full.
    Blocked,
    /// Pages of this read were discarded while it waited. Their slots may belong to other pages by now and must not
    /// be read: the caller ends the request and reads the other pages anew.
    Stale(IoId),
}

/// The requests in flight, and those that wait.
pub(crate) struct IoScheduler {
    config: Config,
    requests: Requests,
    random_faults: RandomFaults,
    /// Other processes on the same disk fault at random.
    others_fault: bool,
    batching: CompletionBatching,
    /// What was measured of each store that was read from.
    pipes: BTreeMap<StoreId, Pipe>,
    /// When the disk was last observed.
    observed_at: Nanos,
    /// The disk is to complete its background I/O before more begins.
    holds_back: bool,
    /// Pages of background I/O in flight.
    background_pages: u32,
    synchronous: VecDeque<IoId>,
    writes: VecDeque<IoId>,
    background: VecDeque<IoId>,
    heuristics: Heuristics,
}

impl IoScheduler {
    pub fn new(config: Config) -> Self {
        IoScheduler {
            config,
            requests: Requests::default(),
            random_faults: RandomFaults::default(),
            others_fault: false,
            batching: CompletionBatching::default(),
            pipes: BTreeMap::new(),
            observed_at: 0,
            holds_back: false,
            background_pages: 0,
            synchronous: VecDeque::new(),
            writes: VecDeque::new(),
            background: VecDeque::new(),
            heuristics: Heuristics::default(),
        }
    }

    /// Use only these heuristics.
    #[cfg(feature = "ablate")]
    pub fn set_heuristics(&mut self, heuristics: Heuristics) {
        self.heuristics = heuristics;
    }

    /// Requests that the disk has.
    pub fn in_flight(&self) -> usize {
        let waiting = self.synchronous.len() + self.writes.len() + self.background.len();
        self.requests.in_flight() - waiting
    }

    /// When the oldest request began that has not ended.
    pub fn oldest(&self) -> Option<Nanos> {
        self.requests.oldest()
    }

    /// Requests on an area have not ended.
    pub fn any_on(&self, area: u8) -> bool {
        self.requests.any_on(area)
    }

    /// Time of a read from its dispatch to its end, smoothed.
    pub fn latency(&self) -> Nanos {
        self.requests.latency()
    }

    /// The disk completes in batches and has one: neither readahead nor writes begin now.
    pub fn holds_back(&self) -> bool {
        self.holds_back
    }

    /// A synchronous read waits for an entry of the queue: no other request may take it.
    pub fn synchronous_waits(&self) -> bool {
        !self.synchronous.is_empty()
    }

    /// A page was missed that no readahead predicted.
    pub fn on_random_fault(&mut self, clock: ReclaimClock, now: Nanos) {
        self.random_faults.on_fault(clock, now);
    }

    /// The processes that fault at random now.
    pub fn contention(&self, clock: ReclaimClock) -> Contention {
        let detects = self.heuristics.has(Heuristic::RandomFaults);
        if detects && self.random_faults.are_frequent(clock) {
            Contention::Own
        } else if self.others_fault {
            Contention::Others
        } else {
            Contention::None
        }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Nanos) {
        self.random_faults.expire(now);
    }

    /// The state of the disk, and whether other processes on it fault at random. Memory that compresses is no disk
    /// to wait for (`has_memory`).
    pub fn observe(
        &mut self,
        disk: Disk,
        others_fault: bool,
        has_memory: bool,
        clock: ReclaimClock,
        now: Nanos,
    ) {
        self.others_fault = others_fault;
        let since = core::mem::replace(&mut self.observed_at, now);
        let pipes = self.pipes.values().filter(|pipe| pipe.was_used(since));
        let way = || pipes.map(Pipe::way).max().unwrap_or(0);
        let batch = self.batching.observe(disk, way, now)
            && self.heuristics.has(Heuristic::CompletionBatching);
        self.holds_back = batch && self.contention(clock) == Contention::None && !has_memory;
    }

    fn limit(&self, contention: Contention, write: bool) -> Option<DepthLimit> {
        let (limit, heuristic) = match (contention, write) {
            (Contention::Own, true) => {
                let limit = self.config.writes_beside_random_faults;
                (limit, Heuristic::WriteDepth)
            }
            (Contention::Own, false) => (self.config.beside_random_faults, Heuristic::ReadDepth),
            (Contention::Others, _) => (self.config.beside_others, Heuristic::OthersDepth),
            (Contention::None, _) => return None,
        };
        Some(limit).filter(|_| self.heuristics.has(heuristic))
    }

    fn is_full(&self, contention: Contention, write: bool) -> bool {
        let limit = self.limit(contention, write);
        limit.is_some_and(|limit| self.background_pages >= limit.in_flight)
    }

    /// The most pages of a background request that could have `most`.
    pub fn request_size(&self, contention: Contention, most: usize, write: bool) -> usize {
        let limit = self.limit(contention, write);
        limit.map_or(most, |limit| most.min(limit.request))
    }

    /// Whether one more write may begin. Half of the queue is for reads, and where writes wait already there is
    /// no need to begin more.
    pub fn may_write(&self) -> bool {
        let places = self.config.queue / 2;
        let place = self.in_flight() <= places && self.writes.is_empty();
        place && !self.synchronous_waits() && !self.holds_back
    }

    /// A read. It counts for the latency from its dispatch on.
    pub fn begin_read(
        &mut self,
        slot: Slot,
        frames: impl Iterator<Item = Frame>,
        now: Nanos,
    ) -> IoId {
        self.requests.begin(slot, false, frames, now)
    }

    /// A write.
    pub fn begin_write(
        &mut self,
        slot: Slot,
        frames: impl Iterator<Item = Frame>,
        now: Nanos,
    ) -> IoId {
        self.requests.begin(slot, true, frames, now)
    }

    /// Mark a read as one of swapoff.
    pub fn set_drain(&mut self, io: IoId) {
        self.requests.set_drain(io);
    }

    /// The frames of a request that has begun.
    pub fn frames(&self, io: IoId) -> &[Frame] {
        self.requests.frames(io)
    }

    /// The request did not start.
    pub fn cancel(&mut self, io: IoId) {
        self.requests.cancel(io);
    }

    /// Where the disk is shared, a part of a huge page counts as background I/O.
    fn counts_as_background(&self, contention: Contention, io: IoId) -> bool {
        let huge = self.requests.frames(io).len() > self.config.beside_random_faults.request;
        contention == Contention::Others && huge
    }

    /// Dispatch a read that a thread waits for, as soon as the disk may have it. A single page does not wait for the
    /// held back parts of a huge page.
    pub fn start_synchronous(
        &mut self,
        queue: &mut (impl Store + Clock),
        contention: Contention,
        io: IoId,
        is_stale: impl Fn(Frame) -> bool,
    ) -> Dispatch {
        let shared = contention == Contention::Others;
        let passes = shared && !self.counts_as_background(contention, io);
        let dispatch = match self.synchronous_waits() && !passes {
            true => Dispatch::Blocked,
            false => self.try_synchronous(queue, contention, io, is_stale),
        };
        if dispatch == Dispatch::Blocked {
            self.synchronous.push_back(io);
        }
        dispatch
    }

    fn try_synchronous(
        &mut self,
        queue: &mut (impl Store + Clock),
        contention: Contention,
        io: IoId,
        is_stale: impl Fn(Frame) -> bool,
    ) -> Dispatch {
        let counts = self.counts_as_background(contention, io);
        match counts && self.is_full(contention, false) {
            true => Dispatch::Blocked,
            false => self.start_unless_stale(queue, io, counts, is_stale),
        }
    }

    /// Dispatch a read at once or not at all.
    pub fn start_at_once(&mut self, queue: &mut (impl Store + Clock), io: IoId) -> bool {
        !self.synchronous_waits() && self.start(queue, io, false)
    }

    /// Dispatch a background request, now or later. False: the queue is full.
    pub fn start_background(
        &mut self,
        queue: &mut (impl Store + Clock),
        contention: Contention,
        io: IoId,
    ) -> bool {
        let write = self.requests.what(io).is_some_and(|(_, write)| write);
        let none_waits =
            !self.synchronous_waits() && self.writes.is_empty() && self.background.is_empty();
        let started = !self.is_full(contention, write) && none_waits && self.start(queue, io, true);
        let waits = !started && self.limit(contention, write).is_some();
        if waits {
            match write {
                true => self.writes.push_back(io),
                false => self.background.push_back(io),
            }
        }
        started || waits
    }

    fn start(&mut self, queue: &mut (impl Store + Clock), io: IoId, background: bool) -> bool {
        let Some((slot, write)) = self.requests.what(io) else {
            return true;
        };
        let started = match write {
            true => queue.write(io, slot, self.requests.frames(io)),
            false => queue.read(io, slot, self.requests.frames(io)),
        };
        if started && background {
            self.background_pages += self.requests.set_background(io);
        }
        if started && !write {
            let (now, store) = (queue.now(), queue.store_of(slot));
            let pipe = self.pipes.entry(store).or_default();
            self.requests.set_since(io, now);
            self.requests.set_started(io, store, pipe.on_start(now));
        }
        started
    }

    fn start_unless_stale(
        &mut self,
        queue: &mut (impl Store + Clock),
        io: IoId,
        background: bool,
        is_stale: impl Fn(Frame) -> bool,
    ) -> Dispatch {
        let read = self.requests.what(io).is_some_and(|(_, write)| !write);
        let mut frames = self.requests.frames(io).iter();
        if read && frames.any(|&frame| is_stale(frame)) {
            return Dispatch::Stale(io);
        }
        match self.start(queue, io, background) {
            true => Dispatch::Started,
            false => Dispatch::Blocked,
        }
    }

    /// Dispatch the next synchronous read that waits. It stays at the front until [`IoScheduler::dispatched`].
    pub fn dispatch_synchronous(
        &mut self,
        queue: &mut (impl Store + Clock),
        contention: Contention,
        is_stale: impl Fn(Frame) -> bool,
    ) -> Dispatch {
        match self.synchronous.front() {
            Some(&io) => self.try_synchronous(queue, contention, io, is_stale),
            None => Dispatch::Blocked,
        }
    }

    /// As [`IoScheduler::dispatch_synchronous`], the next of the other requests, writes first.
    pub fn dispatch_background(
        &mut self,
        queue: &mut (impl Store + Clock),
        contention: Contention,
        is_stale: impl Fn(Frame) -> bool,
    ) -> (Class, Dispatch) {
        let write = self.writes.front();
        let class = match write {
            Some(_) => Class::Write,
            None => Class::Background,
        };
        let dispatch = match write.or_else(|| self.background.front()) {
            Some(&io) if !self.is_full(contention, class == Class::Write) => {
                self.start_unless_stale(queue, io, true, is_stale)
            }
            _ => Dispatch::Blocked,
        };
        (class, dispatch)
    }

    /// The request at the front of its class waits no longer.
    pub fn dispatched(&mut self, class: Class) {
        match class {
            Class::Synchronous => self.synchronous.pop_front(),
            Class::Write => self.writes.pop_front(),
            Class::Background => self.background.pop_front(),
        };
    }

    /// Take the next background read that waits, from number `at` on, of which a frame is `concerned`. `at` is where to
    /// continue.
    pub fn take_background(
        &mut self,
        at: &mut usize,
        concerned: impl Fn(&[Frame]) -> bool,
    ) -> Option<IoId> {
        while let Some(&io) = self.background.get(*at) {
            if concerned(self.requests.frames(io)) {
                return self.background.remove(*at);
            }
            *at += 1;
        }
        None
    }

    /// A request has ended: its first slot, whether it was a write, its frames, and whether it was a read of swapoff.
    /// The list of frames goes back with [`IoScheduler::recycle`].
    pub fn end(&mut self, io: IoId) -> Option<Ended> {
        let drain = self.requests.is_drain(io);
        self.background_pages -= self.requests.background(io);
        let (slot, write, frames) = self.requests.end(io)?;
        Some(Ended {
            slot,
            write,
            drain,
            frames,
        })
    }

    /// The disk has ended a request at `now`. `arrived`: it has transferred all bytes.
    pub fn on_end(&mut self, io: IoId, arrived: bool, now: Nanos) {
        if let Some((store, started, bytes)) = self.requests.take_started(io)
            && let Some(pipe) = self.pipes.get_mut(&store)
        {
            pipe.on_end(started, now, if arrived { bytes } else { 0 });
        }
    }

    /// Pages that fill the pipe to a store, what it delivers in its latency, and the time in which a reader has to use
    /// them up. Nothing is known before the first read.
    pub fn window(&self, store: StoreId) -> (u64, Nanos) {
        let pipe = self.pipes.get(&store);
        pipe.map_or((0, 0), |pipe| {
            (pipe.window() / PAGE_SIZE as u64, pipe.horizon())
        })
    }

    /// A read that has ended counts for the latency.
    pub fn note_latency(&mut self, io: IoId, now: Nanos) {
        self.requests.note_latency(io, now);
    }

    /// Gives the list of frames of a request that has ended back.
    pub fn recycle(&mut self, io: IoId, frames: Vec<Frame>) {
        self.requests.recycle(io, frames);
    }
}

/// A request that has ended.
pub(crate) struct Ended {
    pub slot: Slot,
    pub write: bool,
    pub drain: bool,
    pub frames: Vec<Frame>,
}
