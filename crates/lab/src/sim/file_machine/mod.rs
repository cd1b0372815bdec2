//! The machine at work on files: tasks read and write through the page cache of a kernel, and the
//! core's file readahead decides what is read along.
//!
//! The policy is called at the very moments at which a kernel calls it: a read comes to a page, misses
//! it, or meets a mark (`foreswap_core::readahead::file`). What it plans is allocated in the cache and
//! goes to the disk; whoever needs a page that is not there yet waits. CPU time is spent on the same
//! CPUs as on the machine of the swap seeds. What tasks do is in [`tasks`], the way of requests to the
//! disk in [`io`].

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

/// A writer waits while more than this part of memory is not written, and the system begins to write
/// at a quarter of it: 2.6.20's `dirty_ratio` and `dirty_background_ratio`, in percent.
const DIRTY: u64 = 40;
const DIRTY_BEGIN: u64 = 10;
/// What was not written for so long is, however little it is (`dirty_expire_centisecs`).
const EXPIRES: Nanos = 30_000_000_000;
/// Writes that the system keeps waiting for the disk (`nr_requests`).
const WRITES: usize = 128;

/// The next thing that a task does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileOp {
    /// Read a part of a file.
    Read(Part),
    /// Write whole pages of a file.
    Write(Part),
    /// Wait until all that is written so far is on the disk.
    Sync,
    /// Open a file again: what its readahead remembers is gone.
    Reopen(FileId),
    /// Use the CPU.
    Compute(Nanos),
    /// Sleep until a moment.
    Sleep(Nanos),
    /// Pass the gate, or wait until another task leaves.
    Enter,
    /// Leave what is behind the gate.
    Leave,
    /// Nothing more.
    End,
}

/// Bytes of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Part {
    /// The file.
    pub file: FileId,
    /// The first.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
}

/// What the tasks do, all of them together.
pub trait FileWork {
    /// What task number `task` does next, from `now` on.
    fn next(&mut self, task: usize, now: Nanos) -> FileOp;
}

/// What happens to the state that a policy has of an open file while several tasks read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileState {
    /// All reads work on the one state.
    Shared,
    /// A read takes a copy, works on that, and puts it back when it ends, over whatever others have put
    /// there: as kernels did until 2.6.23, so that who reads beside it does not disturb it.
    Copied,
}

/// What such a machine is given beside its parameters.
#[derive(Clone, Debug)]
pub struct FileSetup {
    /// File readahead.
    pub policy: Policy,
    /// What it remembers of a file that several read.
    pub state: FileState,
    /// Its limits, for every file.
    pub limits: Limits,
    /// The files that are there, in pages each.
    pub files: Vec<u64>,
    /// Tasks.
    pub tasks: usize,
    /// Tasks that may be behind the gate at a time.
    pub gate: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Ready(ActorId),
    Go(ActorId),
    Expire,
}

/// What a task is about.
#[derive(Debug)]
enum Doing {
    /// It asks for its next step.
    Nothing,
    Reading {
        file: FileId,
        reading: Reading,
        /// Its copy of the file's state, if it has one.
        copy: Option<Box<OpenFile>>,
        /// What it has met and not dealt with.
        met: Option<Met>,
        /// A page that came while it waited: it holds it, whatever the cache does.
        held: Option<FilePage>,
    },
    /// What it wrote is in the cache.
    Writing,
    /// Until all requests before this number have ended.
    Syncing(u64),
}

#[derive(Debug)]
struct Task {
    doing: Doing,
    /// CPU time that it has used and that has not passed yet.
    cost: Nanos,
    /// Since when it has its CPU.
    since: Nanos,
    on_cpu: bool,
    ended: bool,
}

/// A machine at work on files.
#[derive(Debug)]
pub struct FileMachine<W> {
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// What the tasks do.
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
    /// Who waits for which page.
    waiting: Vec<(ActorId, FileId, u64)>,
    /// Who waits until there is less to be written.
    throttled: VecDeque<ActorId>,
    /// Who waits for writes, and up to which request.
    syncing: Vec<(ActorId, u64)>,
    /// Writes that have not ended.
    writes: BTreeSet<u64>,
    /// Where the system goes on to write.
    written: (FileId, u64),
    /// Whether what is not written will be looked at for its age, and pages that are too old.
    ages: bool,
    expired: u64,
    /// Free places behind the gate, and who waits for one.
    gate: usize,
    queued: VecDeque<ActorId>,
    /// Pieces to be read, kept for their memory.
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

    /// Read requests that the disk was given so far, and their pages.
    pub fn reads(&self) -> (u64, u64) {
        self.disk.done[0]
    }

    /// All tasks have ended.
    pub fn is_done(&self) -> bool {
        self.running == 0
    }

    /// Goes on until `until` says so.
    ///
    /// # Errors
    ///
    /// Nothing happens any more.
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

    /// Who has waited goes on as soon as there is a CPU.
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

    /// The system writes while more than a part of memory is not written, or some of it for too long.
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

    /// The next dirty pages go to the disk. False when there are none.
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

    /// Who waited for writes goes on when they have ended.
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
