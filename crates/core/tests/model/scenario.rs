//! A random run: processes whose threads touch, map, discard, lock and fork, while the driver and the devices make
//! progress in any order. Everything follows from the seed.

use foreswap_core::{Advice, Hint};

use super::plan::Plan;
use super::process::{Access, Fork, Process};
use super::rng::Rng;
use super::space::Mapping;
use super::system::{Chaos, System};

/// How the threads choose their next page.
#[derive(Clone, Copy)]
enum Pattern {
    Random,
    Forward,
    Backward,
    Stride,
    Hot,
}

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trace {
    pub hash: u64,
    pub steps: u64,
    pub swap_out: u64,
    pub swap_in: u64,
    pub clean_drops: u64,
    pub minor: u64,
    pub sigbus: u64,
    pub forks: u64,
    pub unseen: u64,
    pub drained: u64,
    pub huge_in: u64,
    pub huge_out: u64,
    pub huge_splits: u64,
}

impl Trace {
    pub fn add(&mut self, other: &Trace) {
        self.steps += other.steps;
        self.swap_in += other.swap_in;
        self.swap_out += other.swap_out;
        self.clean_drops += other.clean_drops;
        self.minor += other.minor;
        self.unseen += other.unseen;
        self.sigbus += other.sigbus;
        self.forks += other.forks;
        self.drained += other.drained;
        self.huge_in += other.huge_in;
        self.huge_out += other.huge_out;
        self.huge_splits += other.huge_splits;
    }
}

pub struct Scenario {
    pub sys: System,
    pub processes: Vec<Process>,
    plan: Plan,
    pattern: Pattern,
    at: usize,
    next_value: u64,
    foreign: bool,
    trace: Trace,
}

/// The value of write number `n`: mostly a unique one, at times the same word for a while.
fn written(n: u64) -> u64 {
    if (n / 64) % 16 == 1 {
        1 + 4 * (n / 1024)
    } else {
        n
    }
}

impl Scenario {
    pub fn new(seed: u64, actions: u64) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw(&mut rng, actions);
        Self::of(plan, rng)
    }

    /// With huge pages.
    pub fn huge(seed: u64, actions: u64) -> Self {
        let mut rng = Rng::new(seed);
        let plan = Plan::draw_huge(&mut rng, actions);
        Self::of(plan, rng)
    }

    fn of(plan: Plan, mut rng: Rng) -> Self {
        let mut sys = System::new(rng.next(), plan.limit, &plan.areas);
        sys.chaos = plan.chaos;
        sys.mixing = plan.mixing;
        sys.ends_show = rng.pick(&[false, true]);
        if plan.config.clusters > 0 {
            sys.helpers = rng.pick(&[0, 1, 3]);
        }
        let mut first = Process::new(&mut sys, plan.config, plan.pages, plan.threads);
        first.map(0..plan.pages * 2 / 3);
        first.adopt(&mut sys, 0..plan.pages * 2 / 3);
        Scenario {
            sys,
            processes: vec![first],
            plan,
            pattern: Pattern::Forward,
            at: 0,
            next_value: 1,
            foreign: false,
            trace: Trace::default(),
        }
    }

    /// The whole run: actions, quiet, end.
    pub fn run(mut self) -> Trace {
        for _ in 0..self.plan.actions {
            self.action();
        }
        for n in 0..self.processes.len() {
            self.settle(n);
        }
        while let Some(process) = self.processes.pop() {
            self.finish(process);
        }
        for area in &self.sys.areas {
            if !self.foreign {
                assert_eq!(area.used, 0, "slots are left over");
            }
        }
        assert_eq!(self.sys.charged, 0, "a charge is left over");
        self.trace.hash = self.sys.trace;
        self.trace.steps = self.sys.steps;
        self.trace
    }

    fn action(&mut self) {
        let n = self.sys.rng.below(self.processes.len() as u64) as usize;
        self.sys.now += self.sys.rng.below(50);
        if self.sys.rng.chance(self.plan.changes) {
            return self.change(n);
        }
        if self.sys.rng.chance(self.plan.rare) {
            return self.rare(n);
        }
        if self.sys.rng.chance(self.plan.advice) {
            return self.advise(n);
        }
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        match sys.rng.below(16) {
            0..5 => {
                for _ in 0..=sys.rng.below(6) {
                    self.touch(n);
                }
            }
            5..9 if !process.messages.is_empty() => {
                let n = sys.rng.below(process.messages.len() as u64) as usize;
                process.read_message(sys, n);
            }
            9..11 if !process.space.flights.is_empty() => {
                let n = sys.rng.below(process.space.flights.len() as u64) as usize;
                process.complete(sys, n);
            }
            11 => process.read_event(sys),
            12 => {
                if sys.rng.chance(500) {
                    process.acknowledge();
                } else {
                    process.zap();
                }
            }
            13 if process.mm.must_retry() => process.call(sys, |mm, w| mm.retry(w)),
            14 => process.unshare(),
            _ => self.drive(n),
        }
    }

    /// The work of a driver between messages.
    fn drive(&mut self, n: usize) {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        match process.fork {
            Fork::No => {}
            Fork::Held => process.try_snapshot(sys),
            Fork::Taken(_) => {
                if sys.rng.chance(200) && process.settled() {
                    if let Some(child) = process.forked(sys) {
                        self.trace.forks += 1;
                        self.processes.push(child);
                    }
                    return;
                }
            }
        }
        process.run(sys);
        if process.mm.starved().is_some() {
            self.use_again();
        }
    }

    fn touch(&mut self, n: usize) {
        let sys = &mut self.sys;
        let pages = self.plan.pages;
        if sys.rng.chance(self.plan.turns) {
            self.pattern = sys.rng.pick(&[
                Pattern::Random,
                Pattern::Forward,
                Pattern::Backward,
                Pattern::Stride,
                Pattern::Hot,
            ]);
            self.at = sys.rng.below(pages as u64) as usize;
        }
        self.at = match self.pattern {
            Pattern::Random => sys.rng.below(pages as u64) as usize,
            Pattern::Forward => (self.at + 1) % pages,
            Pattern::Backward => (self.at + pages - 1) % pages,
            Pattern::Stride => (self.at + 7) % pages,
            Pattern::Hot => sys.rng.below(pages as u64 / 4) as usize,
        };
        let process = &mut self.processes[n];
        let idle = process.threads.iter().position(Option::is_none);
        let Some(thread) = idle else {
            return;
        };
        let write = match sys.rng.below(8) {
            0 => Some(0),
            1 => Some(process.cells[self.at].value),
            2..5 => {
                self.next_value += 1;
                Some(written(self.next_value))
            }
            _ => None,
        };
        if process.access(sys, Some(thread), self.at, write) == Access::Waits && sys.rng.chance(500)
        {
            let last = process.messages.len() - 1;
            process.read_message(sys, last);
        }
    }

    /// The program changes its address space.
    fn change(&mut self, n: usize) {
        let (process, rng) = (&mut self.processes[n], &mut self.sys.rng);
        // While a fork is prepared, other threads continue to discard.
        let forking = process.fork != Fork::No;
        let pages = self.plan.pages as u64;
        let start = rng.below(pages) as usize;
        let long = 1 + rng.below(rng_len(pages)) as usize;
        let range = start..(start + long).min(pages as usize);
        let all = |mapping: Mapping| {
            let pages = &process.space.pages[range.clone()];
            pages.iter().all(|page| page.mapping == mapping)
        };
        let locked = process.space.pages[range.clone()]
            .iter()
            .any(|page| page.locked || page.pinned);
        let busy = process.busy(&range) || process.events.len() > 2;
        match rng.below(10) {
            4.. if forking => {}
            0..4 if !busy && !locked && all(Mapping::Managed) => process.discard(range),
            4 if !busy => process.unmap(range),
            5 if !busy && all(Mapping::Managed) => {
                let to = rng.below(pages) as usize;
                let target = to..to + range.len();
                let apart = target.end <= range.start || range.end <= target.start;
                if apart && target.end <= pages as usize && !process.busy(&target) {
                    process.remap(range, to);
                }
            }
            6 if !locked && !busy => process.silently_discard(range),
            _ => {
                if !process.busy(&range) || rng.chance(300) {
                    process.map(range.clone());
                }
                if process.settled()
                    && process.space.pages[range.clone()]
                        .iter()
                        .all(|page| page.mapping != Mapping::None)
                {
                    process.adopt(&mut self.sys, range);
                }
            }
        }
    }

    /// The program gives hints about some of its memory.
    fn advise(&mut self, n: usize) {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        let pages = self.plan.pages as u64;
        let start = sys.rng.below(pages) as usize;
        let end = start + 1 + sys.rng.below(pages / 2) as usize;
        let advice = sys.rng.pick(&[
            Advice::Use(Hint::Normal),
            Advice::Use(Hint::Sequential),
            Advice::Use(Hint::Random),
            Advice::WillNeed,
            Advice::Cold,
            Advice::PageOut,
        ]);
        process.advise(sys, start..end.min(pages as usize), advice);
    }

    /// Rare actions.
    fn rare(&mut self, n: usize) {
        let pages = self.plan.pages as u64;
        let count = self.processes.len();
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        let start = sys.rng.below(pages) as usize;
        let end = (start + 1 + sys.rng.below(8) as usize).min(pages as usize);
        match sys.rng.below(12) {
            8.. => self.areas_change(n),
            0 => {
                let lock = sys.rng.chance(400);
                process.space.pages[start..end]
                    .iter_mut()
                    .filter(|page| page.mapping != Mapping::None)
                    .for_each(|page| page.locked = lock);
            }
            1 => {
                let pin = sys.rng.chance(400);
                process.space.pages[start..end]
                    .iter_mut()
                    .filter(|page| page.present.is_some())
                    .for_each(|page| page.pinned = pin);
            }
            2 => {
                sys.limit = sys
                    .rng
                    .pick(&[32, 48, self.plan.limit, self.plan.limit, 128]);
                sys.excuse();
                let limit = sys.limit;
                process.call(sys, |mm, _| mm.on_limit(limit));
            }
            3 => sys.pressure[process.space.pid] += sys.rng.below(16),
            4 if count < 3 && process.fork == Fork::No => process.hold(sys),
            5 if count > 1 && sys.rng.chance(300) => {
                let process = self.processes.remove(n);
                self.collect(&process);
                process.exit(&mut self.sys);
            }
            6 => {
                if self.foreign {
                    self.foreign_free();
                } else if self.sys.draining.is_none() {
                    self.sys.foreign_fill();
                    self.foreign = true;
                }
            }
            _ => sys.now += 100_000,
        }
    }

    fn foreign_free(&mut self) {
        let processes = &self.processes;
        self.sys.foreign_free(&|slot| {
            let (area, index) = (usize::from(slot.area), slot.index as usize);
            let of = |p: &Process| {
                let shares = p.space.shares.iter().filter(|s| **s == slot).count();
                p.space.refs[area][index] + shares as u16
            };
            processes.iter().map(of).sum()
        });
        self.foreign = false;
    }

    /// Orders of a supervisor: an area is emptied, used again, removed, or added.
    fn areas_change(&mut self, n: usize) {
        let sys = &mut self.sys;
        match (sys.draining, sys.rng.below(4)) {
            (None, 0) if sys.areas.len() < 5 => {
                let slots = sys.rng.pick(&[40, 512, 1100]);
                let (area, at) = (sys.areas.len(), sys.rng.below(3) as usize);
                self.add_area(area, slots, at);
            }
            (None, _) if !self.foreign => {
                let area = sys.rng.below(sys.areas.len() as u64) as u8;
                sys.begin_drain(area);
                for process in &mut self.processes {
                    process.drain(sys, area);
                }
            }
            (Some(_), 0) => self.use_again(),
            (Some(area), _) => {
                let state = &sys.areas[usize::from(area)];
                let busy = |p: &Process| p.mm.has_io(area);
                if state.used == 0 && !self.processes.iter().any(busy) {
                    self.sys.draining = None;
                    for process in &mut self.processes {
                        process.forget_area(&mut self.sys, area);
                    }
                    self.trace.drained += 1;
                    let slots = self.sys.rng.pick(&[64, 512, 1024]);
                    self.add_area(area.into(), slots, 0);
                } else {
                    self.drive(n);
                }
            }
            _ => {}
        }
    }

    fn add_area(&mut self, area: usize, slots: u32, at: usize) {
        self.sys.set_area(area, slots, at);
        for process in &mut self.processes {
            process.space.set_area(area, slots as usize);
        }
    }

    /// Emptying an area is interrupted.
    fn use_again(&mut self) {
        if let Some(area) = self.sys.draining.take() {
            self.sys.order.push(area);
            for process in &mut self.processes {
                process.use_area(&mut self.sys, area);
            }
        }
    }

    /// The program stops; everything pending arrives. Every thread must be served.
    fn settle(&mut self, n: usize) {
        self.sys.chaos = Chaos::default();
        for _ in 0..20_000 {
            let (process, sys) = (&mut self.processes[n], &mut self.sys);
            let fork = match process.fork {
                Fork::Taken(_) => process.forked(sys),
                _ => None,
            };
            let done = process.round(sys, true);
            if process.mm.starved().is_some() {
                self.use_again();
            }
            if let Some(child) = fork {
                self.trace.forks += 1;
                child.exit(&mut self.sys);
            }
            if done {
                return;
            }
        }
        let process = &self.processes[n];
        panic!(
            "process {n} does not come to rest: {} threads, {} messages, {} flights, retry {}, stalled {}, {}",
            process.threads.iter().flatten().count(),
            process.messages.len(),
            process.space.flights.len(),
            process.mm.must_retry(),
            process.mm.is_stalled(),
            process.state(&self.sys),
        );
    }

    fn collect(&mut self, process: &Process) {
        let (stats, trace) = (&process.mm.stats, &mut self.trace);
        trace.swap_out += stats.swap_out;
        trace.swap_in += stats.swap_in;
        trace.clean_drops += stats.clean_drops;
        trace.minor += stats.faults_minor;
        trace.sigbus += process.sigbus;
        assert!(stats.ahead.hits() <= stats.ahead.pages, "{:?}", stats.ahead);
        trace.unseen += stats.ahead.unseen;
        trace.huge_in += stats.huge_swap_in;
        trace.huge_out += stats.huge_swap_out;
        trace.huge_splits += stats.huge_splits;
    }

    /// Everything is read once more, then unmapped: nothing may be left.
    fn finish(&mut self, process: Process) {
        self.collect(&process);
        self.processes.push(process);
        let n = self.processes.len() - 1;
        for at in 0..self.plan.pages {
            let process = &mut self.processes[n];
            process.access(&mut self.sys, Some(0), at, None);
            self.settle(n);
        }
        self.processes[n].unmap(0..self.plan.pages);
        self.settle(n);
        let Some(mut process) = self.processes.pop() else {
            return;
        };
        let backed = process.space.frames.iter().flatten().count() as u64;
        assert_eq!(process.space.charged, backed, "memory is left over");
        process.check_references();
        assert!(process.space.refs == process.space.bad, "slots are left");
        process.exit(&mut self.sys);
    }
}

/// Longest change of the address space.
fn rng_len(pages: u64) -> u64 {
    pages / 5
}
