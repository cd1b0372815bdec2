//! The life of a process record: free, reserved for a coming fork child, live, ended, free again.
//!
//! Only the supervisor changes the state. A record is ended when its process is known to be dead
//! (or to have become another program by exec); [`Ledger::cleanup`] then returns everything that it
//! held and makes the record free.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::ProcId;
use super::layout::MAX_PROCESSES;
use super::mapping::Ledger;
use super::stats::{StatsRecord, StatsSnapshot};

/// Where a record is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Nobody's.
    Free,
    /// Set aside for a fork child that has not said hello yet.
    Reserved,
    /// A connected process.
    Live,
    /// Its process is dead; what it held is being returned.
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

/// What a dead process leaves behind.
#[derive(Debug)]
pub struct Ended {
    /// Its statistics.
    pub stats: StatsSnapshot,
    /// The most pages it was charged with.
    pub peak_charged_pages: u64,
}

/// How a clean-up went.
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

    /// The process of a record; 0 where it has none yet.
    pub fn pid(&self, process: ProcId) -> u32 {
        self.record(process).pid.load(Relaxed)
    }

    /// The record whose fork made this process.
    pub fn parent(&self, process: ProcId) -> Option<ProcId> {
        ProcId::new(self.record(process).parent.load(Relaxed).checked_sub(1)?)
    }

    /// Says so where the supervisor was not told.
    pub fn set_parent(&self, process: ProcId, parent: ProcId) {
        let word = &self.record(process).parent;
        word.store(parent.index() as u32 + 1, Relaxed);
    }

    /// The statistics of a process, for its engine to add to.
    pub fn stats(&self, process: ProcId) -> &StatsRecord {
        &self.record(process).stats
    }

    /// Connected processes.
    pub fn live(&self) -> u32 {
        self.header().live.load(Relaxed)
    }

    /// All records that are not free.
    pub fn records_in_use(&self) -> impl Iterator<Item = ProcId> {
        let used = (self.header().records_used.load(SeqCst) as usize).min(MAX_PROCESSES);
        (0..used)
            .filter_map(|index| ProcId::new(index as u32))
            .filter(|&process| self.state(process) != ProcessState::Free)
    }

    /// Whether somebody alive may be changing what the record holds: its process, or the parent that
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
        self.record(process).state.store(state as u32, SeqCst);
        let live = &self.header().live;
        match (before, state) {
            (ProcessState::Live, ProcessState::Live) => {}
            (_, ProcessState::Live) => _ = live.fetch_add(1, Relaxed),
            (ProcessState::Live, _) => _ = live.fetch_sub(1, Relaxed),
            _ => {}
        }
    }

    /// Supervisor: sets a record aside for a child of `parent`. `None`: all are in use.
    pub fn reserve(&self, parent: Option<ProcId>) -> Option<ProcId> {
        let process = (0..MAX_PROCESSES as u32)
            .filter_map(ProcId::new)
            .find(|&process| self.state(process) == ProcessState::Free)?;
        let record = self.record(process);
        record.pid.store(0, Relaxed);
        record
            .parent
            .store(parent.map_or(0, |p| p.index() as u32 + 1), Relaxed);
        record.stats.clear();
        record.peak_charged.store(0, Relaxed);
        self.header()
            .records_used
            .fetch_max(process.index() as u32 + 1, SeqCst);
        self.set_state(process, ProcessState::Reserved);
        Some(process)
    }

    /// Supervisor: the process of a reserved record is known now.
    pub fn set_pid(&self, process: ProcId, pid: u32) {
        self.record(process).pid.store(pid, Relaxed);
    }

    /// Supervisor: the process said hello. False where the record was not reserved.
    pub fn connect(&self, process: ProcId, pid: u32) -> bool {
        if self.state(process) != ProcessState::Reserved {
            return false;
        }
        self.set_pid(process, pid);
        self.set_state(process, ProcessState::Live);
        true
    }

    /// Supervisor: the process is dead, [`Ledger::cleanup`] follows. Of several that died, mark all
    /// before the first is cleaned up: what they were in the middle of then stands still.
    pub fn mark_dead(&self, process: ProcId) {
        if self.state(process) != ProcessState::Free {
            self.set_state(process, ProcessState::Ended);
        }
    }

    /// Supervisor: the process is dead and has no memory any more, though the rest may take a while.
    pub fn give_memory_back(&self, process: ProcId) {
        self.mark_dead(process);
        let has_some = self.record(process).charged.load(SeqCst) > 0;
        if has_some && self.settle_charge(process) {
            self.raise_pressure();
        }
    }

    /// Supervisor: returns everything that a dead process held (slot references, clusters,
    /// charge) and frees its record. The process must be dead, or its engine gone for good, and what it
    /// asked the areas for must have ended: who gets one of its slots writes there at once. May be called
    /// again at any time.
    pub fn cleanup(&self, process: ProcId) -> Cleanup {
        if self.state(process) == ProcessState::Free {
            return Cleanup::Nothing;
        }
        self.set_state(process, ProcessState::Ended);
        let record = self.record(process);
        record.wanted.store(0, SeqCst);
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
        // Room was made: who waits for it should look again.
        self.raise_pressure();
        Cleanup::Done(Box::new(ended))
    }
}
