//! The tasks: they read page by page as the core's readahead directs, write to the cache, wait and compute.

use foreswap_core::readahead::file::{Event as Met, FilePage, OpenFile, Run};
use foreswap_core::units::{Nanos, PAGE_SIZE};

use super::{DIRTY, Doing, Event, FileMachine, FileOp, FileState, FileWork, Part};
use crate::sim::machine::ActorId;
use crate::sim::page_cache::FileId;

/// The state of a task after a part of its work.
enum Flow {
    /// It continues at once.
    On,
    /// Its CPU time has to pass first.
    Spends,
    /// It waits, without a CPU, until it is woken.
    Waits,
}

impl<W: FileWork> FileMachine<W> {
    /// A task that has a CPU goes on until it waits, ends, or others act first.
    pub(super) fn go(&mut self, who: ActorId) {
        let n = who.0 as usize;
        loop {
            if self.tasks[n].ended {
                return;
            }
            let since = self.tasks[n].since;
            if self.cpus.is_over(self.now.saturating_sub(since)) {
                self.leave(who);
                return self.plan(self.now, Event::Ready(who));
            }
            let flow = match self.tasks[n].doing {
                Doing::Nothing => self.begin(who),
                Doing::Reading { .. } => self.read(who),
                Doing::Writing => self.write(who),
                Doing::Syncing(until) => self.sync(who, until),
            };
            match flow {
                Flow::On => {}
                Flow::Spends => {
                    let cost = std::mem::take(&mut self.tasks[n].cost);
                    let at = self.now + cost;
                    if at >= self.horizon() {
                        return self.plan(at, Event::Go(who));
                    }
                    self.now = at;
                }
                Flow::Waits => return self.leave(who),
            }
        }
    }

    fn spend(&mut self, who: ActorId, time: Nanos) {
        self.tasks[who.0 as usize].cost += time;
    }

    /// The next step of an idle task.
    fn begin(&mut self, who: ActorId) -> Flow {
        let n = who.0 as usize;
        if self.tasks[n].cost > 0 {
            return Flow::Spends;
        }
        let op = self.work.next(n, self.now);
        match op {
            FileOp::Read(Part {
                file,
                offset,
                bytes,
            }) => {
                self.spend(who, self.costs.fault);
                let file_bytes = self.cache.file_pages(file) * PAGE_SIZE as u64;
                let open = &self.open[file.0 as usize];
                let reading = open.begin(offset, bytes, file_bytes);
                let copy = match self.state {
                    FileState::Shared => None,
                    FileState::Copied => Some(Box::new(open.clone())),
                };
                self.tasks[n].doing = Doing::Reading {
                    file,
                    reading,
                    copy,
                    met: None,
                    held: None,
                };
            }
            FileOp::Write(Part {
                file,
                offset,
                bytes,
            }) => {
                self.spend(who, self.costs.fault);
                let page = PAGE_SIZE as u64;
                let pages = bytes.div_ceil(page);
                for at in offset / page..offset / page + pages {
                    self.cache.write(file, at);
                }
                self.spend(who, pages * (self.costs.allocate + self.costs.zero));
                self.tasks[n].doing = Doing::Writing;
            }
            FileOp::Sync => {
                while self.write_next() {
                    self.spend(who, self.costs.submit);
                }
                self.tasks[n].doing = Doing::Syncing(self.disk.next_number());
            }
            FileOp::Reopen(file) => {
                self.open[file.0 as usize] = OpenFile::new(self.policy, self.limits);
                self.spend(who, self.costs.fault);
            }
            FileOp::Compute(time) => self.spend(who, time.max(1)),
            FileOp::Sleep(until) => {
                self.plan(until.max(self.now) + self.costs.switch, Event::Ready(who));
                return Flow::Waits;
            }
            FileOp::Enter => {
                if self.gate == 0 {
                    self.queued.push_back(who);
                    return Flow::Waits;
                }
                self.gate -= 1;
            }
            FileOp::Leave => match self.queued.pop_front() {
                Some(next) => self.wake(next),
                None => self.gate += 1,
            },
            FileOp::End => {
                self.tasks[n].ended = true;
                self.running -= 1;
                return Flow::Waits;
            }
        }
        Flow::On
    }

    /// A read continues.
    fn read(&mut self, who: ActorId) -> Flow {
        let task = &mut self.tasks[who.0 as usize];
        let Doing::Reading {
            file,
            reading,
            copy,
            met,
            held,
        } = &mut task.doing
        else {
            return Flow::On;
        };
        let file = *file;
        let next = match met.take() {
            Some(met) => Some(met),
            None => reading.next(&mut self.cache.view(file)),
        };
        match next {
            None => {
                if let Some(copy) = copy.take() {
                    self.open[file.0 as usize] = *copy;
                }
                task.doing = Doing::Nothing;
                Flow::On
            }
            Some(Met::Use(page)) if held.take() == Some(page) => self.use_page(who, file, page),
            Some(Met::Use(page)) if self.cache.is_ready(file, page.0) => {
                self.use_page(who, file, page)
            }
            // Other events may come before it gets here.
            Some(_) if task.cost > 0 => {
                *met = next;
                Flow::Spends
            }
            Some(Met::Use(page)) => {
                *met = next;
                if !self.cache.has(file, page.0) {
                    self.start_read(who, file, &Run::plain(page, 1));
                }
                self.waiting.push((who, file, page.0));
                Flow::Waits
            }
            Some(now) => {
                self.decide(who, file, now);
                Flow::On
            }
        }
    }

    fn use_page(&mut self, who: ActorId, file: FileId, page: FilePage) -> Flow {
        self.cache.touch(file, page.0);
        self.spend(who, self.costs.zero);
        Flow::On
    }

    /// The policy decides on the event of a read, and its plan is started.
    fn decide(&mut self, who: ActorId, file: FileId, met: Met) {
        let Doing::Reading { reading, copy, .. } = &mut self.tasks[who.0 as usize].doing else {
            return;
        };
        let open = match copy {
            Some(copy) => copy,
            None => &mut self.open[file.0 as usize],
        };
        let plan = open.decide(reading, &self.cache.view(file), met);
        for run in plan.runs() {
            self.start_read(who, file, &run);
        }
        if let Met::Miss(ask) = met
            && !self.cache.has(file, ask.page.0)
        {
            self.start_read(who, file, &Run::plain(ask.page, 1));
        }
    }

    fn start_read(&mut self, who: ActorId, file: FileId, run: &Run) {
        let mut pieces = std::mem::take(&mut self.pieces);
        pieces.clear();
        self.cache.begin_read(file, run, &mut pieces);
        for &piece in &pieces {
            self.spend(who, self.costs.submit + piece.pages * self.costs.allocate);
            self.disk.submit(self.now, false, piece);
        }
        self.pieces = pieces;
    }

    /// A write is in the cache; its writer continues when there is not too much dirty memory.
    fn write(&mut self, who: ActorId) -> Flow {
        let n = who.0 as usize;
        if self.tasks[n].cost > 0 {
            return Flow::Spends;
        }
        self.tasks[n].doing = Doing::Nothing;
        self.write_out();
        if self.cache.unwritten() > self.part_of_memory(DIRTY) && !self.writes.is_empty() {
            self.throttled.push_back(who);
            return Flow::Waits;
        }
        Flow::On
    }

    fn sync(&mut self, who: ActorId, until: u64) -> Flow {
        let n = who.0 as usize;
        if self.tasks[n].cost > 0 {
            return Flow::Spends;
        }
        self.tasks[n].doing = Doing::Nothing;
        if self.writes.first().is_some_and(|&first| first < until) {
            self.syncing.push((who, until));
            return Flow::Waits;
        }
        Flow::On
    }
}
