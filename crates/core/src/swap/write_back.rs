//! Write-back: when a compressing area fills up, its coldest pages move to another area.
//!
//! A hand walks the page table. Mapped pages release the slot that they kept on the area. Of the pages that are on it
//! only, those that were evicted longest ago are read into frames and written to the next area that does not compress.
//! The walk finds the age: it is halved after a round that found no page, and doubled when the area fills again. Pages
//! that a fork shares stay, since each process would write its own copy.
//!
//! No fault waits for this work: it goes in small steps, and leaves alone the memory that faults need. If the area
//! fills faster, it refuses writes, and these go to the next area.

use alloc::vec::Vec;

use crate::space::page_table::Entry;
use crate::units::{Frame, Slot, Vpn};

/// It begins when this many sixteenths of the area are used, and ends at this many.
pub(crate) const BEGINS: u64 = 14;
pub(crate) const ENDS: u64 = 13;
/// Pages that one step moves, and looks at.
pub(crate) const BATCH: u32 = 32;
pub(crate) const LOOK: usize = 256;
/// Slots that must be free on the other areas; a part of them if they are small.
pub(crate) const LEAST_ROOM: u64 = 1024;
pub(crate) const LEAST_PART: u64 = 64;

/// Progress of write-back.
#[derive(Default)]
pub(crate) struct WriteBack {
    pub(crate) active: bool,
    pub(crate) hand: Vpn,
    /// A page is cold if at least this many pages were evicted after it.
    pub(crate) age: u32,
    /// This round found a page.
    pub(crate) found: bool,
    pub(crate) met: Vec<(Vpn, Entry)>,
    pub(crate) batch: Vec<(Slot, Frame)>,
}
