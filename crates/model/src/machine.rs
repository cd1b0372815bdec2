//! The machine: executes steps, runs the driver and the devices, and checks at the end that nothing is left.

use foreswap_core::units::{Nanos, Slot};
use foreswap_core::{Advice, Hint};

use crate::chance::Chance;
use crate::changes::{change, give_back, stretch};
use crate::family::charged_for;
use crate::plan::{FAMILY_LIMIT, Plan};
use crate::process::{Access, Fork, Process};
use crate::space::Mapping;
use crate::step::{Act, Says, Step, Touch};
use crate::summary::Summary;
use crate::system::System;

mod rest;

/// Virtual time between two steps.
const BETWEEN: Nanos = 100;
/// Virtual time between two rounds while the programs pause.
const QUIET: Nanos = 50_000;
/// Touches of a burst after which the core does its background work: one of these.
const RUN_EVERY: [u16; 3] = [8, 16, 32];
/// Rounds that a burst waits for a page to be written.
const ROUNDS_OF_FRESH: u32 = 50;
/// One step in this number looks at what a family is charged for.
const LOOK: u32 = 8;
/// The most areas at a time.
const AREAS: usize = 5;

/// A machine.
pub struct Machine {
    plan: Plan,
    /// The shared state of its processes. A test may change it before the first step.
    pub sys: System,
    processes: Vec<Process>,
    /// The number of values written.
    written: u64,
    summary: Summary,
}

impl Machine {
    /// One process, two thirds of whose pages are mapped.
    pub fn new(plan: Plan) -> Self {
        let mut sys = System::new(plan.limit, &plan.areas, plan.chaos);
        sys.families = plan.families;
        let mut first = Process::new(&mut sys, plan.setup());
        let mapped = 0..plan.pages as usize * 2 / 3;
        if plan.bare {
            first.begin_bare(&mut sys, mapped);
        } else {
            first.map(mapped.clone());
            first.adopt(&mut sys, mapped);
        }
        Machine {
            plan,
            sys,
            processes: vec![first],
            written: 0,
            summary: Summary::default(),
        }
    }

    /// Execute one step.
    pub fn step(&mut self, step: &Step) {
        self.execute(step);
        if self.sys.families && (step.salt.is_multiple_of(LOOK) || matches!(step.act, Act::Die)) {
            charged_for(&self.sys, &self.processes);
        }
    }

    fn execute(&mut self, step: &Step) {
        self.summary.steps += 1;
        self.sys.pass(BETWEEN);
        self.sys.chance = Chance::new(u64::from(step.salt));
        let n = usize::from(step.who) % self.processes.len();
        match step.act {
            Act::Touch { page, access, told } => self.touch(n, page, access, told),
            Act::Round { faults } => self.round(n, faults.into()),
            Act::Burst {
                page,
                n: count,
                stride,
            } => self.burst(n, page, count, stride, false),
            Act::Fresh { page, n: count } => self.fresh(n, page, count),
            Act::Settle => {
                self.settle();
                self.check();
            }
            Act::Fork | Act::Die | Act::Readers { .. } => self.family(n, step.act),
            Act::Fill
            | Act::Swapon { .. }
            | Act::Swapoff
            | Act::Keep
            | Act::Fail { .. }
            | Act::BadSector => self.areas(step.act),
            Act::Limit { pages } => {
                let least = if self.sys.families { FAMILY_LIMIT } else { 32 };
                self.sys.limit = u64::from(pages).max(least);
                self.sys.excuse();
                let limit = self.sys.limit;
                self.processes[n].call(&mut self.sys, |mm, _| mm.on_limit(limit));
            }
            Act::Pressure { pages } => {
                let pid = self.processes[n].space.pid;
                self.sys.pressure[pid] += u64::from(pages);
            }
            Act::Quiet { rounds } => {
                for _ in 0..rounds {
                    if self.sys.is_emptied() {
                        break;
                    }
                    for n in 0..self.processes.len() {
                        self.round(n, usize::from(u8::MAX));
                    }
                    self.pass(QUIET);
                }
            }
            Act::Wait { us } => self.sys.pass(u64::from(us) * 1_000),
            _ => self.alone(n, step.act),
        }
    }

    fn touch(&mut self, n: usize, page: u16, access: Touch, told: bool) {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        let Some(thread) = process.threads.iter().position(Option::is_none) else {
            return;
        };
        let at = usize::from(page) % process.cells.len();
        let write = match access {
            Touch::Read => None,
            Touch::Zero => Some(0),
            Touch::Same => Some(process.cells[at].value),
            Touch::Write => {
                self.written += 1;
                Some(System::content(self.written))
            }
        };
        let waits = process.touch(sys, thread, at, write) == Access::Waits;
        // A write to a protected page is no fault of the core's.
        if waits && told && process.messages.last() == Some(&at) {
            let last = process.messages.len() - 1;
            let offset = sys.chance.below(512) * 8;
            process.read_message(sys, last, offset);
        }
    }

    fn fresh(&mut self, n: usize, page: u16, count: u16) {
        for _ in 0..ROUNDS_OF_FRESH {
            if self.processes[n].settled() {
                break;
            }
            self.round(n, usize::from(count));
        }
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        process.only_read(0, false);
        let range = stretch(process, page, count);
        for page in &mut process.space.pages[range.clone()] {
            (page.locked, page.pinned) = (false, false);
        }
        give_back(process, sys, range);
        self.burst(n, page, count, 1, true);
    }

    /// A thread touches pages one after the other. `fresh`: it writes to all, however long each takes.
    fn burst(&mut self, n: usize, page: u16, count: u16, stride: i8, fresh: bool) {
        let (mut process, mut sys) = (&mut self.processes[n], &mut self.sys);
        let Some(thread) = process.threads.iter().position(Option::is_none) else {
            return self.round(n, usize::from(count));
        };
        let pages = process.cells.len();
        let mut at = usize::from(page) % pages;
        let run_every = sys.chance.pick(&RUN_EVERY);
        // Zero pages leave holes on the areas.
        let zeros = sys.chance.one_in(300);
        if stride == 1 && sys.chance.one_in(500) {
            // As allocators do: discarded pages are used again.
            give_back(process, sys, at..(at + usize::from(count)).min(pages));
        }
        for i in 1..=count {
            let access = sys.chance.below(16);
            let write = match access {
                _ if fresh => {
                    self.written += 1;
                    Some(System::content(self.written))
                }
                0 if zeros => Some(0),
                1 => Some(process.cells[at].value),
                0..7 => {
                    self.written += 1;
                    Some(System::content(self.written))
                }
                _ => None,
            };
            let got = process.touch(sys, thread, at, write);
            if got == Access::Signal && (fresh || sys.chance.one_in(500)) {
                give_back(process, sys, at..at + 1);
            }
            if got == Access::Waits {
                if process.messages.last() == Some(&at) {
                    let last = process.messages.len() - 1;
                    let offset = sys.chance.below(512) * 8;
                    process.read_message(sys, last, offset);
                }
                // Whichever page the thread waits for.
                while process.threads[thread].is_some()
                    && let Some((first, due)) = process.space.first_due()
                {
                    process.pass(sys, due);
                    process.complete(sys, first);
                }
                if process.threads[thread].is_some() || i % run_every == 0 {
                    process.run(sys);
                }
                let patience = if fresh { ROUNDS_OF_FRESH } else { 1 };
                for _ in 0..patience {
                    if process.threads[thread].is_none() {
                        break;
                    }
                    self.round(n, usize::from(count));
                    (process, sys) = (&mut self.processes[n], &mut self.sys);
                }
                if process.threads[thread].is_some() {
                    return;
                }
            }
            at = match stride {
                0 => sys.chance.below(pages as u64) as usize,
                _ => (at + pages).wrapping_add_signed(stride.into()) % pages,
            };
        }
        process.run(sys);
    }

    /// One round of the driver of process `n`.
    fn round(&mut self, n: usize, faults: usize) {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        while !process.events.is_empty() {
            process.read_event(sys);
        }
        while !process.acks.is_empty() && !sys.chance.one_in(300) {
            process.acknowledge();
        }
        while !process.zaps.is_empty() && !sys.chance.one_in(300) {
            process.zap();
        }
        for _ in 0..faults.min(process.messages.len()) {
            // A served fault wakes others, whose messages are withdrawn.
            if !process.messages.is_empty() {
                let offset = sys.chance.below(512) * 8;
                process.read_message(sys, 0, offset);
            }
        }
        let heard =
            process.messages.is_empty() && process.events.is_empty() && process.acks.is_empty();
        let waits = process.waiting() > 0 && heard && !process.mm.must_retry();
        let due = process.space.first_due().map(|(_, due)| due);
        let naps = waits && due.is_none();
        if waits {
            // Nothing to do before an I/O completes, or before the core's patience ends.
            let to = due.unwrap_or_else(|| sys.now + process.nap(sys.now));
            process.pass(sys, to);
        }
        while let Some(at) = process.space.ended(sys.now) {
            process.complete(sys, at);
        }
        if process.mm.must_retry() {
            process.call(sys, |mm, w| mm.retry(w));
        }
        if sys.chance.one_in(300) {
            process.unshare();
        }
        self.go_on_with_fork(n);
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        process.settle_debts(sys);
        let mut before = process.waiting();
        process.run(sys);
        // Progress keeps the driver awake.
        while naps && process.waiting() < before {
            before = process.waiting();
            process.run(sys);
        }
        if process.mm.starved().is_some() {
            self.keep();
        }
    }

    /// The work of a driver between messages.
    fn drive(&mut self, n: usize) {
        self.go_on_with_fork(n);
        let process = &mut self.processes[n];
        process.run(&mut self.sys);
        if process.mm.starved().is_some() {
            self.keep();
        }
    }

    fn go_on_with_fork(&mut self, n: usize) {
        let count = self.processes.len();
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        process.step_growth(sys);
        match process.fork {
            Fork::No => {}
            Fork::Held => {
                if sys.families {
                    process.unshare();
                }
                process.try_snapshot(sys);
            }
            Fork::Taken(_) => {
                let is_full = count >= self.plan.processes as usize;
                let fails = is_full || sys.families && sys.chance.one_in(50);
                if process.settled() && fails {
                    process.fork_fails(sys);
                } else if process.settled()
                    && let Some(child) = process.forked(sys)
                {
                    self.summary.forks += 1;
                    self.processes.push(child);
                }
            }
        }
    }

    /// Actions that concern one process only.
    fn alone(&mut self, n: usize, act: Act) {
        let (process, sys) = (&mut self.processes[n], &mut self.sys);
        match act {
            Act::Fault if !process.messages.is_empty() => {
                let at = sys.chance.below(process.messages.len() as u64) as usize;
                let offset = sys.chance.below(512) * 8;
                process.read_message(sys, at, offset);
            }
            Act::Complete if !process.space.flights.is_empty() => {
                let at = sys.chance.below(process.space.flights.len() as u64) as usize;
                process.complete(sys, at);
            }
            Act::Event => process.read_event(sys),
            Act::Acknowledge => process.acknowledge(),
            Act::Vanish => process.zap(),
            Act::Unshare => process.unshare(),
            Act::Retry if process.mm.must_retry() => process.call(sys, |mm, w| mm.retry(w)),
            Act::Drive => self.drive(n),
            Act::Turn { rounds } => {
                process.without_turn = rounds;
                process.set_turn(sys);
            }
            Act::Advise { page, n, says } => {
                let advice = match says {
                    Says::Normal => Advice::Use(Hint::Normal),
                    Says::Sequential => Advice::Use(Hint::Sequential),
                    Says::Random => Advice::Use(Hint::Random),
                    Says::WillNeed => Advice::WillNeed,
                    Says::Cold => Advice::Cold,
                    Says::PageOut => Advice::PageOut,
                };
                let range = stretch(process, page, n);
                process.advise(sys, range, advice);
            }
            Act::Lock { page, n, on } => {
                let range = stretch(process, page, n.into());
                let pages = process.space.pages[range].iter_mut();
                pages
                    .filter(|page| page.mapping != Mapping::None)
                    .for_each(|page| page.locked = on);
            }
            Act::Pin { page, n, on } => {
                let range = stretch(process, page, n.into());
                let pages = process.space.pages[range].iter_mut();
                pages
                    .filter(|page| page.present.is_some())
                    .for_each(|page| page.pinned = on);
            }
            _ => change(process, sys, act),
        }
    }

    fn family(&mut self, n: usize, act: Act) {
        let count = self.processes.len();
        match act {
            Act::Fork
                if count < self.plan.processes as usize
                    && (self.sys.families || self.processes[n].fork == Fork::No) =>
            {
                self.processes[n].hold(&mut self.sys);
            }
            Act::Readers { touches, protected } => {
                self.processes[n].only_read(touches, protected);
            }
            Act::Die if count > 1 => {
                let process = self.processes.remove(n);
                self.summary.deaths += 1;
                self.collect(&process);
                process.exit(&mut self.sys);
            }
            _ => {}
        }
    }

    /// Actions of a supervisor on the areas, and events of the areas.
    fn areas(&mut self, act: Act) {
        let sys = &mut self.sys;
        match act {
            Act::Fill if sys.foreign => self.foreign_free(),
            Act::Fill if sys.draining.is_none() => sys.foreign_fill(),
            Act::Swapon { slots, at } if sys.areas.len() < AREAS && sys.draining.is_none() => {
                let area = sys.areas.len();
                self.set_area(area, slots.max(16).into(), at.into());
            }
            Act::Keep => self.keep(),
            Act::Swapoff => match sys.draining {
                None if !sys.foreign || self.plan.clusters > 0 => {
                    if sys.foreign {
                        self.foreign_free();
                    }
                    let sys = &mut self.sys;
                    let area = sys.area_to_empty();
                    sys.begin_drain(area);
                    for process in &mut self.processes {
                        process.call(sys, |mm, w| mm.drain(w, area));
                    }
                }
                None => {}
                Some(area) => {
                    let empty = sys.areas[usize::from(area)].used == 0;
                    let has_io = |p: &Process| p.mm.has_io(area);
                    if empty && !self.processes.iter().any(has_io) {
                        sys.draining = None;
                        for process in &mut self.processes {
                            process.call(sys, |mm, _| mm.forget_area(area));
                        }
                        self.summary.swapoffs += 1;
                        let slots = match self.plan.clusters {
                            0 => self.sys.chance.pick(&[64, 512, 1024]),
                            _ => self.sys.chance.pick(&[1024, 8192, 8192]),
                        };
                        self.set_area(area.into(), slots, 0);
                    }
                }
            },
            Act::Fail { back } => {
                let area = sys.chance.below(sys.areas.len() as u64) as usize;
                if back {
                    sys.areas.iter_mut().for_each(|area| area.dead = false);
                } else {
                    sys.areas[area].dead = true;
                }
            }
            Act::BadSector => {
                let area = sys.chance.below(sys.areas.len() as u64) as u8;
                let slots = sys.areas[usize::from(area)].counts.len() as u64;
                let index = sys.chance.below(slots) as u32;
                sys.bad_sectors.insert(Slot { area, index });
            }
            _ => {}
        }
    }

    fn set_area(&mut self, area: usize, slots: u32, at: usize) {
        self.sys.set_area(area, slots, at);
        for process in &mut self.processes {
            process.space.set_area(area, slots as usize);
        }
    }

    /// Emptying an area is abandoned.
    fn keep(&mut self) {
        if let Some(area) = self.sys.draining.take() {
            self.sys.order.push(area);
            for process in &mut self.processes {
                process.call(&mut self.sys, |mm, _| mm.use_area(area));
            }
        }
    }

    fn foreign_free(&mut self) {
        let processes = &self.processes;
        self.sys.foreign_free(|slot| {
            let (area, index) = (usize::from(slot.area), slot.index as usize);
            let of = |p: &Process| {
                let shares = p.space.shares.iter().filter(|s| **s == slot).count();
                p.space.refs[area][index] + shares as u16
            };
            processes.iter().map(of).sum()
        });
    }
}
