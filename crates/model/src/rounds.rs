//! A driver for tests that direct each event: a round does one of everything that is pending.

use crate::process::{Fork, Process};
use crate::system::System;

impl Process {
    /// One round; `io` says whether devices make progress. Returns whether nothing is left to do.
    pub fn round(&mut self, sys: &mut System, io: bool) -> bool {
        sys.pass(1_000 + self.setup.config.full_timeout / 16);
        self.read_event(sys);
        self.acknowledge();
        self.zap();
        self.unshare();
        if !self.messages.is_empty() {
            self.read_message(sys, 0, self.offset);
        }
        if io && self.space.at_once {
            self.work_off(sys);
        } else if io && !self.space.flights.is_empty() {
            self.complete(sys, 0);
        }
        if self.mm.must_retry() {
            self.call(sys, |mm, w| mm.retry(w));
        }
        if self.fork == Fork::Held {
            self.try_snapshot(sys);
        }
        let more = self.run(sys);
        !more && self.space.flights.is_empty() && self.at_rest()
    }

    /// The device executes one I/O, and completes all when none is left.
    fn work_off(&mut self, sys: &mut System) {
        self.space.worked_off += 1;
        if self.space.worked_off < self.space.flights.len() {
            return;
        }
        self.space.worked_off = 0;
        while !self.space.flights.is_empty() {
            self.complete(sys, 0);
        }
    }
}
