//! Pages that a fork shares are copied before they are evicted, one run at a time.
//!
//! The kernel does not move a page that parent and child share. A copy makes it movable, and costs a page until the
//! copy is evicted. Reclaim therefore asks for the copies of one run, evicts that run first when the copies are made,
//! and asks for no other run meanwhile. If it asked wherever its hand finds a shared page, everything would be copied
//! before the hand comes back to evict the first copy.

use crate::units::{Nanos, Vpn};

/// How long a run may stay immovable. Copies are made in microseconds; a page that is still refused then is pinned.
pub(crate) const PATIENCE: Nanos = 20_000_000;
/// After this time the driver is asked once more: it may drop a request.
pub(crate) const AGAIN: Nanos = 5_000_000;

/// The run that is being copied.
#[derive(Debug, Default)]
pub(crate) struct Unsharing {
    pub(crate) run: Option<(Vpn, u32)>,
    /// When a page of it left last, and when the driver was asked.
    pub(crate) since: Nanos,
    pub(crate) asked: Nanos,
}

impl Unsharing {
    /// Whether `page` is of that run: if it was evicted now, the copying thread would fault on it.
    pub fn has(&self, page: Vpn) -> bool {
        let of = |(first, n): (Vpn, u32)| first <= page && page < first.plus(n.into());
        self.run.is_some_and(of)
    }
}
