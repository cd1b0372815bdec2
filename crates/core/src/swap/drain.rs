//! swapoff: everything on an area is moved into memory or to another area, while the program runs.
//!
//! A pass walks the page table in order of address. Pages that are on the area only are read in large I/Os, several at
//! a time. Pages that were read are mapped by few calls while the limit has room; otherwise they become dirty, and are
//! written to another area. Pages that readahead read are looked up by the same function as in faults, and counted as
//! hits there. A page behind the pass may get a slot on the area again (a write that was in flight, a page that could
//! not be mapped). Passes therefore follow each other until the supervisor finds the area empty in all processes.
//!
//! A fault never waits for this: a step does nothing while a fault waits for memory, leaves the reserve of faults
//! alone, and keeps few reads in flight while the program is faulting. If memory and the other areas fill up meanwhile,
//! swapoff is given up ([`Mm::starved`]), not a page.

use alloc::vec::Vec;

use crate::space::page_table::Entry;
use crate::units::{Frame, LEAF_PAGES, Nanos, Slot, Vpn};

/// The most slots that one read of swapoff covers (2 MiB).
pub const SLOTS_PER_SWAPOFF_IO: usize = LEAF_PAGES;
/// Pages in flight, and while the program is faulting.
pub(crate) const DEPTH: u32 = 4096;
pub(crate) const DEPTH_BESIDE_FAULTS: u32 = 256;
/// I/Os in flight: slots need not be consecutive, and faults need entries of the queue.
pub(crate) const IOS: u32 = 64;
/// After a fault, the program counts as faulting for this time.
pub(crate) const CALM: Nanos = 2_000_000;
/// Pages that one step looks at.
pub(crate) const STEP: usize = 512;
/// The pause between two passes: while pages are left, and (doubled each time) when none are.
pub(crate) const PAUSE: Nanos = 1_000_000;
pub(crate) const LONGEST_PAUSE: Nanos = 256_000_000;
/// Slots that must stay free elsewhere, as other processes take some before the next look.
pub(crate) const MARGIN: u64 = 1024;

/// How an area is emptied. The variants beside ours show the results of seed 003.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Swapoff {
    /// A deep stream of large reads.
    #[default]
    Stream,
    /// As the kernel does since seed 003: page by page. The readahead policy answers each miss, and each page found in
    /// memory counts as a hit.
    Readahead,
    /// As the kernel did before: pages that are in memory already count as misses.
    LegacyStats,
}

/// The area that is being emptied, and the progress.
#[derive(Default)]
pub(crate) struct Drain {
    pub(crate) area: Option<u8>,
    /// Where the pass continues.
    pub(crate) cursor: Vpn,
    /// The pass found pages of the area.
    pub(crate) found: bool,
    /// Passes since then that found none.
    pub(crate) idle: u32,
    /// No step before this time.
    pub(crate) resume: Nanos,
    /// Pages and I/Os in flight.
    pub(crate) pages: u32,
    pub(crate) ios: u32,
    /// Major faults at the last step, and when there was a new one.
    pub(crate) faults: u64,
    pub(crate) fault_at: Nanos,
    /// The page that was looked up last (page by page).
    pub(crate) looked: Option<Vpn>,
    /// A fault waits for memory that swapoff keeps from it.
    pub(crate) starved: bool,
    /// Times in a row that no cluster was free for a unit.
    pub(crate) waits: u32,
    /// Units that are to be read in single pages, as huge pages are slow to get; and how many were the last time.
    pub(crate) singles: u32,
    pub(crate) pause: u32,
    pub(crate) met: Vec<(Vpn, Entry)>,
    pub(crate) batch: Vec<(Slot, Frame)>,
    pub(crate) come: Vec<(Vpn, Frame)>,
}

impl Drain {
    /// A read is over.
    pub(crate) fn ended(&mut self, pages: usize) {
        self.pages -= pages as u32;
        self.ios -= 1;
    }

    /// The pass goes back to `page`, if it is beyond it.
    pub(crate) fn go_back(&mut self, page: Vpn) {
        self.cursor = self.cursor.min(page);
    }

    /// A fault finds no memory.
    pub(crate) fn starve(&mut self) {
        self.starved = true;
    }
}
