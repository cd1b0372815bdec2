//! The address space: which page is where, and what the program said of it.
//!
//! `page_table` has an entry for each page, `vma` the managed regions with what readahead knows of each, `advice` what
//! the program asked for (madvise), `guard` pages that must fault, `same_filled` pages of one word, and `snapshot` the
//! state that a forked child starts from.

pub(crate) mod advice;
mod guard;
pub(crate) mod page_table;
mod same_filled;
pub(crate) mod snapshot;
pub(crate) mod vma;
