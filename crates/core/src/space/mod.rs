//! The address space: the place of each page, and the program's advice about it.
//!
//! `page_table` has an entry for each page. `vma` has the managed regions and their readahead state. `advice` queues
//! requests of the program (madvise). `discarded` has the ranges that the kernel may not have zapped yet.

pub(crate) mod advice;
pub(crate) mod discarded;
pub(crate) mod page_table;
pub(crate) mod vma;

use crate::units::{Frame, Slot};

/// Where the content of an unmapped page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// In this slot.
    In(Slot),
    /// Nowhere: each aligned 8 bytes hold this number.
    Filled(u64),
}

/// Where the content of an unmapped page is while memory is not quiet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// On an area, or nowhere as a word fills it.
    Stored(Stored),
    /// In a frame, of which no slot holds a copy yet.
    Frame(Frame),
    /// Lost.
    Nowhere,
}
