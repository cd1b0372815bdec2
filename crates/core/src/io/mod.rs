//! I/O: which request the disk gets next, and what happens when it ends.
//!
//! [`scheduler::IoScheduler`] decides how much the disk has in flight and in which order; it owns the
//! requests. `submit` makes requests of pages, `complete` publishes what a completed request made true.

mod completion_batching;
pub(crate) mod random_faults;
pub(crate) mod requests;
pub(crate) mod scheduler;

/// The most slots that one request covers (512 KiB).
pub const SLOTS_PER_IO: usize = 128;
/// Slots that one request of a huge page covers.
pub(crate) const SLOTS_PER_UNIT_IO: usize = crate::units::LEAF_PAGES;
