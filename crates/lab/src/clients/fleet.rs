//! The clients and the servers in one time.
//!
//! Whatever is due first happens: an event of a server or of the network, or a step of a client's machine. A client's program
//! runs ahead at most until the next event of the servers, which is the first that can change what it sees. All clients prepare
//! their memory first; what is counted begins when the last of them has, and ends a fixed time later. A failure is one of the
//! first server, an eighth of that time after the begin.

use std::collections::BTreeSet;

use foreswap_core::units::Nanos;

use super::agenda::Event;
use super::pool::Pool;
use super::published;
use super::setting::{Counts, Failure, Setting};
use crate::sim::histogram::Histogram;

/// Touches that a program makes known at a time.
const CHUNK: usize = 64;
const SECOND: Nanos = 1_000_000_000;

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

/// The clients and servers of a run, and which client is due.
pub struct Fleet {
    pub(super) pool: Pool,
    /// Clients by when they act next.
    ready: BTreeSet<(Nanos, u32)>,
}

impl Fleet {
    /// Before anything has happened.
    pub fn new(setting: Setting) -> Self {
        Fleet {
            pool: Pool::new(setting),
            ready: BTreeSet::new(),
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    ///
    /// A client's core broke a rule.
    pub fn run(&mut self) -> Result<Figures, String> {
        for client in 0..self.pool.setting.clients {
            self.feed(client)?;
        }
        while !self.is_settled() {
            // A program runs for long between two looks.
            for _ in 0..1024 {
                self.next(Nanos::MAX)?;
            }
        }
        let (begin, counts) = (self.pool.now, self.pool.counts);
        let loads: Vec<[Nanos; 3]> = self
            .pool
            .servers
            .iter_mut()
            .map(|s| s.load(begin))
            .collect();
        for client in &mut self.pool.clients {
            client.machine.latencies();
            client.bytes = 0;
        }
        let end = begin + self.pool.setting.time;
        if self.pool.setting.failure != Failure::None {
            self.pool
                .at(begin + self.pool.setting.time / 8, Event::Fail);
        }
        while self.next(end)? {}
        Ok(self.figures(end, &counts, &loads))
    }

    fn is_settled(&self) -> bool {
        let mut clients = self.pool.clients.iter();
        clients.all(|client| client.program.is_settled())
    }

    /// Does what is due next, if that is before `end`.
    fn next(&mut self, end: Nanos) -> Result<bool, String> {
        let event = self.pool.agenda.next_at();
        let client = self.ready.first().copied();
        let first = event.into_iter().chain(client.map(|(at, _)| at)).min();
        match first {
            None => return Err("all clients wait, and nothing is under way".into()),
            Some(first) if first >= end => return Ok(false),
            Some(first) => self.pool.now = self.pool.now.max(first),
        }
        match client {
            Some((at, number)) if event.is_none_or(|event| at < event) => {
                let horizon = event.unwrap_or(Nanos::MAX).min(end);
                let client = &mut self.pool.clients[number as usize];
                client.machine.act(horizon)?;
                for request in client.machine.requests() {
                    self.pool.at(request.at, Event::Begin(number, request));
                }
                self.feed(number)?;
            }
            _ => {
                if let Some(event) = self.pool.agenda.next() {
                    self.happens(event)?;
                }
            }
        }
        Ok(true)
    }

    /// A client goes on: its program makes its next touches known, and it is due when it says.
    fn feed(&mut self, number: u32) -> Result<(), String> {
        let client = &mut self.pool.clients[number as usize];
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

    fn happens(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Begin(client, request) => self.pool.submit(client, request),
            Event::Arrive(ticket, life) => self.pool.arrive(ticket, life),
            Event::Server(number, step) => {
                self.pool.act(number, |server, now, effects| {
                    server.step(now, step, effects)
                });
            }
            Event::Landed(ticket) => self.pool.landed(ticket),
            Event::Answered(ticket) => self.pool.answered(ticket),
            Event::Check(client, server) => self.pool.check(client, server),
            Event::Connect(client, server) => self.pool.connect(client, server),
            Event::Late(ticket) => self.pool.late(ticket),
            Event::Fail => self.fail(),
            Event::Restart => self.pool.servers[0].restart(),
        }
        // Whose transfers have ended.
        while let Some(client) = self.pool.touched.pop() {
            self.feed(client)?;
        }
        self.pool.problem.take().map_or(Ok(()), Err)
    }

    fn fail(&mut self) {
        match self.pool.setting.failure {
            Failure::None => {}
            Failure::Pause => self.pool.act(0, |server, now, effects| {
                server.pause(now, published::PAUSE, effects);
            }),
            Failure::Crash => {
                self.pool.servers[0].crash(self.pool.now);
                let back = self.pool.now + published::RESTART.draw(&mut self.pool.rng);
                self.pool.at(back, Event::Restart);
            }
        }
    }

    fn figures(&mut self, end: Nanos, begin: &Counts, loads: &[[Nanos; 3]]) -> Figures {
        let time = self.pool.setting.time as f64;
        let mut figures = Figures {
            counts: self.pool.counts.since(begin),
            client_rates: [f64::MAX, 0.0],
            ..Figures::default()
        };
        for client in &mut self.pool.clients {
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
        for (server, before) in self.pool.servers.iter_mut().zip(loads) {
            let load = server.load(end);
            let [inward, outward, threads] = [0, 1, 2].map(|n| (load[n] - before[n]) as f64 / time);
            let servers = f64::from(self.pool.setting.servers);
            figures.load[0] += inward.max(outward) / servers;
            figures.load[1] += threads / f64::from(self.pool.setting.threads) / servers;
        }
        figures
    }
}
