//! The clients and the servers in one time.
//!
//! Whatever is due first happens: an event of a server or of the network, or a step of a client's machine. A client's program
//! runs ahead at most until the next event of the servers, which is the first that can change what it sees. All clients prepare
//! their memory first; what is counted begins when the last of them has, and ends a fixed time later. A failure is one of the
//! first server, an eighth of that time after the begin.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use foreswap_core::units::Nanos;

use super::published;
use super::relay::{Client, Part};
use super::server::{Effects, Job, Server, Step, Ticket};
use super::workload::Workload;
use crate::replay::Request;
use crate::sim::histogram::Histogram;
use crate::sim::rng::{Rng, mix};

/// Touches that a program makes known at a time.
const CHUNK: usize = 64;
const SECOND: Nanos = 1_000_000_000;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Failure {
    /// Nothing
    None,
    /// A server stands still, as one that forks to save its memory
    Pause,
    /// A server falls silent, and is back after minutes, empty
    Crash,
}

impl Failure {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Failure::None => "none",
            Failure::Pause => "pause",
            Failure::Crash => "crash",
        }
    }
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Clients.
    pub clients: u32,
    /// Servers.
    pub servers: u32,
    /// Each page is on two servers.
    pub mirror: bool,
    /// What each client does.
    pub workload: Workload,
    /// What goes wrong.
    pub failure: Failure,
    /// Memory of a client, in pages.
    pub memory: u64,
    /// What its program touches, in pages.
    pub data: u64,
    /// Work of a program between two touches.
    pub think: Nanos,
    /// How long what is counted takes.
    pub time: Nanos,
    /// `--area-timeout`.
    pub timeout: Nanos,
    /// Bandwidth of a server's link, each way, in bytes a second.
    pub link: u64,
    /// Requests that a server works on at a time.
    pub threads: u32,
    /// Of the random numbers.
    pub seed: u64,
}

/// What became of requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Bytes that clients have got.
    pub read: u64,
    /// Bytes of pages that are on a server, counted once.
    pub written: u64,
    /// Connections that were given up.
    pub broken: u64,
    /// Requests that went out again.
    pub retries: u64,
    /// Reads that failed because the time-out was over.
    pub timeouts: u64,
    /// Reads of pages that the server has lost.
    pub lost: u64,
    /// Writes that were refused because the server was away, or failed with its connection.
    pub unwritten: u64,
}

impl Counts {
    fn since(&self, begin: &Counts) -> Counts {
        Counts {
            read: self.read - begin.read,
            written: self.written - begin.written,
            broken: self.broken - begin.broken,
            retries: self.retries - begin.retries,
            timeouts: self.timeouts - begin.timeouts,
            lost: self.lost - begin.lost,
            unwritten: self.unwritten - begin.unwritten,
        }
    }
}

/// The result.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// In the time that counts.
    pub counts: Counts,
    /// Bytes per second and client, of the slowest and of the fastest.
    pub client_rates: [f64; 2],
    /// Faults that had to wait, of all clients.
    pub latencies: Histogram,
    /// The longest of them, or of those that have not ended.
    pub longest: Nanos,
    /// How much of the time the busier way of the links and the threads were busy, in the mean of the servers.
    pub load: [f64; 2],
    /// Touches that were bus errors, and clients that had one.
    pub bus_errors: [u64; 2],
}

/// Something due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// A client hands a transfer to its relay.
    Begin(u32, Request),
    /// A request reaches its server, sent over a connection to this life of it.
    Arrive(Ticket, u32),
    /// A step of a server.
    Server(u32, Step),
    /// The first byte of an answer reaches the client.
    Landed(Ticket),
    /// The client has all of it.
    Answered(Ticket),
    /// A client looks whether a server answers.
    Check(u32, u32),
    /// A client connects again.
    Connect(u32, u32),
    /// A read has waited too long for a connection.
    Late(Ticket),
    /// The failure.
    Fail,
    /// The server is back.
    Restart,
}

/// The clients and servers of a run.
pub struct Fleet {
    pub(super) setting: Setting,
    pub(super) now: Nanos,
    pub(super) clients: Vec<Client>,
    pub(super) servers: Vec<Server>,
    pub(super) parts: Vec<Part>,
    pub(super) free: Vec<u32>,
    events: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    /// The events of `events`, by number.
    kept: Vec<Event>,
    unused: Vec<u32>,
    made: u64,
    /// Clients by when they act next.
    ready: BTreeSet<(Nanos, u32)>,
    pub(super) rng: Rng,
    pub(super) counts: Counts,
    /// Clients of which a transfer has ended.
    pub(super) touched: Vec<u32>,
    /// Transfers so far.
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// The first violation.
    pub(super) problem: Option<String>,
    effects: Effects,
}

impl Fleet {
    /// Before anything has happened.
    pub fn new(setting: Setting) -> Self {
        let seed = mix(setting.seed ^ u64::from(setting.clients) << 32);
        Fleet {
            setting,
            now: 0,
            clients: (0..setting.clients)
                .map(|n| Client::new(&setting, mix(seed ^ u64::from(n))))
                .collect(),
            servers: (0..setting.servers)
                .map(|_| Server::new(setting.link, setting.threads))
                .collect(),
            parts: Vec::new(),
            free: Vec::new(),
            events: BinaryHeap::new(),
            kept: Vec::new(),
            unused: Vec::new(),
            made: 0,
            ready: BTreeSet::new(),
            rng: Rng::new(seed),
            counts: Counts::default(),
            touched: Vec::new(),
            begun: 0,
            ended: 0,
            problem: None,
            effects: Effects::default(),
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// A client's core broke a rule.
    pub fn run(&mut self) -> Result<Figures, String> {
        for client in 0..self.setting.clients {
            self.feed(client)?;
        }
        while self
            .clients
            .iter()
            .any(|client| !client.program.is_settled())
        {
            // A program runs for long between two looks.
            for _ in 0..1024 {
                self.next(Nanos::MAX)?;
            }
        }
        let (begin, counts) = (self.now, self.counts);
        let loads: Vec<[Nanos; 3]> = self.servers.iter_mut().map(|s| s.load(begin)).collect();
        for client in &mut self.clients {
            client.machine.latencies();
            client.bytes = 0;
        }
        let end = begin + self.setting.time;
        if self.setting.failure != Failure::None {
            self.at(begin + self.setting.time / 8, Event::Fail);
        }
        while self.next(end)? {}
        Ok(self.figures(end, &counts, &loads))
    }

    /// Does what is due next, if that is before `end`.
    fn next(&mut self, end: Nanos) -> Result<bool, String> {
        let event = self.events.peek().map(|Reverse((at, _, _))| *at);
        let client = self.ready.first().copied();
        let first = event.into_iter().chain(client.map(|(at, _)| at)).min();
        match first {
            None => return Err("all clients wait, and nothing is under way".into()),
            Some(first) if first >= end => return Ok(false),
            Some(first) => self.now = self.now.max(first),
        }
        match client {
            Some((at, number)) if event.is_none_or(|event| at < event) => {
                let horizon = event.unwrap_or(Nanos::MAX).min(end);
                let client = &mut self.clients[number as usize];
                client.machine.act(horizon)?;
                for request in client.machine.requests() {
                    self.at(request.at, Event::Begin(number, request));
                }
                self.feed(number)?;
            }
            _ => {
                if let Some(Reverse((_, _, kept))) = self.events.pop() {
                    self.unused.push(kept);
                    self.happens(self.kept[kept as usize])?;
                }
            }
        }
        Ok(true)
    }

    /// A client goes on: its program makes its next touches known, and it is due when it says.
    pub(super) fn feed(&mut self, number: u32) -> Result<(), String> {
        let client = &mut self.clients[number as usize];
        if client.machine.is_idle() {
            client.machine.feed(client.program.by_ref().take(CHUNK))?;
        }
        let next = client.machine.next_at();
        if next != client.due {
            if let Some(due) = client.due {
                self.ready.remove(&(due, number));
            }
            client.due = next;
            if let Some(next) = next {
                self.ready.insert((next, number));
            }
        }
        Ok(())
    }

    /// Something will happen.
    pub(super) fn at(&mut self, at: Nanos, event: Event) {
        let name = match self.unused.pop() {
            Some(name) => {
                self.kept[name as usize] = event;
                name
            }
            None => {
                self.kept.push(event);
                self.kept.len() as u32 - 1
            }
        };
        self.made += 1;
        self.events
            .push(Reverse((at.max(self.now), self.made, name)));
    }

    /// Transfers that are on their way to a relay.
    #[cfg(test)]
    pub(super) fn not_begun(&self) -> u64 {
        let events = self
            .events
            .iter()
            .map(|Reverse((_, _, kept))| self.kept[*kept as usize]);
        events
            .filter(|event| matches!(event, Event::Begin(..)))
            .count() as u64
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(client, request) => self.submit(client, request),
            Event::Arrive(ticket, life) => self.arrive(ticket, life),
            Event::Server(number, step) => {
                self.act(number, |server, now, effects| {
                    server.step(now, step, effects)
                });
            }
            Event::Landed(ticket) => self.landed(ticket),
            Event::Answered(ticket) => self.answered(ticket),
            Event::Check(client, server) => self.check(client, server),
            Event::Connect(client, server) => self.connect(client, server),
            Event::Late(ticket) => self.late(ticket),
            Event::Fail => self.fail(),
            Event::Restart => self.servers[0].restart(),
        }
        // Whose transfers have ended.
        while let Some(client) = self.touched.pop() {
            self.feed(client)?;
        }
        self.problem.take().map_or(Ok(()), Err)
    }

    /// A server acts, and what follows is noted.
    fn act(&mut self, number: u32, act: impl FnOnce(&mut Server, Nanos, &mut Effects)) {
        let mut effects = std::mem::take(&mut self.effects);
        act(&mut self.servers[number as usize], self.now, &mut effects);
        for (at, step) in effects.steps.drain(..) {
            self.at(at, Event::Server(number, step));
        }
        for ticket in effects.answers.drain(..) {
            let back = self.parts[ticket.part as usize].round_trip / 2;
            self.at(self.now + back, Event::Landed(ticket));
        }
        self.effects = effects;
    }

    fn arrive(&mut self, ticket: Ticket, life: u32) {
        let part = self.parts[ticket.part as usize];
        if !part.is_sent(ticket) {
            return;
        }
        let server = &self.servers[part.server as usize];
        if server.is_up() && server.life() != life {
            // Its kernel does not know the connection.
            return self.broken(part.client, part.server);
        }
        let pages = u64::from(part.pages);
        let service = published::SERVICE.draw(&mut self.rng) + published::SERVICE_PAGE * pages;
        let job = Job {
            ticket,
            write: part.write,
            bytes: part.bytes(),
            service,
        };
        self.act(part.server, |server, now, effects| {
            server.arrive(now, job, effects)
        });
    }

    fn fail(&mut self) {
        match self.setting.failure {
            Failure::None => {}
            Failure::Pause => self.act(0, |server, now, effects| {
                server.pause(now, published::PAUSE, effects);
            }),
            Failure::Crash => {
                self.servers[0].crash(self.now);
                let back = self.now + published::RESTART.draw(&mut self.rng);
                self.at(back, Event::Restart);
            }
        }
    }

    fn figures(&mut self, end: Nanos, begin: &Counts, loads: &[[Nanos; 3]]) -> Figures {
        let time = self.setting.time as f64;
        let mut figures = Figures {
            counts: self.counts.since(begin),
            client_rates: [f64::MAX, 0.0],
            ..Figures::default()
        };
        for client in &mut self.clients {
            figures.latencies.merge(&client.machine.latencies());
            let rate = client.bytes as f64 * SECOND as f64 / time;
            let [least, most] = figures.client_rates;
            figures.client_rates = [least.min(rate), most.max(rate)];
            let waits = client
                .machine
                .waits_since()
                .map_or(0, |since| end.saturating_sub(since));
            figures.longest = figures.longest.max(waits);
            let errors = client.machine.bus_errors();
            figures.bus_errors[0] += errors;
            figures.bus_errors[1] += u64::from(errors > 0);
        }
        figures.longest = figures.longest.max(figures.latencies.percentile(100));
        for (server, before) in self.servers.iter_mut().zip(loads) {
            let load = server.load(end);
            let [inward, outward, threads] = [0, 1, 2].map(|n| (load[n] - before[n]) as f64 / time);
            let servers = f64::from(self.setting.servers);
            figures.load[0] += inward.max(outward) / servers;
            figures.load[1] += threads / f64::from(self.setting.threads) / servers;
        }
        figures
    }
}
