//! The life of a process record: free, reserved for a coming fork child, live, ended, free again.
//!
//! Only the supervisor changes the state. A record is ended when its process is known to be dead (or to have executed
//! another program); [`Ledger::cleanup`] then returns its holdings and frees the record.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::ProcId;
use super::layout::MAX_PROCESSES;
use super::mapping::Ledger;
use super::stats::{StatsRecord, StatsSnapshot};

/// The state of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Unused.
    Free,
    /// Reserved for a fork child that has not said hello yet.
    Reserved,
    /// A connected process.
    Live,
    /// Its process is dead; its holdings are being returned.
    Ended,
}

impl ProcessState {
    fn from_word(word: u32) -> Self {
        match word {
            1 => Self::Reserved,
            2 => Self::Live,
            3 => Self::Ended,
            _ => Self::Free,
        }
    }
}

/// The remains of a dead process.
#[derive(Debug)]
pub struct Ended {
    /// Its statistics.
    pub stats: StatsSnapshot,
    /// The maximum of its charged pages.
    pub peak_charged_pages: u64,
}

/// The result of a clean-up.
#[derive(Debug)]
pub enum Cleanup {
    /// Everything was returned, and the record is free.
    Done(Box<Ended>),
    /// A living process was in the middle of an operation on the same word: call again later.
    Busy,
    /// The record was free already.
    Nothing,
}

impl Ledger {
    /// The state of a record.
    pub fn state(&self, process: ProcId) -> ProcessState {
        ProcessState::from_word(self.record(process).state.load(SeqCst))
    }

    /// The process of a record; 0 before it is known.
    pub fn pid(&self, process: ProcId) -> u32 {
        self.record(process).pid.load(Relaxed)
    }

    /// The record whose fork made this process.
    pub fn parent(&self, process: ProcId) -> Option<ProcId> {
        ProcId::new(self.record(process).parent.load(Relaxed).checked_sub(1)?)
    }

    /// Records the parent where the supervisor did not know it.
    pub fn set_parent(&self, process: ProcId, parent: ProcId) {
        let word = &self.record(process).parent;
        word.store(parent.index() as u32 + 1, Relaxed);
    }

    /// The statistics of a process, updated by its engine.
    pub fn stats(&self, process: ProcId) -> &StatsRecord {
        &self.record(process).stats
    }

    /// Connected processes.
    pub fn live(&self) -> u32 {
        self.header().live.load(Relaxed)
    }

    /// All records that are not free.
    pub fn records_in_use(&self) -> impl Iterator<Item = ProcId> {
        let in_use = self.header().in_use.members();
        in_use.filter(|&process| self.state(process) != ProcessState::Free)
    }

    /// Whether a living process may be changing the holdings of the record: its own process, or the parent that
    /// prepares it for a fork child.
    pub(super) fn may_act(&self, process: ProcId) -> bool {
        match self.state(process) {
            ProcessState::Live => true,
            ProcessState::Reserved => self
                .parent(process)
                .is_some_and(|parent| self.state(parent) == ProcessState::Live),
            ProcessState::Ended | ProcessState::Free => false,
        }
    }

    fn set_state(&self, process: ProcId, state: ProcessState) {
        let before = self.state(process);
        let header = self.header();
        if before == ProcessState::Free {
            header.in_use.insert(process);
        }
        self.record(process).state.store(state as u32, SeqCst);
        if state == ProcessState::Free {
            header.in_use.remove(process);
        }
        let live = &header.live;
        match (before, state) {
            (ProcessState::Live, ProcessState::Live) => {}
            (_, ProcessState::Live) => _ = live.fetch_add(1, Relaxed),
            (ProcessState::Live, _) => _ = live.fetch_sub(1, Relaxed),
            _ => {}
        }
    }

    /// Supervisor: reserves a record for a child of `parent`. `None`: all are in use.
    pub fn reserve(&self, parent: Option<ProcId>) -> Option<ProcId> {
        let mut in_use = self.header().in_use.members();
        // The first gap.
        let process = (0..MAX_PROCESSES as u32)
            .filter_map(ProcId::new)
            .find(|&process| in_use.next() != Some(process))?;
        let record = self.record(process);
        record.pid.store(0, Relaxed);
        record
            .parent
            .store(parent.map_or(0, |p| p.index() as u32 + 1), Relaxed);
        record.stats.clear();
        self.clear_turn(process);
        record.peak_charged.store(0, Relaxed);
        self.set_state(process, ProcessState::Reserved);
        Some(process)
    }

    /// Supervisor: the process of a reserved record is now known.
    pub fn set_pid(&self, process: ProcId, pid: u32) {
        self.record(process).pid.store(pid, Relaxed);
    }

    /// Supervisor: the process said hello. False if the record was not reserved.
    pub fn connect(&self, process: ProcId, pid: u32) -> bool {
        if self.state(process) != ProcessState::Reserved {
            return false;
        }
        self.set_pid(process, pid);
        self.set_state(process, ProcessState::Live);
        true
    }

    /// Supervisor: the process is dead; [`Ledger::cleanup`] follows. If several died, mark all before the first is
    /// cleaned up: their operations in progress then stand still.
    pub fn mark_dead(&self, process: ProcId) {
        if self.state(process) != ProcessState::Free {
            self.set_state(process, ProcessState::Ended);
        }
    }

    /// Supervisor: the process is dead and has no memory any more, although the rest may take a while.
    pub fn give_memory_back(&self, process: ProcId) {
        self.mark_dead(process);
        let has_some = self.record(process).charged.load(SeqCst) > 0;
        if has_some && self.settle_charge(process) {
            self.raise_pressure();
        }
    }

    /// Supervisor: returns all holdings of a dead process (slot references, clusters, charge) and frees its record.
    /// The process must be dead, or its engine gone for good, and its I/O must have ended: the next owner of a slot
    /// writes there at once. May be called again at any time.
    pub fn cleanup(&self, process: ProcId) -> Cleanup {
        if self.state(process) == ProcessState::Free {
            return Cleanup::Nothing;
        }
        self.set_state(process, ProcessState::Ended);
        let (record, header) = (self.record(process), self.header());
        record.wanted.store(0, SeqCst);
        header.wanting.remove(process);
        header.owing.remove(process);
        if !self.settle_charge(process) || !self.settle_slots(process) {
            return Cleanup::Busy;
        }
        self.drop_holdings(process);
        self.bury(process);
        let ended = Ended {
            stats: record.stats.snapshot(),
            peak_charged_pages: record.peak_charged.load(Relaxed),
        };
        self.set_state(process, ProcessState::Free);
        // There is room now: waiters should look again.
        self.raise_pressure();
        Cleanup::Done(Box::new(ended))
    }
}
