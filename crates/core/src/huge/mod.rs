//! Huge pages, moved and swapped whole.
//!
//! A *unit* is the 512 aligned pages of one leaf of the page table. Where the access pattern justifies it, a unit is
//! evicted by one move and one write to a slot cluster of its own, and comes back by one read and one move. The
//! kernel's huge page behind it is never split on the way. A touch maps all of a unit that is in frames. A unit that is
//! on an area only is read whole when a stream reaches it, and page by page when touches are scattered. A leaf whose
//! pages came back one by one is made a huge page again when all of it is mapped and its region is touched in order.
//!
//! A page that cannot be moved, a failed read or a discard of a part disbands the unit: its pages continue as single
//! pages, and nothing is lost.

use crate::units::{LEAF_PAGES, Nanos, Vpn};

/// When memory is managed in huge pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Thp {
    /// Never.
    Never,
    /// Where it is touched in order, and densely.
    #[default]
    Adaptive,
    /// Wherever a whole aligned leaf lies in one region.
    Always,
}

/// After the system had no huge page, this many tries do not ask for one.
pub(crate) const NONE_LEFT: u32 = 16;

/// First page of the unit of `page`.
pub const fn unit_of(page: Vpn) -> Vpn {
    Vpn(page.0 / LEAF_PAGES as u64 * LEAF_PAGES as u64)
}

/// The time without a unit taken after which no units are kept ready.
pub(crate) const IDLE: Nanos = 50_000_000;

/// State of huge pages, beside the clusters.
#[derive(Default)]
pub(crate) struct Huge {
    /// Tries that are skipped, as the system had no huge page.
    pub(crate) rest: u32,
    /// When a stream or a first touch last took a unit.
    pub(crate) wanted_at: Option<Nanos>,
    /// Full leaves that are skipped, as making them huge failed.
    pub(crate) lean: u32,
    /// Pages of evicted units whose digests are being computed.
    pub(crate) digesting: u32,
    /// How many units may be on probation.
    pub(crate) trials: u32,
}
