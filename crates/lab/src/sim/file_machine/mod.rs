//! The machine for file workloads: tasks read and write through the page cache of a kernel, and the core's file
//! readahead decides what to read ahead.
//!
//! The policy is called at the points where a kernel calls it: a read reaches a page, misses it, or meets a mark
//! (`foreswap_core::readahead::file`). Its plans are allocated in the cache and go to the disk; a task that needs a
//! page that has not arrived waits. CPU time is spent on the same CPUs as on the machine of the swap seeds. [`tasks`]
//! implements the tasks, [`io`] the requests to the disk.

mod io;
mod tasks;

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap, VecDeque};

use foreswap_core::readahead::file::{Event as Met, FilePage, Limits, OpenFile, Policy, Reading};
use foreswap_core::units::Nanos;

use crate::sim::cpus::Cpus;
use crate::sim::machine::{ActorId, SimError};
use crate::sim::page_cache::{FileId, PageCache, Segment};
use crate::sim::parameters::{Costs, Parameters};
use io::{Disk, LARGEST, Request};

/// A writer waits while more than this percentage of memory is dirty, and writeback begins at a quarter of it:
/// 2.6.20's `dirty_ratio` and `dirty_background_ratio`.
const DIRTY: u64 = 40;
const DIRTY_BEGIN: u64 = 10;
/// Pages dirty for this long are written in any case (`dirty_expire_centisecs`).
const EXPIRES: Nanos = 30_000_000_000;
/// Background writes kept waiting for the disk (`nr_requests`).
const WRITES: usize = 128;

/// The next step of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileOp {
    /// Read a part of a file.
    Read(Part),
    /// Write whole pages of a file.
    Write(Part),
    /// Wait until everything written so far is on the disk.
    Sync,
    /// Reopen a file: its readahead state is lost.
    Reopen(FileId),
    /// Use the CPU.
    Compute(Nanos),
    /// Sleep until a time.
    Sleep(Nanos),
    /// Pass the gate, or wait until another task leaves.
    Enter,
    /// Leave the gate.
    Leave,
    /// End.
    End,
}

/// Bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The file.
    pub file: FileId,
    /// The first.
    pub offset: u64,
    /// The number.
    pub bytes: u64,
}

/// The workload of all tasks together.
pub trait FileWork {
    /// The next step of task number `task`, at `now`.
    fn next(&mut self, task: usize, now: Nanos) -> FileOp;
}

/// The handling of an open file's readahead state while several tasks read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileState {
    /// All reads share the state.
    Shared,
    /// A read works on a copy, and stores it at its end over the copies of others, as in kernels until 2.6.23:
    /// parallel readers do not disturb it.
    Copied,
}

/// The setup of the machine, beside its parameters.
#[derive(Clone, Debug)]
pub struct FileSetup {
    /// File readahead.
    pub policy: Policy,
    /// The handling of its state with several readers.
    pub state: FileState,
    /// Its limits, for every file.
    pub limits: Limits,
    /// The existing files, in pages each.
    pub files: Vec<u64>,
    /// Tasks.
    pub tasks: usize,
    /// Tasks admitted by the gate at a time.
    pub gate: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Ready(ActorId),
    Go(ActorId),
    Expire,
}

/// The activity of a task.
#[derive(Debug)]
enum Doing {
    /// It asks for its next step.
    Nothing,
    Reading {
        file: FileId,
        reading: Reading,
        /// Its copy of the file's state, if it has one.
        copy: Option<Box<OpenFile>>,
        /// An event it has met and not handled.
        met: Option<Met>,
        /// A page that arrived while it waited: it holds it, whatever the cache does.
        held: Option<FilePage>,
    },
    /// Its data is in the cache.
    Writing,
    /// Until all requests before this number have ended.
    Syncing(u64),
}

#[derive(Debug)]
struct Task {
    doing: Doing,
    /// CPU time used but not elapsed yet.
    cost: Nanos,
    /// When it got its CPU.
    since: Nanos,
    on_cpu: bool,
    ended: bool,
}

/// A running machine with files.
#[derive(Debug)]
pub struct FileMachine<W> {
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// The workload.
    pub work: W,
    /// The page cache.
    pub cache: PageCache,
    disk: Disk,
    open: Vec<OpenFile>,
    cpus: Cpus,
    costs: Costs,
    policy: Policy,
    state: FileState,
    limits: Limits,
    tasks: Vec<Task>,
    running: usize,
    /// Tasks that wait for pages.
    waiting: Vec<(ActorId, FileId, u64)>,
    /// Writers that wait for less dirty memory.
    throttled: VecDeque<ActorId>,
    /// Tasks that wait for writes, and the request up to which they wait.
    syncing: Vec<(ActorId, u64)>,
    /// Writes in flight.
    writes: BTreeSet<u64>,
    /// The position of writeback.
    written: (FileId, u64),
    /// Whether a check for old dirty pages is scheduled, and too old pages.
    ages: bool,
    expired: u64,
    /// Free places behind the gate, and the tasks that wait for one.
    gate: usize,
    queued: VecDeque<ActorId>,
    /// Pieces to read, kept for their memory.
    pieces: Vec<Segment>,
}

impl<W: FileWork> FileMachine<W> {
    /// A machine with nothing in its cache.
    pub fn new(parameters: &Parameters, setup: FileSetup, work: W) -> Self {
        let mut cache = PageCache::new(parameters.pages().max(1));
        let mut disk = Disk::new(&parameters.device);
        let mut open = Vec::new();
        for &pages in &setup.files {
            cache.add_file(pages);
            disk.add_file(pages);
            open.push(OpenFile::new(setup.policy, setup.limits));
        }
        let task = |_| Task {
            doing: Doing::Nothing,
            cost: 0,
            since: 0,
            on_cpu: false,
            ended: false,
        };
        let mut machine = FileMachine {
            now: 0,
            order: 0,
            events: BinaryHeap::new(),
            work,
            cache,
            disk,
            open,
            cpus: Cpus::new(parameters.cpus),
            costs: parameters.costs,
            policy: setup.policy,
            state: setup.state,
            limits: setup.limits,
            tasks: (0..setup.tasks).map(task).collect(),
            running: setup.tasks,
            waiting: Vec::new(),
            throttled: VecDeque::new(),
            syncing: Vec::new(),
            writes: BTreeSet::new(),
            written: (FileId(0), 0),
            ages: false,
            expired: 0,
            gate: setup.gate,
            queued: VecDeque::new(),
            pieces: Vec::new(),
        };
        for n in 0..setup.tasks {
            machine.plan(0, Event::Ready(ActorId(n as u32)));
        }
        machine
    }

    /// The virtual clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Read requests dispatched so far, and their pages.
    pub fn reads(&self) -> (u64, u64) {
        self.disk.done[0]
    }

    /// All tasks have ended.
    pub fn is_done(&self) -> bool {
        self.running == 0
    }

    /// Runs until `until` is true.
    ///
    /// # Errors
    ///
    /// No event is left.
    pub fn run(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), SimError> {
        while !until(self) {
            let event = self.events.peek().map(|Reverse(event)| event.0);
            match (event, self.disk.next_end()) {
                (None, None) => return Err(SimError::Stuck { at: self.now }),
                (Some(event), end) if end.is_none_or(|end| event <= end) => {
                    if let Some(Reverse((now, _, event))) = self.events.pop() {
                        self.now = now;
                        self.on_event(event);
                    }
                }
                _ => {
                    if let Some((now, request)) = self.disk.end() {
                        self.now = now;
                        self.on_completion(request);
                    }
                }
            }
        }
        Ok(())
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    fn horizon(&self) -> Nanos {
        let event = self.events.peek().map(|Reverse(event)| event.0);
        let end = self.disk.next_end();
        event.into_iter().chain(end).min().unwrap_or(Nanos::MAX)
    }

    fn on_event(&mut self, event: Event) {
        match event {
            Event::Go(who) => self.go(who),
            Event::Expire => {
                self.ages = false;
                self.expired = self.cache.dirty();
                self.write_out();
            }
            Event::Ready(who) => {
                if self.cpus.enter(who) {
                    self.start(who, self.now);
                    self.go(who);
                }
            }
        }
    }

    fn start(&mut self, who: ActorId, at: Nanos) {
        let task = &mut self.tasks[who.0 as usize];
        task.on_cpu = true;
        task.since = at;
    }

    /// Gives the CPU up.
    fn leave(&mut self, who: ActorId) {
        if !std::mem::take(&mut self.tasks[who.0 as usize].on_cpu) {
            return;
        }
        if let Some(next) = self.cpus.leave() {
            let at = self.now + self.costs.switch;
            self.start(next, at);
            self.plan(at, Event::Go(next));
        }
    }

    /// A task that waited continues once there is a CPU.
    fn wake(&mut self, who: ActorId) {
        self.plan(self.now + self.costs.switch, Event::Ready(who));
    }

    fn on_completion(&mut self, request: Request) {
        let segment = request.segment;
        if request.write {
            self.cache.end_write(segment);
            self.writes.remove(&request.number);
            self.write_out();
            self.settle_writers();
            return;
        }
        self.cache.end_read(segment);
        let came = segment.start..segment.start + segment.pages;
        let waiting = std::mem::take(&mut self.waiting);
        for (who, file, page) in waiting {
            if file != segment.file || !came.contains(&page) {
                self.waiting.push((who, file, page));
                continue;
            }
            if let Doing::Reading { held, .. } = &mut self.tasks[who.0 as usize].doing {
                *held = Some(FilePage(page));
            }
            self.plan(
                self.now + self.costs.complete + self.costs.switch,
                Event::Ready(who),
            );
        }
    }

    fn part_of_memory(&self, percent: u64) -> u64 {
        self.cache.limit() * percent / 100
    }

    /// Writes while too much memory is dirty, or some for too long.
    fn write_out(&mut self) {
        let begin = self.part_of_memory(DIRTY_BEGIN);
        while self.disk.waiting_writes() < WRITES
            && (self.cache.unwritten() > begin || self.expired > 0)
        {
            if !self.write_next() {
                break;
            }
        }
        if self.cache.dirty() == 0 {
            self.expired = 0;
        } else if !std::mem::replace(&mut self.ages, true) {
            self.plan(self.now + EXPIRES, Event::Expire);
        }
    }

    /// Submits the next dirty pages. False if there are none.
    fn write_next(&mut self) -> bool {
        let Some(segment) = self.cache.begin_write(self.written, LARGEST) else {
            return false;
        };
        self.written = (segment.file, segment.start + segment.pages);
        self.expired = self.expired.saturating_sub(segment.pages);
        self.writes.insert(self.disk.next_number());
        self.disk.submit(self.now, true, segment);
        true
    }

    /// Tasks that waited for writes continue when these have ended.
    fn settle_writers(&mut self) {
        let most = self.part_of_memory(DIRTY);
        while self.cache.unwritten() <= most {
            let Some(who) = self.throttled.pop_front() else {
                break;
            };
            self.wake(who);
        }
        let first = self.writes.first().copied().unwrap_or(u64::MAX);
        for (who, until) in std::mem::take(&mut self.syncing) {
            if first < until {
                self.syncing.push((who, until));
            } else {
                self.wake(who);
            }
        }
    }
}

#[cfg(test)]
mod tests;
