//! The steps of a task.

use foreswap_core::units::Nanos;

/// Names a file.
pub type FileId = u32;

/// Identifies a gate, a rising number for which tasks wait.
pub type GateId = u32;

/// The next step of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read pages of a file.
    Read {
        /// The file.
        file: FileId,
        /// The first page.
        first: u32,
        /// The number of pages.
        pages: u32,
        /// The limit of readahead.
        limit: u32,
    },
    /// Write pages of a file.
    Write {
        /// The file.
        file: FileId,
        /// The first page.
        first: u32,
        /// The number of pages.
        pages: u32,
    },
    /// Wait until all of a file is on the disk.
    Sync(FileId),
    /// Remove a file's content.
    Remove(FileId),
    /// Map memory and touch each page.
    Map {
        /// The number of pages.
        pages: u64,
        /// With huge pages if available.
        huge: bool,
    },
    /// Unmap the last mapping.
    Unmap,
    /// Compute.
    Compute(Nanos),
    /// Sleep.
    Sleep(Nanos),
    /// Raise a gate's number.
    Raise(GateId, u64),
    /// Wait until a gate's number is at least this.
    Pass(GateId, u64),
    /// End. Mapped memory stays.
    End,
}

/// A task's work.
pub trait Program {
    /// The next step, begun at `now`.
    fn next(&mut self, now: Nanos) -> Op;

    /// The last step is over after this time.
    fn done(&mut self, op: &Op, took: Nanos) {
        let _ = (op, took);
    }
}
