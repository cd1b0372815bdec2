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
