//! What a task does, step by step.

use foreswap_core::units::Nanos;

/// Names a file.
pub type FileId = u32;

/// Names something that tasks wait for: a number that only grows.
pub type GateId = u32;

/// The next thing that a task does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// Read pages of a file.
    Read {
        /// Which.
        file: FileId,
        /// From which page on.
        first: u32,
        /// How many.
        pages: u32,
        /// How far readahead may go.
        limit: u32,
    },
    /// Write pages of a file.
    Write {
        /// Which.
        file: FileId,
        /// From which page on.
        first: u32,
        /// How many.
        pages: u32,
    },
    /// Wait until all of a file is on the disk.
    Sync(FileId),
    /// Remove a file's content.
    Remove(FileId),
    /// Map memory and touch each page.
    Map {
        /// How many pages.
        pages: u64,
        /// Huge pages serve it where there are any.
        huge: bool,
    },
    /// Unmap what was mapped last.
    Unmap,
    /// Compute.
    Compute(Nanos),
    /// Sleep.
    Sleep(Nanos),
    /// Make a gate's number larger.
    Raise(GateId, u64),
    /// Wait until a gate's number is at least this.
    Pass(GateId, u64),
    /// Nothing more. What is mapped stays.
    End,
}

/// A task's work.
pub trait Program {
    /// The next step, begun at `now`.
    fn next(&mut self, now: Nanos) -> Op;

    /// The last step is over; it took so long.
    fn done(&mut self, op: &Op, took: Nanos) {
        let _ = (op, took);
    }
}
