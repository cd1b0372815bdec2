//! The steps of a task.

use foreswap_core::units::{Nanos, PageRange, Vpn};

/// The next step of a task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Touch a page, then compute with it.
    Touch {
        /// The page.
        page: Vpn,
        /// Its content changes.
        write: bool,
        /// CPU time of the computation.
        work: Nanos,
    },
    /// Compute without memory, for so long.
    Spin(Nanos),
    /// Map fresh memory.
    Map(PageRange),
    /// Unmap it.
    Unmap(PageRange),
    /// Wait until all other tasks do the same.
    Gather,
    /// End.
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
