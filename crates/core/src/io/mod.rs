//! I/O: which request the disk gets next, and how much it has in flight.
//!
//! [`scheduler::IoScheduler`] decides both; it owns the requests, and measures each store ([`pipe::Pipe`]). `mm::submit` makes requests of pages, and
//! `mm::complete` publishes the states that a completed request made true.

mod completion_batching;
pub mod pipe;
pub(crate) mod random_faults;
pub(crate) mod requests;
pub(crate) mod scheduler;

/// The most slots that one request covers (512 KiB).
pub const SLOTS_PER_IO: usize = 128;
/// Slots that one request of a huge page covers.
pub(crate) const SLOTS_PER_UNIT_IO: usize = crate::units::LEAF_PAGES;
