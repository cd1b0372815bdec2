//! The clients, the servers, and what is between them.
//!
//! A server acts here, and what follows is noted for later. How a client uses its connections is in `relay`.

use std::collections::VecDeque;

use foreswap_core::units::{Nanos, PAGE_SIZE};
use foreswap_core::world::IoId;
use foreswap_core::{ReclaimPolicy, Thp, readahead::Policy};

use super::agenda::{Agenda, Event};
use super::server::{Effects, Server, Ticket};
use super::setting::{Counts, Setting};
use super::workload::Program;
use crate::replay::device::{Device, Kind};
use crate::replay::machine::{Machine, Setup};
use crate::replay::world::System;
use crate::sim::rng::{Rng, mix};

/// Slots of a chunk: 256 KiB.
pub const CHUNK: u32 = 64;

/// Where a part is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It is over; the entry may be used again.
    Free,
    /// It waits for its connection.
    Queued,
    /// It has gone out.
    Sent,
}

/// A part of a transfer, on one server.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Whose.
    pub client: u32,
    /// Where to.
    pub server: u32,
    /// Slots.
    pub pages: u32,
    /// To the server.
    pub write: bool,
    /// The time on the network, both ways.
    pub round_trip: Nanos,
    pub(super) io: IoId,
    pub(super) slot: u32,
    /// Which of the two copies.
    pub(super) copy: u8,
    /// Attempts at the read, with this one.
    pub(super) tries: u8,
    /// The write of which this is a copy.
    pub(super) write_of: u32,
    pub(super) attempt: u32,
    pub(super) place: Place,
    pub(super) sent: Nanos,
}

impl Part {
    /// Its bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pages) * PAGE_SIZE as u64
    }

    /// Its present attempt.
    pub fn ticket(&self, part: u32) -> Ticket {
        let attempt = self.attempt;
        Ticket { part, attempt }
    }

    /// Whether this attempt is under way.
    pub fn is_sent(&self, ticket: Ticket) -> bool {
        self.place == Place::Sent && self.attempt == ticket.attempt
    }
}

/// A connection to one server.
#[derive(Default)]
pub struct Connection {
    pub(super) is_down: bool,
    pub(super) since: Nanos,
    pub(super) pause: Nanos,
    /// The life of the server that it connected to.
    pub(super) life: u32,
    pub(super) under_way: usize,
    pub(super) sent: VecDeque<Ticket>,
    pub(super) reads: VecDeque<u32>,
    pub(super) writes: VecDeque<u32>,
    pub(super) is_checked: bool,
}

/// A transfer of the machine.
#[derive(Clone, Copy, Default)]
pub struct Transfer {
    pub(super) left: u32,
    pub(super) errno: i32,
    pub(super) began: Nanos,
}

/// A write on its way to one or two servers.
#[derive(Clone, Copy, Default)]
pub struct Write {
    pub(super) left: u8,
    pub(super) results: [i32; 2],
}

/// A client.
pub struct Client {
    pub(super) machine: Machine,
    pub(super) program: Program,
    /// When it acts next.
    pub(super) due: Option<Nanos>,
    /// Bytes that it has read and written.
    pub(super) bytes: u64,
    pub(super) connections: Vec<Connection>,
    /// By the number of the machine's I/O.
    pub(super) transfers: Vec<Transfer>,
    pub(super) writes: Vec<Write>,
    pub(super) free: Vec<u32>,
    /// For each slot the life of the server in which it has the page, and 1; 0: it lacks it.
    pub(super) copies: Vec<[u32; 2]>,
    /// When its link is free, to it and from it.
    pub(super) link: [Nanos; 2],
    pub(super) place: u64,
}

impl Client {
    /// With nothing in its memory.
    pub fn new(setting: &Setting, seed: u64) -> Self {
        let setup = Setup {
            memory: setting.memory,
            readahead: Policy::Streams(512),
            thp: Thp::Adaptive,
            reclaim: ReclaimPolicy::Clock,
            // Not used: the area is on servers.
            device: Device::of(Kind::Virtio),
            think: setting.think,
            cpus: 0,
            system: System::default(),
            #[cfg(feature = "ablate")]
            heuristics: Default::default(),
        };
        Client {
            machine: Machine::with_servers(setup, setting.timeout),
            program: setting.workload.program(setting.data, seed),
            due: None,
            bytes: 0,
            connections: (0..setting.servers)
                .map(|_| Connection::default())
                .collect(),
            transfers: Vec::new(),
            writes: Vec::new(),
            free: Vec::new(),
            copies: Vec::new(),
            link: [0; 2],
            place: mix(seed ^ 0x5ead),
        }
    }

    /// The servers of a chunk: its own and, with a mirror, another.
    pub fn servers(&self, slot: u32) -> [u32; 2] {
        let hash = mix(self.place ^ u64::from(slot / CHUNK));
        let all = self.connections.len() as u64;
        let first = hash % all;
        let other = 1 + mix(hash) % (all - 1).max(1);
        [first as u32, ((first + other) % all) as u32]
    }

    /// Whether a server has these slots, as far as the client knows.
    pub fn has(&self, server: u32, copy: usize, slots: std::ops::Range<u32>) -> bool {
        let life = self.connections[server as usize].life + 1;
        let mut slots = slots.map(|slot| self.copies.get(slot as usize));
        slots.all(|copies| copies.is_some_and(|copies| copies[copy] == life))
    }

    /// Whether it has a connection to a server.
    pub fn is_up(&self, server: u32) -> bool {
        !self.connections[server as usize].is_down
    }
}

/// The clients and servers of a run.
pub struct Pool {
    /// The settings.
    pub setting: Setting,
    /// The time.
    pub now: Nanos,
    /// The clients.
    pub clients: Vec<Client>,
    /// The servers.
    pub servers: Vec<Server>,
    /// Parts of transfers, and the entries of these that are free.
    pub parts: Vec<Part>,
    /// Entries of `parts` that are free.
    pub free: Vec<u32>,
    /// What will happen.
    pub agenda: Agenda,
    /// For all that is random.
    pub rng: Rng,
    /// What became of requests.
    pub counts: Counts,
    /// Clients of which a transfer has ended.
    pub touched: Vec<u32>,
    /// Transfers that have begun.
    pub begun: u64,
    /// Transfers that have ended.
    pub ended: u64,
    /// The first violation.
    pub problem: Option<String>,
    effects: Effects,
}

impl Pool {
    /// Before anything has happened.
    pub fn new(setting: Setting) -> Self {
        let seed = mix(setting.seed ^ u64::from(setting.clients) << 32);
        Pool {
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
            agenda: Agenda::default(),
            rng: Rng::new(seed),
            counts: Counts::default(),
            touched: Vec::new(),
            begun: 0,
            ended: 0,
            problem: None,
            effects: Effects::default(),
        }
    }

    /// Something will happen, now at the earliest.
    pub fn at(&mut self, at: Nanos, event: Event) {
        self.agenda.at(at.max(self.now), event);
    }

    /// A server acts, and what follows is noted.
    pub fn act(&mut self, number: u32, act: impl FnOnce(&mut Server, Nanos, &mut Effects)) {
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
}
