//! A machine whose area is on servers, for whoever simulates these.
//!
//! Several machines and their servers share a time. Whoever drives them runs the machine that is due first, up to the next
//! event of the servers: nothing before that can change what it sees.

use std::cmp::Reverse;

use foreswap_core::units::Nanos;
use foreswap_core::world::IoId;

use super::elsewhere::{Elsewhere, Request, Watch};
use super::machine::{FULL_TIMEOUT, Machine, Op, Setup};
use crate::sim::histogram::Histogram;

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
            w.flights[io.0 as usize].errno = errno;
            w.ends.push(Reverse((at, elsewhere.end(), io.0)));
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
