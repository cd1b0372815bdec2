//! Load control: what each engine tells of its process, and what the supervisor lets each process do.
//!
//! The supervisor decides (`foreswap_core::process::Load`). What it grants or refuses holds for two seconds and is
//! renewed several times a second: if the supervisor dies, or stops, every process is free after that. A killed process
//! leaves nothing behind, as its words are cleared with its record.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

use foreswap_core::process::{FULL_WEIGHT, Turn};

use super::ProcId;
use super::mapping::Ledger;
use super::records::ProcessState;

/// How long a decision holds, in nanoseconds.
const HOLDS: u64 = 2_000_000_000;

/// The words of one process.
#[repr(C)]
pub(super) struct TurnWords {
    /// Written by its engine.
    needs: AtomicU64,
    lost: AtomicU64,
    losses: AtomicU64,
    /// Its share, and until when the decision holds (0: there is none); written by the supervisor.
    share: AtomicU64,
    until: AtomicU64,
    /// Its faults that wait for its turn, written by its engine.
    waiting: AtomicU32,
    /// Not zero: it waits. Written by the supervisor.
    waits: AtomicU32,
    /// How much its weight is below the full one, written by its engine.
    idleness: AtomicU64,
}

/// What an engine tells of its process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Demand {
    /// Pages that it would have if nothing was short.
    pub needs: u64,
    /// Nanoseconds that it lost by pages that the whole memory of the run would have kept.
    pub lost: u64,
    /// In this number of waits.
    pub losses: u64,
    /// Its faults that wait for its turn.
    pub waiting: u32,
}

impl Ledger {
    /// An engine tells of its process.
    pub fn set_demand(&self, process: ProcId, demand: &Demand) {
        let words = &self.record(process).turn;
        words.needs.store(demand.needs, Relaxed);
        words.lost.store(demand.lost, Relaxed);
        words.losses.store(demand.losses, Relaxed);
        words.waiting.store(demand.waiting, Relaxed);
    }

    /// What was last told of a process.
    pub fn demand(&self, process: ProcId) -> Demand {
        let words = &self.record(process).turn;
        Demand {
            needs: words.needs.load(Relaxed),
            lost: words.lost.load(Relaxed),
            losses: words.losses.load(Relaxed),
            waiting: words.waiting.load(Relaxed),
        }
    }

    /// Supervisor: what a process may do from `now` on, in nanoseconds of the monotonic clock.
    pub fn set_turn(&self, process: ProcId, turn: Turn, now: u64) {
        let words = &self.record(process).turn;
        let (share, waits) = match turn {
            Turn::Free => return words.until.store(0, Relaxed),
            Turn::Has(share) => (share, 0),
            Turn::Waits(share) => (share, 1),
        };
        words.share.store(share, Relaxed);
        words.waits.store(waits, Relaxed);
        words.until.store(now + HOLDS, Relaxed);
    }

    /// What a process may do at `now()`.
    pub fn turn(&self, process: ProcId, now: impl FnOnce() -> u64) -> Turn {
        let words = &self.record(process).turn;
        let until = words.until.load(Relaxed);
        if until == 0 {
            return Turn::Free;
        }
        // A process in a time namespace has another clock: for it, load control is off.
        let left = until.checked_sub(now()).filter(|left| *left <= HOLDS);
        let share = words.share.load(Relaxed);
        match left {
            None => Turn::Free,
            Some(_) if words.waits.load(Relaxed) == 0 => Turn::Has(share),
            Some(_) => Turn::Waits(share),
        }
    }

    /// What `process` counts when the limit is divided.
    pub fn set_weight(&self, process: ProcId, weight: u64) {
        let idleness = FULL_WEIGHT.saturating_sub(weight);
        let words = &self.record(process).turn;
        words.idleness.store(idleness, Relaxed);
    }

    /// What all processes but this one count.
    pub fn weights_of_others(&self, process: ProcId) -> u64 {
        let others = self.header().in_use.members();
        let live =
            others.filter(|&other| other != process && self.state(other) == ProcessState::Live);
        live.map(|other| FULL_WEIGHT.saturating_sub(self.record(other).turn.idleness.load(Relaxed)))
            .sum()
    }

    pub(super) fn clear_turn(&self, process: ProcId) {
        self.set_demand(process, &Demand::default());
        self.set_turn(process, Turn::Free, 0);
        self.set_weight(process, FULL_WEIGHT);
    }
}
