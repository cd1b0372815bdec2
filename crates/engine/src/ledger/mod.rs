//! The ledger: the shared memory with the common limit, swap maps and statistics of all processes of one
//! `foreswap run`, and the messages between them and the supervisor.
//!
//! Every operation is lock-free and may be cut short by SIGKILL at any instruction. Two rules make that harmless.
//! First, the holdings of a process (charged pages, slot references, clusters) are in its own record or bitmap, which
//! only this process changes, or the supervisor after its death. Second, the shared counts derived from them (global
//! charge, use count per slot, used slots per cluster) carry a version, and the record names the word that is being
//! changed. If the process dies in between, [`Ledger::cleanup`] recounts that word from the records and bitmaps. See
//! `charge` and `slots`.

mod charge;
mod clusters;
mod debts;
mod layout;
mod mapping;
mod options;
mod part;
mod process_map;
mod process_set;
pub mod protocol;
mod ram;
mod records;
mod ring;
mod seals;
mod shared_memory;
mod slots;
mod stats;
mod tables;
mod turns;

pub use charge::OverLimit;
pub use debts::DebtState;
pub use layout::{
    AREA_DIRECT, AREA_FAR, AREA_NAME_BYTES, AREA_OBJECTS, AREA_RAM, AREA_SEALED, CLUSTER_SLOTS,
    MAX_AREA_SLOTS, MAX_AREAS, MAX_PROCESSES,
};
pub use mapping::{AreaInfo, AreaState, Ledger, LedgerError, LedgerSpec};
pub use options::{IoBackend, Options, ReadaheadPolicy, ThpMode};
pub use process_map::ProcessMap;
pub use records::{Cleanup, Ended, ProcessState};
pub use ring::{Ring, Seen, SeenKind};
pub use seals::AreaSeals;
pub use shared_memory::SharedMemory;
pub use slots::Put;
pub use stats::{MAX_VMAS, StatsRecord, StatsSnapshot, VmaStats, VmaWords, WINDOW_BUCKETS, count};
pub use turns::Demand;

/// A process record of the ledger: its index, below [`MAX_PROCESSES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ProcId(u16);

impl ProcId {
    /// `None` if there is no such record.
    pub fn new(index: u32) -> Option<Self> {
        ((index as usize) < MAX_PROCESSES).then_some(Self(index as u16))
    }

    /// The index of the record.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// A swap area of the run, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AreaId(pub u8);

/// A cluster of 512 slots within an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClusterIndex(pub u32);

impl ClusterIndex {
    /// The first slot of the cluster.
    pub fn first_slot(self) -> SlotIndex {
        SlotIndex(self.0 * CLUSTER_SLOTS)
    }
}

/// A slot of 4 KiB within an area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SlotIndex(pub u32);

impl SlotIndex {
    /// The cluster it belongs to.
    pub fn cluster(self) -> ClusterIndex {
        ClusterIndex(self.0 / CLUSTER_SLOTS)
    }
}

#[cfg(test)]
mod tests;
