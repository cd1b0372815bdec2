//! The tasks: they map memory and touch it, read and write files, wait for each other.
//!
//! A step takes as many frames as a CPU takes from its zone at a time, and then the time of the work on them. Without
//! frames, the task reclaims first ([`super::reclaim`]).

use foreswap_core::units::Nanos;

use super::files::WINDOW;
use super::lists::List;
use super::program::{FileId, Op, Program};
use super::reclaim::{Background, CONGESTION, Direct, Progress};
use super::zones::{BLOCK, FrameId};
use super::{BATCH, Event, Machine};
use crate::sim::machine::SimError;

/// How soon a waiting writer checks again.
const PAUSE: Nanos = 20_000_000;
/// How soon a task checks again that waits for a page which another is about to read.
const SOON: Nanos = 50_000;

/// Memory mapped by a task at present.
#[derive(Debug, Default)]
struct Region {
    frames: Vec<FrameId>,
    huge: Vec<u32>,
    pages: u64,
    /// No huge page was available for the part up to here.
    small: u64,
}

/// The state of a task's read of a file.
#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    file: FileId,
    /// The program's next page, and the next page not requested from the disk yet.
    next: u32,
    ahead: u32,
    /// The start of the last window: the next one is requested there.
    mark: u32,
    /// Pages for which frames are being taken: the first, their number so far, and their final number.
    run: (u32, u32, u32),
    active: bool,
}

/// One task.
#[derive(Debug)]
pub struct Task<P> {
    pub program: P,
    node: usize,
    op: Option<Op>,
    began: Nanos,
    done: u32,
    direct: Option<Direct>,
    regions: Vec<Region>,
    stream: Stream,
    /// When it began to wait; for the disk, the end of its last scan.
    since: Nanos,
    blocked: bool,
    /// Consecutive scans of everything without a freed page.
    fruitless: u32,
    /// Its used part of the slice.
    used: Nanos,
}

impl<P> Task<P> {
    /// About to begin.
    pub fn new(node: usize, program: P) -> Self {
        Task {
            program,
            node,
            op: None,
            began: 0,
            done: 0,
            direct: None,
            regions: Vec::new(),
            stream: Stream::default(),
            since: 0,
            blocked: false,
            fruitless: 0,
            used: 0,
        }
    }

    /// It has been waiting since then.
    pub fn blocked_since(&self, since: Nanos) -> bool {
        self.blocked && self.since == since
    }
}

/// The result of a step.
enum Step {
    /// More work, after this time without the CPU.
    Waits(Nanos),
    /// More work, after this time on the CPU.
    After(Nanos),
    /// Done, after this time on the CPU.
    Over(Nanos),
    /// There is no memory.
    Reclaim,
    /// Another actor will resume it.
    Blocked,
}

impl<P: Program> Machine<P> {
    /// A blocked task continues, after `first` and the wake-up time; a task that has not reached its wait yet
    /// continues from there.
    pub(super) fn resume(&mut self, task: u32, first: Nanos) {
        let entry = &mut self.tasks[task as usize];
        if !std::mem::take(&mut entry.blocked) {
            return;
        }
        let since = entry.since;
        let after = match since.checked_sub(self.now) {
            Some(busy) if busy > 0 => busy.max(first),
            _ => {
                entry.used = 0;
                first + self.wake_up(since)
            }
        };
        self.plan(after, Event::Task(task));
    }

    pub(super) fn on_task(&mut self, n: usize) -> Result<(), SimError> {
        loop {
            let task = &mut self.tasks[n];
            if let Some(mut direct) = task.direct.take() {
                let (home, mut used) = (task.node, task.used);
                let (took, progress) = self.direct(home, &mut used, &mut direct);
                let task = &mut self.tasks[n];
                task.used = used;
                if matches!(progress, Progress::GoesOn | Progress::WaitsForDisk) {
                    task.direct = Some(direct);
                }
                let waits = match progress {
                    Progress::GoesOn => false,
                    Progress::WaitsForDisk => true,
                    Progress::Done => {
                        task.fruitless = 0;
                        false
                    }
                    Progress::Fruitless => {
                        task.fruitless += 1;
                        let fruitless = task.fruitless;
                        let again = self.tries_again(fruitless);
                        again.ok_or(SimError::NoMemory { at: self.now })?
                    }
                };
                if waits {
                    self.wait_for_disk(n, took);
                } else {
                    self.plan(took, Event::Task(n as u32));
                }
                return Ok(());
            }
            let task = &mut self.tasks[n];
            let op = match task.op {
                Some(op) => op,
                None => {
                    let op = task.program.next(self.now);
                    task.began = self.now;
                    task.done = 0;
                    task.op = Some(op);
                    op
                }
            };
            let step = self.step(n, op);
            if !matches!(step, Step::Reclaim) {
                self.tasks[n].fruitless = 0;
            }
            match step {
                Step::Waits(time) => {
                    self.tasks[n].used = 0;
                    self.plan(time, Event::Task(n as u32));
                    return Ok(());
                }
                Step::After(time) => {
                    let mut used = self.tasks[n].used;
                    let time = self.on_cpu(&mut used, time);
                    self.tasks[n].used = used;
                    self.plan(time, Event::Task(n as u32));
                    return Ok(());
                }
                Step::Over(time) => {
                    let mut used = self.tasks[n].used;
                    let time = self.on_cpu(&mut used, time);
                    let task = &mut self.tasks[n];
                    task.used = used;
                    let took = self.now + time - task.began;
                    task.program.done(&op, took);
                    if op == Op::End {
                        self.running -= 1;
                        return Ok(());
                    }
                    task.op = None;
                    self.plan(time, Event::Task(n as u32));
                    return Ok(());
                }
                Step::Reclaim => {
                    self.counts.direct += 1;
                    let after = self.background.iter().any(Background::makes_up);
                    self.counts.direct_after += u64::from(after);
                    self.tasks[n].direct = Some(Direct::new());
                }
                Step::Blocked => {
                    let task = &mut self.tasks[n];
                    task.blocked = true;
                    task.since = self.now;
                    return Ok(());
                }
            }
        }
    }

    /// After this time a task waits for the congested disk, or for [`CONGESTION`].
    fn wait_for_disk(&mut self, n: usize, after: Nanos) {
        let since = self.now + after;
        let task = &mut self.tasks[n];
        (task.blocked, task.since) = (true, since);
        self.congested.push(n as u32);
        self.plan(after + CONGESTION, Event::Enough(n as u32, since));
    }

    fn step(&mut self, n: usize, op: Op) -> Step {
        match op {
            Op::Read {
                file,
                first,
                pages,
                limit,
            } => self.read(n, file, first..first + pages, limit),
            Op::Write { file, first, pages } => self.write(n, file, first, pages),
            Op::Sync(file) => {
                if self.files.is_clean(file) {
                    return Step::Over(0);
                }
                self.sync(file);
                Step::Waits(PAUSE)
            }
            Op::Remove(file) => Step::Over(self.remove(file) * self.prices.truncate),
            Op::Map { pages, huge } => self.map(n, pages, huge),
            Op::Unmap => Step::Over(self.unmap(n)),
            Op::Compute(time) | Op::Sleep(time) => {
                let sleeps = matches!(op, Op::Sleep(_));
                if std::mem::replace(&mut self.tasks[n].done, 1) == 0 {
                    return if sleeps {
                        Step::Waits(time)
                    } else {
                        Step::After(time)
                    };
                }
                let began = self.tasks[n].began;
                Step::Over(if sleeps { self.wake_up(began) } else { 0 })
            }
            Op::Raise(gate, by) => {
                self.gates[gate as usize] += by;
                for task in 0..self.tasks.len() as u32 {
                    let waits = self.tasks[task as usize].op;
                    if let Some(Op::Pass(at, number)) = waits
                        && at == gate
                        && self.gates[gate as usize] >= number
                    {
                        self.resume(task, 0);
                    }
                }
                Step::Over(self.prices.switch)
            }
            Op::Pass(gate, number) => {
                if self.gates[gate as usize] >= number {
                    Step::Over(0)
                } else {
                    Step::Blocked
                }
            }
            Op::End => Step::Over(0),
        }
    }

    fn map(&mut self, n: usize, pages: u64, huge: bool) -> Step {
        let task = &mut self.tasks[n];
        if task.done == 0 {
            task.done = 1;
            task.regions.push(Region::default());
        }
        let node = task.node;
        let Some(region) = task.regions.last() else {
            return Step::Over(0);
        };
        let (have, small) = (region.pages, region.small);
        if have == pages {
            return Step::Over(0);
        }
        let block = u64::from(BLOCK);
        if huge && have >= small && pages - have >= block {
            let huge = self.take_huge(node);
            if let Some(region) = self.tasks[n].regions.last_mut() {
                match huge {
                    Some(block_id) => {
                        region.huge.push(block_id);
                        region.pages += block;
                        region.small = region.pages;
                        return Step::After(self.prices.first_touch_huge);
                    }
                    None => region.small = have + block,
                }
            }
        }
        let end = if have < small { small } else { have + block }.min(pages);
        let Some(waited) = self.take(node, BATCH.min(end - have)) else {
            return Step::Reclaim;
        };
        let got = self.taken.len() as u64;
        for at in 0..self.taken.len() {
            let frame = self.taken[at];
            let home = self.memory.node(frame);
            self.pages.put(home, List::Anon, frame, false);
        }
        if let Some(region) = self.tasks[n].regions.last_mut() {
            region.frames.extend_from_slice(&self.taken);
            region.pages += got;
        }
        Step::After(waited + got * self.prices.first_touch)
    }

    fn unmap(&mut self, n: usize) -> Nanos {
        let Some(region) = self.tasks[n].regions.pop() else {
            return 0;
        };
        let entries = (region.frames.len() + region.huge.len()) as u64;
        for frame in region.frames {
            let home = self.memory.node(frame);
            self.pages.remove(home, frame);
            self.memory.give(frame);
        }
        for block in region.huge {
            self.memory.give_huge(block);
        }
        entries * self.prices.unmap
    }

    fn write(&mut self, n: usize, file: FileId, first: u32, pages: u32) -> Step {
        if self.tasks[n].done > 0 && self.must_wait() {
            return Step::Waits(PAUSE);
        }
        let task = &self.tasks[n];
        let (node, at) = (task.node, first + task.done);
        if task.done == pages {
            return Step::Over(0);
        }
        let end = first + pages;
        let here = |page| self.files.frame(file, page);
        // As many as are present, or as many as are absent.
        let (there, mut count) = match here(at) {
            Some(_) => (
                true,
                (at..end).take_while(|&page| here(page).is_some()).count(),
            ),
            None => (
                false,
                (at..end).take_while(|&page| here(page).is_none()).count(),
            ),
        };
        count = count.min(BATCH as usize);
        let mut took = self.prices.copy + self.prices.dirty;
        let mut waited = 0;
        if !there {
            let Some(locks) = self.take(node, count as u64) else {
                return Step::Reclaim;
            };
            waited = locks;
            count = self.taken.len();
            took += self.prices.bring;
            for n in 0..count {
                self.insert(file, at + n as u32, self.taken[n], false);
            }
        }
        for page in at..at + count as u32 {
            if let Some(frame) = self.files.frame(file, page) {
                self.used(frame);
                self.soil(frame);
            }
        }
        self.tasks[n].done += count as u32;
        Step::After(waited + count as u64 * took)
    }

    fn read(&mut self, n: usize, file: FileId, range: std::ops::Range<u32>, limit: u32) -> Step {
        let mut stream = self.tasks[n].stream;
        if self.tasks[n].done == 0 {
            let goes_on = stream.active && stream.file == file && stream.next == range.start;
            if !goes_on {
                stream = Stream {
                    file,
                    next: range.start,
                    ahead: range.start,
                    mark: range.start,
                    run: (0, 0, 0),
                    active: true,
                };
            }
            self.tasks[n].done = 1;
        }
        let step = self.read_on(n, &mut stream, &range, limit);
        self.tasks[n].stream = stream;
        step
    }

    fn read_on(
        &mut self,
        n: usize,
        stream: &mut Stream,
        range: &std::ops::Range<u32>,
        limit: u32,
    ) -> Step {
        let file = stream.file;
        let (first, have, all) = stream.run;
        if have < all {
            let Some(waited) = self.take(self.tasks[n].node, u64::from(all - have)) else {
                return Step::Reclaim;
            };
            let mut all = all;
            let mut got = 0;
            while let Some(&frame) = self.taken.get(got as usize) {
                let page = first + have + got;
                if self.files.frame(file, page).is_some() {
                    // Another task has read it meanwhile.
                    all = have + got;
                    break;
                }
                self.insert(file, page, frame, true);
                got += 1;
            }
            for n in got as usize..self.taken.len() {
                self.memory.give(self.taken[n]);
            }
            stream.run.1 += got;
            let mut took = waited + u64::from(got) * self.prices.bring;
            if have + got == all {
                if all > 0 {
                    self.read_pages(file, first, all);
                }
                stream.run = (0, 0, 0);
                took += self.prices.submit;
            }
            return Step::After(took);
        }
        if stream.next == range.end {
            return Step::Over(0);
        }
        let here = self.files.frame(file, stream.next);
        let locked = here.is_some_and(|frame| self.pages[frame].locked);
        let ready = here.is_some() && !locked;
        if stream.ahead < stream.next || (here.is_none() && stream.ahead > stream.next) {
            // Pages that were read have been reclaimed again.
            stream.ahead = stream.next;
        }
        let asks = here.is_none() || (ready && stream.next >= stream.mark);
        if asks && stream.ahead < limit {
            let end = limit.min(stream.ahead + WINDOW);
            let missing = |page: &u32| self.files.frame(file, *page).is_none();
            let from = (stream.ahead..end).find(missing);
            stream.mark = stream.ahead;
            match from {
                None => stream.ahead = end,
                Some(from) => {
                    let count = (from..end).take_while(missing).count() as u32;
                    stream.run = (from, 0, count);
                    stream.ahead = from + count;
                }
            }
            return Step::After(0);
        }
        match here {
            Some(frame) if locked => {
                if self.wait_for(frame, n as u32) {
                    Step::Blocked
                } else {
                    Step::Waits(SOON)
                }
            }
            _ => {
                let end = range.end.min(stream.next + BATCH as u32);
                let mut count = 0;
                while stream.next < end {
                    let Some(frame) = self.files.frame(file, stream.next) else {
                        break;
                    };
                    if self.pages[frame].locked {
                        break;
                    }
                    self.used(frame);
                    stream.next += 1;
                    count += 1;
                }
                Step::After(count * self.prices.copy)
            }
        }
    }
}
