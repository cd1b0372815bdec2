//! The machine on which a trace is replayed: programs, the engine that serves them, and one device, in virtual time.
//!
//! Each task executes its records in order, `think` nanoseconds per touch. The times of the trace are not used,
//! because they contain the waits of the recording machine. A task that touches an absent page waits until the engine
//! has mapped it, while the others continue: each has a CPU of its own, and so has the engine, which is one thread
//! and does one thing at a time. With a
//! number of CPUs ([`Setup::cpus`]) they share these: each slice of a task and each round of the engine takes the CPU that
//! is free first. The engine is the shipped core, driven in the order of the pager. All processes
//! share one memory manager. A page contains a number that changes with each write, and each touch is compared with
//! the last write.
//!
//! A larger machine can replace [`Machine`]: records go in one by one, figures come out.

use std::collections::{BTreeSet, HashMap, VecDeque};

use foreswap_core::readahead::Policy;
use foreswap_core::units::{LEAF_PAGES, Nanos, PageRange, Vpn};
use foreswap_core::world::Mmu as _;
use foreswap_core::{Config, Mm, Outcome, ReclaimPolicy, Swapoff, Thp};

use super::device::{COSTS, Device};
use super::elsewhere::Watch;
use super::world::{Simulated, System};
use crate::trace::{Event, Found, Record};

/// log2 of the pages of an address space, and log2 of the number of spaces: together they make addresses of 64 bits.
pub const SPACE_SHIFT: u32 = 36;
const SPACES: u32 = 1 << 16;
/// The most records that wait for their task.
const AHEAD: usize = 1 << 16;
/// I/Os in flight, as in the engine.
const DEPTH: u32 = 128;
/// The most pages of a first touch, as in the engine.
const FIRST_TOUCH: u32 = 256;
/// Clusters of frames for huge pages, as in the engine: for a quarter of memory, within limits.
const CLUSTERS: std::ops::RangeInclusive<u64> = 8..=256;
/// How often the engine looks at stalled faults.
const STALLED: Nanos = 1_000_000;
/// How long a fault may wait for memory.
pub(super) const FULL_TIMEOUT: Nanos = 10_000_000_000;
/// Steps of the engine without progress of a task that count as an error.
const STUCK: u32 = 1_000_000;

/// One combination of settings.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// In pages.
    pub memory: u64,
    /// The policy with its largest window.
    pub readahead: Policy,
    /// The huge page mode.
    pub thp: Thp,
    /// The order of eviction.
    pub reclaim: ReclaimPolicy,
    /// The device of the swap area.
    pub device: Device,
    /// Time of a task between two touches.
    pub think: Nanos,
    /// CPUs that the tasks and the engine share; 0: each has its own.
    pub cpus: usize,
    /// The system below.
    pub system: System,
    /// The heuristics of the core that are in use.
    #[cfg(feature = "ablate")]
    pub heuristics: foreswap_core::heuristics::Heuristics,
}

/// The result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Until the last task ended.
    pub elapsed: Nanos,
    /// Time that tasks waited for pages, summed.
    pub waited: Nanos,
    /// Touches.
    pub touches: u64,
    /// Faults that waited for a read.
    pub major: u64,
    /// Faults on pages in frames.
    pub minor: u64,
    /// First touches.
    pub zero: u64,
    /// Pages read.
    pub read_pages: u64,
    /// Pages written.
    pub written_pages: u64,
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Pages that readahead read.
    pub ahead: u64,
    /// Of these, pages used before their eviction.
    pub ahead_used: u64,
    /// Huge pages read whole.
    pub huge_in: u64,
    /// Huge pages written whole.
    pub huge_out: u64,
    /// Huge pages split.
    pub splits: u64,
    /// Maximum of resident pages.
    pub peak: u64,
    /// File pages of the trace; there is no page cache here.
    pub files_left_out: u64,
    /// Records that the recorder lost.
    pub lost: u64,
}

/// One step of a task.
#[derive(Clone, Debug)]
pub enum Op {
    /// A touch of a byte of a page.
    Touch {
        page: Vpn,
        byte: u16,
        write: bool,
    },
    Map(PageRange),
    Unmap(PageRange),
    Discard(PageRange),
    Move(PageRange, Vpn),
    End(u32),
    /// swapoff begins.
    #[cfg(feature = "ablate")]
    Drain,
}

#[derive(Default)]
pub(super) struct Task {
    space: u32,
    /// When it continues.
    pub(super) ready: Nanos,
    pub(super) ops: VecDeque<Op>,
    /// Since when it waits for the page of its first op.
    pub(super) since: Option<Nanos>,
    /// It is in the list of runnable tasks.
    listed: bool,
}

/// A running machine.
pub struct Machine {
    setup: Setup,
    pub(super) mm: Mm,
    pub(super) w: Simulated,
    pub(super) tasks: Vec<Task>,
    /// When each CPU becomes free.
    cpus: Vec<Nanos>,
    /// Runnable tasks, by time.
    runnable: BTreeSet<(Nanos, u32)>,
    waiting: HashMap<Vpn, Vec<u32>>,
    living: HashMap<u32, u32>,
    /// Faults on their way to the engine.
    messages: VecDeque<(Nanos, Vpn, u16)>,
    /// The engine has more work at once.
    awake: bool,
    /// Waiting records.
    pub(super) queued: usize,
    /// The time of the last event.
    clock: Nanos,
    writes: u64,
    stuck: u32,
    figures: Figures,
    /// Who hears how long faults take.
    pub(super) watch: Option<Watch>,
}

impl Machine {
    /// The initial state.
    pub fn new(setup: Setup) -> Self {
        Self::patient(setup, FULL_TIMEOUT)
    }

    /// The same, where a fault may wait for memory for `full_timeout`.
    pub(super) fn patient(setup: Setup, full_timeout: Nanos) -> Self {
        let frames = (setup.memory / 4).clamp(64, 32768) as u32;
        let quarter = setup.memory / 4 / LEAF_PAGES as u64;
        let (frames, clusters) = match setup.thp {
            Thp::Never => (frames, 0),
            // Clusters follow whole clusters of single frames.
            Thp::Adaptive | Thp::Always => (
                frames.next_multiple_of(LEAF_PAGES as u32),
                quarter.clamp(*CLUSTERS.start(), *CLUSTERS.end()) as u32,
            ),
        };
        let config = Config {
            frames,
            depth: DEPTH,
            readahead: setup.readahead,
            reclaim: setup.reclaim,
            full_timeout,
            first_touch: FIRST_TOUCH,
            swapoff: Swapoff::Stream,
            thp: setup.thp,
            clusters,
        };
        let mm = Mm::new(config, setup.memory);
        #[cfg(feature = "ablate")]
        let mm = mm.with_heuristics(setup.heuristics);
        let (device, system) = (setup.device, setup.system);
        Machine {
            setup,
            mm,
            w: Simulated::new(setup.memory, frames, clusters, device, system),
            cpus: vec![0; setup.cpus],
            tasks: Vec::new(),
            runnable: BTreeSet::new(),
            waiting: HashMap::new(),
            living: HashMap::new(),
            messages: VecDeque::new(),
            awake: false,
            queued: 0,
            clock: 0,
            writes: 0,
            stuck: 0,
            figures: Figures::default(),
            watch: None,
        }
    }

    /// Takes the next record of the trace, and runs as far as possible.
    ///
    /// # Errors
    ///
    /// The record cannot be replayed, or the core broke a rule.
    pub fn record(&mut self, record: &Record) -> Result<(), String> {
        if let Event::Start(start) = &record.event {
            if start.space >= SPACES {
                let space = start.space;
                return Err(format!(
                    "address space {space} cannot be replayed; expected one below {SPACES}"
                ));
            }
            self.start(start.space);
            return Ok(());
        }
        let space = self
            .tasks
            .get(record.task as usize)
            .map_or(0, |task| task.space);
        let place = |page: Vpn| match page.0 >> SPACE_SHIFT {
            0 => Ok(Vpn(u64::from(space) << SPACE_SHIFT | page.0)),
            _ => Err(format!(
                "page {:#x} cannot be replayed; expected one below {:#x}",
                page.0,
                1u64 << SPACE_SHIFT
            )),
        };
        let range = |pages: &PageRange| {
            Ok::<_, String>(place(pages.start)?..place(Vpn(pages.end.0 - 1))?.plus(1))
        };
        match &record.event {
            Event::Touch { page, found, write } => {
                let write = *write || *found == Found::New;
                self.push(
                    record.task,
                    Op::Touch {
                        page: place(*page)?,
                        byte: 0,
                        write,
                    },
                )?;
            }
            // Mapped before it was touched, by a manager that predicted the touches.
            Event::Prefetched(pages) => {
                for page in foreswap_core::units::pages(&range(pages)?) {
                    self.push(
                        record.task,
                        Op::Touch {
                            page,
                            byte: 0,
                            write: false,
                        },
                    )?;
                }
            }
            Event::Map(pages) => self.push(record.task, Op::Map(range(pages)?))?,
            Event::Unmap(pages) => self.push(record.task, Op::Unmap(range(pages)?))?,
            Event::Discard(pages) => self.push(record.task, Op::Discard(range(pages)?))?,
            Event::Move { from, to } => {
                let length = from.end.0 - from.start.0;
                let target = range(&(*to..to.plus(length)))?;
                self.push(record.task, Op::Move(range(from)?, target.start))?;
            }
            Event::End => self.push(record.task, Op::End(space))?,
            Event::File { pages, .. } => {
                let pages = pages.end.0 - pages.start.0;
                self.figures.files_left_out = self.figures.files_left_out.saturating_add(pages);
            }
            Event::Lost(records) => {
                self.figures.lost = self.figures.lost.saturating_add(*records);
            }
            Event::Start(_) | Event::Evicted(_) => {}
        }
        Ok(())
    }

    /// A task begins.
    pub(super) fn start(&mut self, space: u32) {
        let ready = self.clock;
        self.tasks.push(Task {
            space,
            ready,
            ..Task::default()
        });
        *self.living.entry(space).or_default() += 1;
    }

    pub(super) fn push(&mut self, number: u32, op: Op) -> Result<(), String> {
        let clock = self.clock;
        let Some(task) = self.tasks.get_mut(number as usize) else {
            return Err(format!("task {number} has not started"));
        };
        task.ops.push_back(op);
        self.queued += 1;
        if task.ops.len() == 1 {
            // Its record was read only now; it cannot have been executed earlier.
            task.ready = task.ready.max(clock);
            self.list(number);
        }
        while self.queued > AHEAD {
            self.step()?;
        }
        Ok(())
    }

    /// The trace has ended: finish all work.
    ///
    /// # Errors
    ///
    /// As [`Machine::record`].
    pub fn finish(mut self) -> Result<Figures, String> {
        while self.queued > 0 {
            self.step()?;
        }
        let stats = &self.mm.stats;
        let mut figures = self.figures;
        figures.elapsed = self.tasks.iter().map(|task| task.ready).max().unwrap_or(0);
        figures.major = stats.faults_major;
        figures.minor = stats.faults_minor;
        figures.zero = stats.faults_zero;
        figures.read_pages = stats.swap_in;
        figures.written_pages = stats.swap_out;
        figures.reads = stats.swap_read_ios;
        figures.writes = stats.swap_write_ios;
        figures.ahead = stats.ahead.pages;
        figures.ahead_used = stats.ahead.hits().min(stats.ahead.pages);
        figures.huge_in = stats.huge_swap_in;
        figures.huge_out = stats.huge_swap_out;
        figures.splits = stats.huge_splits;
        figures.peak = self.w.peak;
        Ok(figures)
    }

    fn list(&mut self, number: u32) {
        let task = &mut self.tasks[number as usize];
        if !task.listed && task.since.is_none() && !task.ops.is_empty() {
            task.listed = true;
            self.runnable.insert((task.ready, number));
        }
    }

    /// When the engine has work next.
    pub(super) fn engine_at(&self) -> Option<Nanos> {
        if self.awake {
            return Some(self.w.now);
        }
        let message = self
            .messages
            .front()
            .map(|(at, _, _)| at + COSTS.wake_engine);
        let end = self.w.next_end();
        let stalled = self.mm.is_stalled().then_some(self.w.now + STALLED);
        let paused = self.mm.is_draining() && self.w.used_slots() > 0;
        let drains = paused.then_some(self.w.now + STALLED);
        let first = [message, end, stalled, drains]
            .into_iter()
            .flatten()
            .min()?;
        Some(first.max(self.w.now))
    }

    /// When the next task runs.
    pub(super) fn task_at(&self) -> Option<Nanos> {
        self.runnable.first().map(|(ready, _)| *ready)
    }

    /// Executes the next event.
    pub(super) fn step(&mut self) -> Result<(), String> {
        self.step_within(Nanos::MAX)
    }

    /// Executes the next event; a task runs up to `horizon`.
    pub(super) fn step_within(&mut self, horizon: Nanos) -> Result<(), String> {
        let engine = self.engine_at();
        let task = self.runnable.first().copied();
        match (engine, task) {
            (Some(at), Some((ready, _))) if at <= ready => self.engine(at),
            (_, Some((_, number))) => {
                self.runnable.pop_first();
                let until = [engine, self.task_at()].into_iter().flatten().min();
                let until = until.map_or(horizon, |until| until.min(horizon));
                self.run(number, until);
            }
            (Some(at), None) => self.engine(at),
            (None, None) => {
                return Err("the simulated machine stands still: a thread waits for a page that nobody brings".into());
            }
        }
        match self.w.problem.take() {
            Some(problem) => Err(format!("the core did what it must not: {problem}")),
            None if self.stuck > STUCK => {
                Err("the core is busy for ever and no thread gets on".into())
            }
            None => Ok(()),
        }
    }

    /// A task runs until it waits or another event is due.
    fn run(&mut self, number: u32, until: Nanos) {
        self.stuck = 0;
        let task = &mut self.tasks[number as usize];
        task.listed = false;
        let cpu = (0..self.cpus.len()).min_by_key(|&cpu| self.cpus[cpu]);
        if let Some(free) = cpu.map(|cpu| self.cpus[cpu]).filter(|&at| at > task.ready) {
            task.ready = free;
            return self.list(number);
        }
        self.run_slice(number, until);
        if let Some(cpu) = cpu {
            self.cpus[cpu] = self.tasks[number as usize].ready;
        }
    }

    fn run_slice(&mut self, number: u32, until: Nanos) {
        loop {
            let task = &mut self.tasks[number as usize];
            let now = task.ready;
            self.clock = self.clock.max(now);
            let op = match task.ops.front() {
                Some(Op::Touch { page, byte, write }) => {
                    let (page, byte, write) = (*page, *byte, *write);
                    let Some(content) = self.w.pages.mapped(page) else {
                        if self.w.elsewhere.as_mut().is_some_and(|e| e.bus_error(page)) {
                            task.ready += self.setup.think;
                            task.ops.pop_front();
                            self.queued -= 1;
                            if self.tasks[number as usize].ready > until {
                                return self.list(number);
                            }
                            continue;
                        }
                        task.since = Some(now);
                        self.fault(number, page, byte, now);
                        return;
                    };
                    // The first touch fills the page.
                    if write || content == 0 {
                        self.writes += 1;
                        self.w.pages.write(page, self.writes);
                    }
                    self.figures.touches += 1;
                    task.ready += self.setup.think;
                    task.ops.pop_front();
                    None
                }
                Some(_) => task.ops.pop_front(),
                None => return,
            };
            self.queued -= 1;
            if let Some(op) = op {
                self.change(op, now);
            }
            if self.tasks[number as usize].ready > until {
                return self.list(number);
            }
        }
    }

    /// A task waits for `page` from `now` on.
    fn fault(&mut self, number: u32, page: Vpn, byte: u16, now: Nanos) {
        if !self.mm.manages(page) {
            // No record tells the mapping: register whole leaves, which makes neighbours one VMA.
            let start = page.0 / LEAF_PAGES as u64 * LEAF_PAGES as u64;
            self.mm
                .adopt(&mut self.w, Vpn(start)..Vpn(start + LEAF_PAGES as u64), &[]);
        }
        self.waiting.entry(page).or_default().push(number);
        self.messages.push_back((now, page, byte));
    }

    /// The address space changes.
    fn change(&mut self, op: Op, now: Nanos) {
        if !self.awake {
            self.w.now = self.w.now.max(now);
        }
        match op {
            Op::Touch { .. } => {}
            #[cfg(feature = "ablate")]
            Op::Drain => self.mm.drain(&mut self.w, 0),
            Op::Map(range) => self.mm.adopt(&mut self.w, range, &[]),
            Op::Unmap(range) => self.unmap(&range),
            Op::Discard(range) => {
                self.mm.discard(&mut self.w, &range);
                self.w.pages.discard(&range);
            }
            Op::Move(from, to) => {
                self.mm.remap(&mut self.w, &from, to);
                self.w.pages.rename(&from, to);
            }
            Op::End(space) => {
                let living = self.living.entry(space).or_default();
                *living = living.saturating_sub(1);
                if *living == 0 {
                    let first = Vpn(u64::from(space) << SPACE_SHIFT);
                    self.unmap(&(first..first.plus(1 << SPACE_SHIFT)));
                }
            }
        }
        self.wake();
    }

    fn unmap(&mut self, range: &PageRange) {
        self.mm.unmap(&mut self.w, range);
        self.w.pages.unmap_range(range);
    }

    /// One round of the engine's loop, in the pager's order.
    fn engine(&mut self, at: Nanos) {
        self.stuck += 1;
        let cpu = (0..self.cpus.len()).min_by_key(|&cpu| self.cpus[cpu]);
        let free = cpu.map_or(0, |cpu| self.cpus[cpu]);
        self.w.now = self.w.now.max(at).max(free) + COSTS.round;
        self.clock = self.clock.max(at);
        while let Some(&(sent, page, byte)) = self.messages.front()
            && sent <= self.w.now
        {
            self.messages.pop_front();
            self.w.now += COSTS.message;
            let address = page.address() + u64::from(byte);
            match self.mm.on_fault(&mut self.w, address) {
                Outcome::Unmanaged => self.w.wake(page),
                Outcome::Waits => self.watch.iter_mut().for_each(|watch| watch.waits(page)),
                Outcome::Served => {}
            }
        }
        while let Some((io, result)) = self.w.ended() {
            self.mm.on_io(&mut self.w, io, result);
        }
        if self.mm.must_retry() {
            self.mm.retry(&mut self.w);
        }
        self.awake = self.mm.run(&mut self.w);
        if let Some(cpu) = cpu {
            self.cpus[cpu] = self.w.now;
        }
        self.wake();
    }

    /// Threads whose page was mapped continue, and fault again if it is absent.
    fn wake(&mut self) {
        let mut woken = std::mem::take(&mut self.w.woken);
        for (page, at) in woken.drain(..) {
            let waited = self.watch.as_mut().is_some_and(|watch| watch.ends(page));
            for number in self.waiting.remove(&page).unwrap_or_default() {
                let task = &mut self.tasks[number as usize];
                let since = task.since.take().unwrap_or(at);
                task.ready = at.max(since) + COSTS.wake_thread;
                self.figures.waited += task.ready - since;
                if let Some(watch) = self.watch.as_mut().filter(|_| waited) {
                    watch.latencies.add(task.ready - since);
                }
                self.list(number);
            }
        }
        self.w.woken = woken;
    }
}

#[cfg(test)]
#[path = "machine_tests.rs"]
mod tests;
