//! The slot allocator alone: tasks take slots of one area side by side and put them back, and each phase is timed.
//!
//! The bench measures the engine's allocator ([`shipped`]): the core's allocator on a ledger in shared memory.
//! [`locked`] is the reference. An area is either empty or *fragmented*: another process holds every second slot of
//! most clusters.

pub mod locked;
pub mod shipped;

use std::ops::Range;
use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, bail, ensure};
use foreswap::sys::cpu;

use crate::usemem::Draw;

/// Slots of a cluster, and of a huge page.
pub const CLUSTER: u32 = 512;
/// One of this many clusters stays whole in a fragmented area.
const WHOLE_ONE_IN: u32 = 8;

/// One task that takes slots and puts them back.
pub trait Task: Send {
    /// Takes slots for one request of up to `request`, and appends them to `taken`. Returns how many; 0 when there are
    /// none. A request of [`CLUSTER`] is for a whole cluster, or its number of slots.
    fn take(&mut self, request: u32, taken: &mut Vec<Range<u32>>) -> u32;
    /// Puts back slots, which are its own.
    fn put(&mut self, slots: Range<u32>);
    /// Releases everything that is kept for later requests.
    fn end(&mut self);
}

/// An area that slots are taken from.
pub trait Area {
    /// Its tasks.
    type Task<'a>: Task
    where
        Self: 'a;
    /// `count` tasks, at most [`TASKS`].
    fn tasks(&self, count: usize) -> Vec<Self::Task<'_>>;
    /// Slots in use, by all processes.
    fn used(&self) -> u64;
}

/// The most tasks that an area is asked for.
pub const TASKS: usize = 2;

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Slots of each request.
    pub request: u32,
    /// Tasks side by side.
    pub tasks: usize,
    /// Slots that they take in total.
    pub slots: u64,
}

/// Its result, summed over its tasks.
#[derive(Debug, Clone, Copy)]
pub struct Measured {
    /// Slots taken, and put back.
    pub slots: u64,
    /// Requests.
    pub calls: u64,
    /// From the first task's first request to the last one's end.
    pub take_seconds: f64,
    /// The same for putting them back.
    pub put_seconds: f64,
}

/// Takes and puts according to `plan`. Fails when the area's count of used slots does not agree with the slots taken
/// and put.
pub fn measure<A: Area>(area: &A, plan: Plan) -> anyhow::Result<Measured> {
    let before = area.used();
    let share = plan.slots / plan.tasks as u64;
    // The tasks, and this thread, which checks the use between the phases.
    let together = Barrier::new(plan.tasks + 1);
    let cpus = cpu::allowed().context("which CPUs may be used")?;
    let (tasks, used) = std::thread::scope(|scope| {
        // Each on its own CPU: left to the scheduler, short tasks run one after the other.
        let start = |(task, &cpu)| {
            let together = &together;
            scope.spawn(move || {
                // On failure the task stays where the scheduler placed it.
                let _ = cpu::set_affinity([cpu]);
                run(task, plan.request, share, together)
            })
        };
        let tasks = area.tasks(plan.tasks).into_iter();
        let threads: Vec<_> = tasks.zip(cpus.iter().cycle()).map(start).collect();
        together.wait();
        together.wait();
        let used = area.used();
        together.wait();
        let tasks: Result<Vec<_>, _> = threads.into_iter().map(|thread| thread.join()).collect();
        (tasks, used)
    });
    let Ok(tasks) = tasks else {
        bail!("a task of the slot measurement panicked");
    };
    let slots = tasks.iter().map(|task| task.slots).sum::<u64>();
    let after = area.used();
    ensure!(
        used == before + slots && after == before,
        "slots were lost or taken twice: {before} were used, {slots} were taken, then {used} were used, \
         and {after} when all were put back"
    );
    Ok(Measured {
        slots,
        calls: tasks.iter().map(|task| task.calls).sum(),
        take_seconds: over_all(tasks.iter().map(|task| &task.took)),
        put_seconds: over_all(tasks.iter().map(|task| &task.put)),
    })
}

/// The work of one task, and its times.
struct OfTask {
    slots: u64,
    calls: u64,
    took: Range<Instant>,
    put: Range<Instant>,
}

fn run(mut task: impl Task, request: u32, share: u64, together: &Barrier) -> OfTask {
    // All room is made and touched before: only page faults of the allocator are timed.
    let mut taken = vec![0..0; share as usize + request as usize];
    taken.clear();
    together.wait();
    let start = Instant::now();
    let (mut slots, mut calls) = (0, 0);
    while slots < share {
        let got = task.take(request, &mut taken);
        calls += 1;
        slots += u64::from(got);
        if got == 0 {
            break;
        }
    }
    task.end();
    let took = start..Instant::now();
    together.wait();
    together.wait();
    let start = Instant::now();
    for range in &taken {
        task.put(range.clone());
    }
    OfTask {
        slots,
        calls,
        took,
        put: start..Instant::now(),
    }
}

/// Seconds from the first start to the last end.
fn over_all<'a>(phases: impl Iterator<Item = &'a Range<Instant>> + Clone) -> f64 {
    let start = phases.clone().map(|phase| phase.start).min();
    let end = phases.map(|phase| phase.end).max();
    let both = end.zip(start);
    both.map_or(0.0, |(end, start)| (end - start).as_secs_f64())
}

/// Takes every free slot by each task in turn and puts it back, so that all memory of the area's tables is allocated.
pub fn touch<A: Area>(area: &A) {
    for mut task in area.tasks(TASKS) {
        let mut taken = Vec::new();
        while task.take(16, &mut taken) > 0 {}
        task.end();
        for range in taken {
            task.put(range);
        }
    }
}

/// Seconds of one request for a whole cluster that fails, over `calls` requests. Every whole cluster is taken before,
/// and put back after.
pub fn refusal<A: Area>(area: &A, calls: u32) -> anyhow::Result<f64> {
    let Some(mut task) = area.tasks(1).pop() else {
        bail!("an area without tasks");
    };
    let mut taken = Vec::new();
    while task.take(CLUSTER, &mut taken) > 0 {}
    let start = Instant::now();
    let got: u32 = (0..calls).map(|_| task.take(CLUSTER, &mut taken)).sum();
    let seconds = start.elapsed().as_secs_f64();
    for range in taken {
        task.put(range);
    }
    ensure!(
        got == 0,
        "{got} slots were free in an area without a free cluster"
    );
    Ok(seconds / f64::from(calls))
}

/// The clusters of a fragmented area of `clusters` in which another process holds every second slot.
pub fn fragmented(clusters: u32, seed: u64) -> Vec<u32> {
    let mut all: Vec<u32> = (0..clusters).collect();
    let mut draw = Draw::new(seed, 0);
    let count = clusters - clusters / WHOLE_ONE_IN;
    for i in 0..count as usize {
        let other = i + draw.below((all.len() - i) as u64) as usize;
        all.swap(i, other);
    }
    all.truncate(count as usize);
    all
}

/// The slots of a fragmented `cluster` that another process holds.
pub fn held(cluster: u32) -> impl Iterator<Item = u32> {
    (0..CLUSTER)
        .step_by(2)
        .map(move |slot| cluster * CLUSTER + slot)
}

/// Appends slots to those taken before.
fn append(taken: &mut Vec<Range<u32>>, more: Range<u32>) {
    match taken.last_mut() {
        Some(last) if last.end == more.start => last.end = more.end,
        _ => taken.push(more),
    }
}

#[cfg(test)]
mod tests;
