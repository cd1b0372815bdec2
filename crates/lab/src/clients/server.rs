//! One server: its link, the queue before its threads, and how it stands still or dies.
//!
//! A request that writes comes in over the link before it waits for a thread; the answer of one that reads goes out over the
//! link after its thread is done. A server that stands still lets nothing begin and everything under way take longer by that
//! time, but its kernel goes on sending. A server that crashes forgets all requests and says nothing; when it is back, it is
//! empty.

use std::collections::VecDeque;

use foreswap_core::units::Nanos;

use super::link::{Due, Link};

/// Names one attempt at a request, so that an answer which nobody waits for any more is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The request.
    pub part: u32,
    /// Its attempt.
    pub attempt: u32,
}

/// A request as the server sees it.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// Its name.
    pub ticket: Ticket,
    /// To the server.
    pub write: bool,
    /// Bytes of its pages.
    pub bytes: u64,
    /// Time of a thread.
    pub service: Nanos,
}

/// Something that happens on a server later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// A request has come in.
    In(u32),
    /// A thread is done with job number.., of this life of the server.
    Served(u32, u32),
    /// An answer has gone out.
    Out(u32),
    /// It works again.
    Resume,
}

/// What follows from an event.
#[derive(Debug, Default)]
pub struct Effects {
    /// Steps, and when.
    pub steps: Vec<(Nanos, Step)>,
    /// Requests that are answered now.
    pub answers: Vec<Ticket>,
}

/// One server.
pub struct Server {
    inward: Link,
    outward: Link,
    threads: u32,
    busy: u32,
    queue: VecDeque<u32>,
    jobs: Vec<Job>,
    free: Vec<u32>,
    /// For each job at a thread: `paused` when that was last considered.
    seen: Vec<Nanos>,
    /// Sum of all pauses.
    paused: Nanos,
    still_until: Nanos,
    up: bool,
    /// Lives before this one.
    life: u32,
    /// Time of threads, summed.
    worked: Nanos,
}

impl Server {
    /// An idle server.
    pub fn new(bandwidth: u64, threads: u32) -> Self {
        Server {
            inward: Link::new(bandwidth),
            outward: Link::new(bandwidth),
            threads,
            busy: 0,
            queue: VecDeque::new(),
            jobs: Vec::new(),
            free: Vec::new(),
            seen: Vec::new(),
            paused: 0,
            still_until: 0,
            up: true,
            life: 0,
            worked: 0,
        }
    }

    /// How often it has lost what was on it.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// Whether a new connection would be answered.
    pub fn answers(&self, now: Nanos) -> bool {
        self.up && now >= self.still_until
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.up
    }

    /// Time with a transfer on its link, inward and outward, and the time of its threads, summed.
    pub fn load(&mut self, now: Nanos) -> [Nanos; 3] {
        [self.inward.busy(now), self.outward.busy(now), self.worked]
    }

    /// A request arrives. One that arrives at a dead server is lost.
    pub fn arrive(&mut self, now: Nanos, job: Job, effects: &mut Effects) {
        if !self.up {
            return;
        }
        let name = match self.free.pop() {
            Some(name) => {
                self.jobs[name as usize] = job;
                name
            }
            None => {
                self.jobs.push(job);
                self.seen.push(0);
                self.jobs.len() as u32 - 1
            }
        };
        if job.write {
            let due = self.inward.begin(now, job.bytes, name);
            effects.steps.extend(due.map(arrival));
        } else {
            self.queue.push_back(name);
            self.work(now, effects);
        }
    }

    /// A step is due.
    pub fn step(&mut self, now: Nanos, step: Step, effects: &mut Effects) {
        match step {
            Step::In(version) => {
                if let Some((name, due)) = self.inward.end(now, version) {
                    effects.steps.extend(due.map(arrival));
                    self.queue.push_back(name);
                    self.work(now, effects);
                }
            }
            Step::Out(version) => {
                if let Some((name, due)) = self.outward.end(now, version) {
                    effects.steps.extend(due.map(departure));
                    self.answer(name, effects);
                }
            }
            Step::Served(name, life) if life == self.life && self.up => {
                let late = self.paused - self.seen[name as usize];
                if late > 0 {
                    self.seen[name as usize] = self.paused;
                    effects.steps.push((now + late, step));
                    return;
                }
                self.busy -= 1;
                let job = self.jobs[name as usize];
                if job.write {
                    self.answer(name, effects);
                } else {
                    let due = self.outward.begin(now, job.bytes, name);
                    effects.steps.extend(due.map(departure));
                }
                self.work(now, effects);
            }
            Step::Served(..) => {}
            Step::Resume => self.work(now, effects),
        }
    }

    /// Threads take requests.
    fn work(&mut self, now: Nanos, effects: &mut Effects) {
        if now < self.still_until {
            return;
        }
        while self.busy < self.threads
            && let Some(name) = self.queue.pop_front()
        {
            self.busy += 1;
            self.seen[name as usize] = self.paused;
            let service = self.jobs[name as usize].service;
            self.worked += service;
            let step = Step::Served(name, self.life);
            effects.steps.push((now + service, step));
        }
    }

    fn answer(&mut self, name: u32, effects: &mut Effects) {
        effects.answers.push(self.jobs[name as usize].ticket);
        self.free.push(name);
    }

    /// It stands still for a time.
    pub fn pause(&mut self, now: Nanos, time: Nanos, effects: &mut Effects) {
        self.still_until = now + time;
        self.paused += time;
        effects.steps.push((self.still_until, Step::Resume));
    }

    /// It dies.
    pub fn crash(&mut self, now: Nanos) {
        self.up = false;
        self.life += 1;
        self.inward.cut(now);
        self.outward.cut(now);
        self.queue.clear();
        self.jobs.clear();
        self.free.clear();
        self.seen.clear();
        self.busy = 0;
    }

    /// It is back, empty.
    pub fn restart(&mut self) {
        self.up = true;
    }
}

fn arrival(due: Due) -> (Nanos, Step) {
    (due.at, Step::In(due.version))
}

fn departure(due: Due) -> (Nanos, Step) {
    (due.at, Step::Out(due.version))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the steps in order until none is left; returns when each request was answered.
    struct Bench {
        server: Server,
        steps: Vec<(Nanos, Step)>,
        answered: Vec<(u32, Nanos)>,
    }

    impl Bench {
        fn new(threads: u32) -> Self {
            Bench {
                // A page takes 4096 ns.
                server: Server::new(1_000_000_000, threads),
                steps: Vec::new(),
                answered: Vec::new(),
            }
        }

        fn act(&mut self, now: Nanos, act: impl FnOnce(&mut Server, &mut Effects)) {
            let mut effects = Effects::default();
            act(&mut self.server, &mut effects);
            self.steps.extend(effects.steps);
            let answers = effects.answers.iter().map(|ticket| (ticket.part, now));
            self.answered.extend(answers);
        }

        fn arrive(&mut self, now: Nanos, part: u32, write: bool) {
            let job = Job {
                ticket: Ticket { part, attempt: 1 },
                write,
                bytes: 4096,
                service: 10_000,
            };
            self.act(now, |server, effects| server.arrive(now, job, effects));
        }

        fn run(mut self) -> Vec<(u32, Nanos)> {
            while let Some(at) = (0..self.steps.len()).min_by_key(|&n| self.steps[n].0) {
                let (now, step) = self.steps.remove(at);
                self.act(now, |server, effects| server.step(now, step, effects));
            }
            self.answered
        }
    }

    #[test]
    fn threads_bound_the_requests_at_a_time() {
        let mut bench = Bench::new(2);
        for part in 0..4 {
            bench.arrive(0, part, false);
        }
        // Two at a time; the two answers share the link.
        let [first, second] = [10_000 + 8192, 20_000 + 8192];
        assert_eq!(
            bench.run(),
            [(0, first), (1, first), (2, second), (3, second)]
        );
    }

    #[test]
    fn a_write_comes_in_first_and_its_answer_is_short() {
        let mut bench = Bench::new(1);
        bench.arrive(0, 0, true);
        bench.arrive(0, 1, false);
        // The read was there first; its answer does not delay the write's.
        assert_eq!(bench.run(), [(1, 14_096), (0, 20_000)]);
    }

    #[test]
    fn while_it_stands_still_everything_waits() {
        let mut bench = Bench::new(1);
        bench.arrive(0, 0, false);
        bench.act(5_000, |server, effects| {
            server.pause(5_000, 100_000, effects)
        });
        assert!(!bench.server.answers(104_999) && bench.server.answers(105_000));
        bench.arrive(50_000, 1, false);
        assert_eq!(bench.run(), [(0, 114_096), (1, 124_096)]);
    }

    #[test]
    fn a_crash_loses_all_requests_and_the_next_life_is_another() {
        let mut bench = Bench::new(1);
        for (part, write) in [(0, false), (1, true), (2, false)] {
            bench.arrive(0, part, write);
        }
        bench.act(12_000, |server, _| server.crash(12_000));
        bench.arrive(20_000, 3, false);
        bench.act(30_000, |server, _| server.restart());
        bench.arrive(40_000, 4, false);
        assert_eq!((bench.server.life(), bench.server.is_up()), (1, true));
        assert_eq!(bench.run(), [(4, 54_096)]);
    }
}
