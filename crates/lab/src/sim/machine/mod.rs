//! The clock, and the order of tasks, background reclaim and interrupts.
//!
//! Each is an *actor* that executes steps of CPU time, locks, transfers and wake-ups. A call of the core takes no
//! time; the costs of its decisions are then executed step by step, and other actors run in between and compete for
//! the same locks and device. Simultaneous events happen in the order in which they were planned.
//!
//! Every touch is compared with the last write; a wrong page ends the run with an error. [`tasks`] implements the
//! tasks.

mod error;
mod tasks;

pub use error::SimError;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::linux_kswapd::Defects;
use foreswap_core::readahead::{Policy, file};
use foreswap_core::units::{Nanos, PAGE_SIZE, PageRange, Vpn};
use foreswap_core::world::{IoId, IoResult, Notice};
use foreswap_core::{Advice, Config, Mm, ReclaimPolicy, Swapoff, Thp};

use crate::page_tables::HUGE;
use crate::sim::cpus::Cpus;
use crate::sim::device::Device;
use crate::sim::file_machine::FileState;
use crate::sim::lock::{Lock, LockId};
use crate::sim::memory::{HugeSwap, Memory, Order, Shape, Step};
use crate::sim::parameters::Parameters;
use crate::sim::program::{Op, Program};

/// The start of the tasks' memory.
pub const BASE: Vpn = Vpn(512 * 77);
/// The maximum size of the swap area as a multiple of memory, whatever the size of its device, if the machine's file
/// does not give the area's size.
const AREA: u64 = 8;
/// Clusters of frames for huge pages, as in the engine: a quarter of memory, within these bounds.
const CLUSTERS: (u32, u32) = (8, 256);
/// How soon stalled faults are looked at again.
const SOON: Nanos = 1_000_000;
/// How often a touch may fault without progress of time.
const FAULTS: u32 = 1000;

/// Names an actor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ActorId(pub u32);

/// The choices beside the machine and its workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Setup {
    /// Swap readahead.
    pub readahead: Policy,
    /// How an area is emptied.
    pub swapoff: Swapoff,
    /// How huge pages are evicted.
    pub huge_swap: HugeSwap,
    /// The eviction order.
    pub order: Order,
    /// Largest batch of a first touch, in pages.
    pub first_touch: u32,
    /// File readahead.
    pub file_readahead: file::Policy,
    /// The handling of a file's state with several readers.
    pub file_state: FileState,
    /// Which defects background reclaim has.
    pub defects: Defects,
    /// The factor on the usual distance between two watermarks of a zone.
    pub headroom: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Event {
    Go(ActorId),
    Ready(ActorId),
    Look,
}

#[derive(Default)]
struct Actor {
    steps: Vec<Step>,
    at: usize,
    holding: Option<LockId>,
    on_cpu: bool,
    since: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Reclaimer {
    #[default]
    Asleep,
    /// It has not found work yet.
    Woken,
    Busy,
}

struct Task<P> {
    program: P,
    op: Option<Op>,
    began: Nanos,
    /// It has faulted on this page and not touched it yet.
    waiting: Option<Vpn>,
    served: bool,
    blocked: Option<Nanos>,
    woken: bool,
    faults: u32,
    ended: bool,
}

/// A running machine.
pub struct Machine<P> {
    now: Nanos,
    order: u64,
    events: BinaryHeap<Reverse<(Nanos, u64, Event)>>,
    /// The memory manager under test.
    pub mm: Mm,
    /// The world on which it acts.
    pub memory: Memory,
    device: Device,
    cpus: Cpus,
    slots_lock: Lock,
    cache_lock: Lock,
    handover: Nanos,
    fault: Nanos,
    complete: Nanos,
    switch: Nanos,
    touch: Nanos,
    actors: Vec<Actor>,
    /// Actors of finished interrupts.
    idle: Vec<ActorId>,
    idle_states: [(Nanos, Nanos); 3],
    tasks: Vec<Task<P>>,
    running: usize,
    /// Threads of background reclaim, one per node of memory.
    reclaimers: Vec<Reclaimer>,
    /// Tasks that wait for all others.
    gathered: Vec<ActorId>,
    /// They wait for a release from outside.
    held: bool,
    looks: bool,
    expected: Vec<u64>,
    writes: u64,
    busy: Nanos,
}

impl<P: Program> Machine<P> {
    /// A machine with one task per program. `pages` are all pages that they use, from [`BASE`] on; `regions` are the
    /// parts that belong to one task each.
    pub fn new(
        parameters: &Parameters,
        setup: &Setup,
        pages: u64,
        regions: &[PageRange],
        programs: Vec<P>,
    ) -> Self {
        let device = Device::new(&parameters.device);
        let limit = parameters.pages();
        let area = parameters.area.map(|bytes| bytes / PAGE_SIZE as u64);
        let frames = (limit / 4) as u32;
        let (thp, frames, clusters) = match setup.huge_swap {
            HugeSwap::SplitFirst | HugeSwap::SplitAfter => (Thp::Never, frames, 0),
            // Clusters follow whole clusters of single frames.
            HugeSwap::Whole => {
                let quarter = frames / HUGE;
                let frames = frames.next_multiple_of(HUGE);
                (Thp::Adaptive, frames, quarter.clamp(CLUSTERS.0, CLUSTERS.1))
            }
        };
        let depth = 512;
        let shape = Shape {
            base: BASE,
            regions,
            pages,
            frames,
            clusters,
            slots: device.pages().min(area.unwrap_or(limit * AREA)),
            limit,
            depth,
            huge_swap: setup.huge_swap,
            order: setup.order,
        };
        let memory = Memory::new(&shape, parameters.costs, parameters.locks);
        let config = Config {
            frames,
            depth: depth as u32,
            readahead: setup.readahead,
            reclaim: ReclaimPolicy::default(),
            full_timeout: 10_000_000_000,
            first_touch: setup.first_touch,
            swapoff: setup.swapoff,
            thp,
            clusters,
        };
        let mm = Mm::new(config, limit);
        let task = |program| Task {
            program,
            op: None,
            began: 0,
            waiting: None,
            served: false,
            blocked: None,
            woken: false,
            faults: 0,
            ended: false,
        };
        let tasks: Vec<_> = programs.into_iter().map(task).collect();
        let mut machine = Machine {
            now: 1,
            order: 0,
            events: BinaryHeap::new(),
            mm,
            memory,
            device,
            cpus: Cpus::new(parameters.cpus),
            slots_lock: Lock::default(),
            cache_lock: Lock::default(),
            handover: parameters.locks.handover,
            fault: parameters.costs.fault,
            complete: parameters.costs.complete,
            switch: parameters.costs.switch,
            touch: parameters.costs.touch,
            actors: (0..tasks.len() + parameters.nodes as usize)
                .map(|_| Actor::default())
                .collect(),
            idle: Vec::new(),
            idle_states: parameters.idle,
            running: tasks.len(),
            tasks,
            reclaimers: vec![Reclaimer::default(); parameters.nodes as usize],
            gathered: Vec::new(),
            held: false,
            looks: false,
            expected: vec![0; pages as usize],
            writes: 0,
            busy: 0,
        };
        for n in 0..machine.tasks.len() {
            machine.plan(1, Event::Ready(ActorId(n as u32)));
        }
        machine
    }

    /// The virtual clock.
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// The programs, in their original order.
    pub fn programs(&self) -> impl Iterator<Item = &P> {
        self.tasks.iter().map(|task| &task.program)
    }

    /// All tasks have ended.
    pub fn is_done(&self) -> bool {
        self.running == 0
    }

    /// CPU time that tasks and background reclaim have used so far.
    pub fn busy(&self) -> Nanos {
        self.busy
    }

    /// The locks, for their contention: slots, swap cache.
    pub fn locks(&self) -> (&Lock, &Lock) {
        (&self.slots_lock, &self.cache_lock)
    }

    /// Tasks that gather from now on wait until [`Machine::let_go`].
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// No task runs: each has ended, or has gathered.
    pub fn is_quiet(&self) -> bool {
        self.gathered.len() == self.running
    }

    /// Gathered tasks continue once all have gathered.
    pub fn let_go(&mut self) {
        self.held = false;
        self.go_on();
    }

    /// A new limit, in pages.
    pub fn set_limit(&mut self, limit: u64) {
        self.memory.set_limit(limit);
        self.mm.on_limit(limit);
        self.poke();
    }

    /// Begin to empty the swap area.
    pub fn swapoff(&mut self) {
        self.memory.closed = true;
        self.memory.now = self.now;
        self.mm.drain(&mut self.memory, 0);
        self.poke();
    }

    /// Runs until `until` is true.
    ///
    /// # Errors
    ///
    /// A page is wrong or lost, or no event is left.
    pub fn run(&mut self, until: impl Fn(&Self) -> bool) -> Result<(), SimError> {
        while !until(self) {
            let event = self.events.peek().map(|Reverse(event)| event.0);
            match (event, self.device.next_end()) {
                (None, None) => return Err(SimError::Stuck { at: self.now }),
                (Some(event), end) if end.is_none_or(|end| event <= end) => {
                    if let Some(Reverse((now, _, event))) = self.events.pop() {
                        self.now = now;
                        self.on_event(event)?;
                    }
                }
                _ => {
                    if let Some((now, io)) = self.device.end() {
                        self.now = now;
                        self.on_completion(io)?;
                    }
                }
            }
            while let Some(notice) = self.memory.notices.pop() {
                let at = self.now;
                if is_loss(&notice) {
                    return Err(SimError::Notice { at, notice });
                }
            }
        }
        Ok(())
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.order += 1;
        self.events.push(Reverse((at, self.order, event)));
    }

    /// The time of the next event of another actor.
    fn horizon(&self) -> Nanos {
        let event = self.events.peek().map(|Reverse(event)| event.0);
        let end = self.device.next_end();
        event.into_iter().chain(end).min().unwrap_or(Nanos::MAX)
    }

    fn actor(&mut self, who: ActorId) -> &mut Actor {
        &mut self.actors[who.0 as usize]
    }

    fn on_event(&mut self, event: Event) -> Result<(), SimError> {
        match event {
            Event::Go(who) => self.go(who),
            Event::Ready(who) => {
                if self.cpus.enter(who) {
                    self.start(who)
                } else {
                    Ok(())
                }
            }
            Event::Look => {
                self.looks = false;
                self.poke();
                Ok(())
            }
        }
    }

    fn start(&mut self, who: ActorId) -> Result<(), SimError> {
        let now = self.now;
        let actor = self.actor(who);
        actor.on_cpu = true;
        actor.since = now;
        self.go(who)
    }

    /// Give the CPU up.
    fn leave(&mut self, who: ActorId) {
        if !std::mem::take(&mut self.actor(who).on_cpu) {
            return;
        }
        self.busy += self.now.saturating_sub(self.actor(who).since);
        if let Some(next) = self.cpus.leave() {
            let actor = self.actor(next);
            actor.on_cpu = true;
            let at = self.now + self.switch;
            self.actor(next).since = at;
            self.plan(at, Event::Go(next));
        }
    }

    /// Background reclaim checks for work.
    fn poke(&mut self) {
        for n in 0..self.reclaimers.len() {
            if self.reclaimers[n] == Reclaimer::Asleep {
                self.reclaimers[n] = Reclaimer::Woken;
                let who = ActorId((self.tasks.len() + n) as u32);
                self.plan(self.now, Event::Ready(who));
            }
        }
    }

    /// `who` executes the costs of the core's last actions, after `first` of CPU time.
    fn set_out(&mut self, who: ActorId, first: Nanos) {
        let mut steps = std::mem::take(&mut self.actor(who).steps);
        steps.clear();
        if first > 0 {
            steps.push(Step::Cpu(first));
        }
        self.memory.take_steps(&mut steps);
        let actor = self.actor(who);
        actor.steps = steps;
        actor.at = 0;
    }

    fn on_completion(&mut self, io: IoId) -> Result<(), SimError> {
        self.memory.now = self.now;
        self.memory.complete(io);
        self.mm.on_io(&mut self.memory, io, IoResult::Ok);
        let who = self.idle.pop().unwrap_or_else(|| {
            self.actors.push(Actor::default());
            ActorId(self.actors.len() as u32 - 1)
        });
        self.set_out(who, self.complete);
        self.poke();
        self.go(who)
    }

    fn lock(&mut self, lock: LockId) -> &mut Lock {
        match lock {
            LockId::Slots => &mut self.slots_lock,
            LockId::Cache => &mut self.cache_lock,
        }
    }

    fn release(&mut self, lock: LockId) {
        let now = self.now;
        let Some(next) = self.lock(lock).release(now) else {
            return;
        };
        let at = now + self.handover;
        let actor = self.actor(next);
        actor.holding = Some(lock);
        let hold = match actor.steps.get(actor.at - 1) {
            Some(&Step::Lock(_, hold)) => hold,
            _ => 0,
        };
        self.plan(at + hold, Event::Go(next));
    }

    /// Continue with the steps of `who`, then with its next action.
    fn go(&mut self, who: ActorId) -> Result<(), SimError> {
        if let Some(lock) = self.actor(who).holding.take() {
            self.release(lock);
        }
        let mut t = self.now;
        loop {
            let actor = self.actor(who);
            let Some(&step) = actor.steps.get(actor.at) else {
                actor.steps.clear();
                actor.at = 0;
                self.now_at(t, who);
                if t > self.now {
                    return Ok(());
                }
                if !self.after(who)? {
                    return Ok(());
                }
                t = self.now;
                continue;
            };
            if let Step::Cpu(time) = step {
                actor.at += 1;
                t += time;
                continue;
            }
            self.now_at(t, who);
            if t > self.now {
                return Ok(());
            }
            self.actor(who).at += 1;
            match step {
                Step::Cpu(_) => {}
                Step::Lock(lock, hold) => {
                    let now = self.now;
                    if self.lock(lock).acquire(who, now) {
                        self.actor(who).holding = Some(lock);
                        self.plan(now + hold, Event::Go(who));
                    }
                    return Ok(());
                }
                Step::Submit(io) => {
                    if let Some(transfer) = self.memory.transfer(io) {
                        self.device.submit(self.now, io, transfer);
                    }
                }
                Step::Wake(page) => self.wake(page),
            }
        }
    }

    /// Advance the clock to `t` if no other actor runs before; otherwise `who` continues then.
    fn now_at(&mut self, t: Nanos, who: ActorId) {
        if t <= self.now {
            return;
        }
        if t < self.horizon() {
            self.now = t;
        } else {
            self.plan(t, Event::Go(who));
        }
    }

    fn wake(&mut self, page: Vpn) {
        for n in 0..self.tasks.len() {
            let task = &mut self.tasks[n];
            if task.waiting != Some(page) {
                continue;
            }
            task.woken = true;
            if let Some(since) = task.blocked.take() {
                let slept = self.now - since;
                let states = self.idle_states.iter();
                let exit = states.rev().find(|(after, _)| slept >= *after);
                let at = self.now + self.switch + exit.map_or(0, |(_, exit)| *exit);
                self.plan(at, Event::Ready(ActorId(n as u32)));
            }
        }
    }

    /// `who` has completed its steps. Returns whether it has new ones at the present time.
    fn after(&mut self, who: ActorId) -> Result<bool, SimError> {
        let n = who.0 as usize;
        if n < self.tasks.len() {
            self.task(who)
        } else if n < self.tasks.len() + self.reclaimers.len() {
            let goes_on = self.reclaim(who, n - self.tasks.len());
            if !goes_on {
                self.leave(who);
            }
            Ok(goes_on)
        } else {
            self.idle.push(who);
            Ok(false)
        }
    }

    /// A round of the core's own work, executed by `who` after `first` of CPU time. Returns whether there was any.
    fn work(&mut self, who: ActorId, first: Nanos) -> bool {
        self.memory.now = self.now;
        while let Some(page) = self.memory.next_cold() {
            let range = page..page.plus(1);
            self.mm.advise(&mut self.memory, &range, Advice::Cold);
        }
        let more = self.mm.run(&mut self.memory);
        self.set_out(who, 0);
        let actor = self.actor(who);
        if actor.steps.is_empty() && more {
            // A check without result takes time as well.
            actor.steps.push(Step::Cpu(1_000));
        }
        if actor.steps.is_empty() {
            return false;
        }
        actor.steps.insert(0, Step::Cpu(first));
        true
    }

    /// Background reclaim, thread number `n`.
    fn reclaim(&mut self, who: ActorId, n: usize) -> bool {
        let woken = self.reclaimers[n] == Reclaimer::Woken;
        if self.work(who, u64::from(woken) * self.switch) {
            self.reclaimers[n] = Reclaimer::Busy;
            return true;
        }
        self.reclaimers[n] = Reclaimer::Asleep;
        let unsettled = self.mm.is_stalled() || self.mm.has_to_drain();
        if unsettled && !std::mem::replace(&mut self.looks, true) {
            self.plan(self.now + SOON, Event::Look);
        }
        false
    }
}

/// Whether the notice reports a lost page.
fn is_loss(notice: &Notice) -> bool {
    matches!(
        notice,
        Notice::ReadFailed { .. }
            | Notice::Corrupt { .. }
            | Notice::OutOfMemory { .. }
            | Notice::Unaccounted { .. }
            | Notice::WriteFailed { .. }
    )
}

#[cfg(test)]
mod tests;
