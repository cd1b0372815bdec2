//! What will happen, in order of time; what is for the same time happens in the order in which it was noted.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::units::Nanos;

use super::server::{Step, Ticket};
use crate::replay::Request;

/// Something due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
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

/// All that is due.
#[derive(Default)]
pub struct Agenda {
    /// Time, order, and number in `kept`.
    events: BinaryHeap<Reverse<(Nanos, u64, u32)>>,
    kept: Vec<Event>,
    unused: Vec<u32>,
    noted: u64,
}

impl Agenda {
    /// Something will happen.
    pub fn at(&mut self, at: Nanos, event: Event) {
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
        self.noted += 1;
        self.events.push(Reverse((at, self.noted, name)));
    }

    /// When the first of it happens.
    pub fn next_at(&self) -> Option<Nanos> {
        self.events.peek().map(|Reverse((at, _, _))| *at)
    }

    /// The first of it, which happens now.
    pub fn next(&mut self) -> Option<Event> {
        let Reverse((_, _, name)) = self.events.pop()?;
        self.unused.push(name);
        Some(self.kept[name as usize])
    }

    /// Transfers that are on their way to a relay.
    #[cfg(test)]
    pub fn not_begun(&self) -> u64 {
        let events = self
            .events
            .iter()
            .map(|Reverse((_, _, name))| self.kept[*name as usize]);
        events
            .filter(|event| matches!(event, Event::Begin(..)))
            .count() as u64
    }
}
