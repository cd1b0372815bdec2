//! The address space: the place of each page, and the program's advice about it.
//!
//! `page_table` has an entry for each page. `vma` has the managed regions and their readahead state. `advice` queues
//! requests of the program (madvise). `guard` has pages that must fault, `same_filled` pages that one word fills, and
//! `snapshot` the state that a forked child starts from.

pub(crate) mod advice;
mod guard;
pub(crate) mod page_table;
mod same_filled;
pub(crate) mod snapshot;
pub(crate) mod vma;

use advice::Advised;
use page_table::PageTable;
use vma::Vmas;

use crate::fault::unaccounted::Discarded;

/// The address space of the program.
#[derive(Default)]
pub(crate) struct AddressSpace {
    pub table: PageTable,
    pub vmas: Vmas,
    pub advised: Advised,
    /// Discarded ranges that the kernel may not have zapped yet.
    pub discarded: Discarded,
    /// A fork is held: nothing is evicted.
    pub held: bool,
}
