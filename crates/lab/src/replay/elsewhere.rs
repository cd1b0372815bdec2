//! A machine whose area is on servers: its transfers go out as [`Request`]s, and somebody else says when and how each ends.
//!
//! Several machines and their servers share a time. Whoever drives them runs the machine that is due first, up to the next
//! event of the servers: nothing before that can change what it sees. A page that cannot be read back is a bus error at each
//! touch, and the program goes on, as if it handled the signal: its further faults are of interest.

use std::cmp::Reverse;
use std::collections::HashSet;

use foreswap_core::units::{Nanos, Slot, Vpn};
use foreswap_core::world::{IoId, Notice};

use super::machine::{FULL_TIMEOUT, Machine, Op, Setup};
use super::world::Simulated;
use crate::hash::Spread;
use crate::sim::histogram::Histogram;

/// A transfer that leaves the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When the engine handed it over.
    pub at: Nanos,
    /// Its name on this machine until it ends.
    pub io: IoId,
    /// The first slot.
    pub slot: Slot,
    /// Slots.
    pub pages: u32,
    /// To the area.
    pub write: bool,
}

/// What failed, and where transfers are.
#[derive(Default)]
pub struct Elsewhere {
    sent: Vec<Request>,
    /// Transfers that have not ended.
    left: u64,
    /// Transfers that have ended.
    ended: u64,
    lost: HashSet<u64, Spread>,
    bus_errors: u64,
}

impl Elsewhere {
    /// Transfers that have not ended.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// A transfer begins.
    pub fn submit(&mut self, at: Nanos, io: IoId, slot: Slot, pages: usize, write: bool) {
        self.left += 1;
        self.sent.push(Request {
            at,
            io,
            slot,
            pages: pages as u32,
            write,
        });
    }

    /// `page` cannot be read back.
    pub fn lose(&mut self, page: Vpn) {
        self.lost.insert(page.0);
    }

    /// Whether an event is one that servers cause; others are errors of the core.
    pub fn notice(&self, notice: Notice) -> bool {
        match notice {
            Notice::AreasFull
            | Notice::ReadFailed { .. }
            | Notice::WriteFailed { .. }
            | Notice::OutOfMemory { .. } => true,
            Notice::Corrupt { .. } | Notice::Unaccounted { .. } | Notice::LimitPassed => false,
        }
    }
}

/// The faults that wait, and how long those took that have ended.
#[derive(Default)]
pub struct Watch {
    waiting: HashSet<u64, Spread>,
    /// From the touch until the thread runs again, of faults that waited for a read or for memory.
    pub latencies: Histogram,
}

impl Watch {
    /// The fault on `page` waits.
    pub fn waits(&mut self, page: Vpn) {
        self.waiting.insert(page.0);
    }

    /// `page` is there. Whether a fault on it had to wait.
    pub fn ends(&mut self, page: Vpn) -> bool {
        self.waiting.remove(&page.0)
    }
}

impl Simulated {
    /// Whether a touch of `page`, which is not mapped, is a bus error; it is counted.
    pub fn bus_error(&mut self, page: Vpn) -> bool {
        let Some(elsewhere) = &mut self.elsewhere else {
            return false;
        };
        let is_lost = !elsewhere.lost.is_empty() && elsewhere.lost.contains(&page.0);
        elsewhere.bus_errors += u64::from(is_lost);
        is_lost
    }
}

impl Machine {
    /// A machine with one task and an area on servers, which are waited for during `timeout`. So is memory at least, as in
    /// `foreswap run`.
    pub fn with_servers(setup: Setup, timeout: Nanos) -> Self {
        let mut machine = Machine::patient(setup, timeout.max(FULL_TIMEOUT));
        machine.w.elsewhere = Some(Elsewhere::default());
        machine.watch = Some(Watch::default());
        machine.start(0);
        machine
    }

    /// The task has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.tasks[0].ops.is_empty()
    }

    /// The task has more to do.
    ///
    /// # Errors
    ///
    /// As [`Machine::record`].
    pub fn feed(&mut self, ops: impl Iterator<Item = Op>) -> Result<(), String> {
        for op in ops {
            self.push(0, op)?;
        }
        Ok(())
    }

    /// When it acts next; `None`: when a transfer has ended, or the task has more to do.
    pub fn next_at(&self) -> Option<Nanos> {
        let both = [self.engine_at(), self.task_at()];
        both.into_iter().flatten().min()
    }

    /// Acts once; the task runs up to `horizon`.
    ///
    /// # Errors
    ///
    /// As [`Machine::record`].
    pub fn act(&mut self, horizon: Nanos) -> Result<(), String> {
        self.step_within(horizon)
    }

    /// The transfers that have begun since the last call.
    pub fn requests(&mut self) -> Vec<Request> {
        let elsewhere = self.w.elsewhere.as_mut();
        elsewhere.map_or_else(Vec::new, |elsewhere| std::mem::take(&mut elsewhere.sent))
    }

    /// A transfer has ended at `at`, with an errno or 0.
    pub fn ended(&mut self, io: IoId, at: Nanos, errno: i32) {
        let w = &mut self.w;
        if let Some(elsewhere) = &mut w.elsewhere {
            elsewhere.left -= 1;
            elsewhere.ended += 1;
            w.flights[io.0 as usize].errno = errno;
            w.ends.push(Reverse((at, elsewhere.ended, io.0)));
        }
    }

    /// How long faults took since the last call that had to wait.
    pub fn latencies(&mut self) -> Histogram {
        let watch = self.watch.as_mut();
        watch.map_or_else(Histogram::default, |watch| {
            std::mem::take(&mut watch.latencies)
        })
    }

    /// Since when the task waits for a page.
    pub fn waits_since(&self) -> Option<Nanos> {
        self.tasks[0].since
    }

    /// Transfers that have begun and not ended.
    #[cfg(test)]
    pub fn transfers_left(&self) -> u64 {
        self.w.elsewhere.as_ref().map_or(0, Elsewhere::left)
    }

    /// Touches that were bus errors.
    pub fn bus_errors(&self) -> u64 {
        self.w.elsewhere.as_ref().map_or(0, |e| e.bus_errors)
    }
}
