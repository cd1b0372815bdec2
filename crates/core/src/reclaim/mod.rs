//! Which pages are evicted, and when.
//!
//! A clock hand sweeps the page table in order of address. A mapped page has references (more if it returned soon after
//! its eviction). The hand takes one reference per pass, and evicts a page that has none. Pages that a large scan has
//! passed are evicted first (drop-behind): the scan would push out all other pages and itself. An evicted page stays in
//! its frame for a while. A touch there is cheap and serves as the reference bit. The digest tells whether a page is
//! clean, so nothing depends on write protection. Background reclaim keeps a reserve of frames for faults; it runs
//! while I/O is in flight and stops at the high mark.

pub(crate) mod unshare;
mod watermarks;

use crate::units::Vpn;
pub(crate) use unshare::Unsharing;
pub use watermarks::Watermarks;

/// Passes that skip a leaf whose pages cannot be moved.
pub(crate) const REST: u8 = 8;
/// Pages evicted at a time while a thread waits for a read.
pub(crate) const BESIDE_READS: u32 = 16;
/// Most pages in one move.
pub(crate) const RUN: u32 = 64;

/// What reclaim remembers.
pub(crate) struct Reclaim {
    pub marks: Watermarks,
    /// Position of the clock hand.
    pub hand: Vpn,
    /// Background reclaim is awake.
    pub awake: bool,
    /// Pages evicted so far.
    pub evictions: u64,
    /// Pages shared by a fork that are being copied.
    pub unsharing: Unsharing,
}

impl Reclaim {
    /// Nothing was evicted yet.
    pub fn new(marks: Watermarks) -> Self {
        Reclaim {
            marks,
            hand: Vpn(0),
            awake: false,
            evictions: 0,
            unsharing: Unsharing::default(),
        }
    }
}
