//! Faults that wait, and how long.
//!
//! A fault that cannot be served now waits in one of two queues: `retry` until the address space has settled, or
//! `stalled` for memory.

pub(crate) mod first_touch;
pub(crate) mod grace;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use grace::RecentFaults;

use crate::units::{Nanos, Vpn};

/// References of a page that is needed again soon after its eviction.
pub(crate) const REFS_REFAULT: u8 = 2;
/// References of other pages that are mapped.
pub(crate) const REFS_NEW: u8 = 1;

/// A fault that has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub page: Vpn,
    /// Where in the page, in bytes.
    pub offset: u16,
    pub since: Nanos,
    /// Since when it waits for memory, if it does.
    pub stalled: Option<Nanos>,
}

impl Pending {
    /// A fault of `page` that came at `since`.
    pub fn of(page: Vpn, since: Nanos) -> Self {
        Pending {
            page,
            offset: 0,
            since,
            stalled: None,
        }
    }

    pub fn address(&self) -> u64 {
        self.page.address() + u64::from(self.offset)
    }
}

/// Faults that wait, and when the limit yields to them.
#[derive(Default)]
pub(crate) struct Waiters {
    /// Faults that found the address space changing.
    pub retry: Vec<Pending>,
    /// Faults that found no memory, in order.
    pub stalled: VecDeque<Pending>,
    /// Pages that were mapped for threads a moment ago.
    pub recent_faults: RecentFaults,
    /// Until then the limit yields at once, as no page could be evicted lately.
    pub passing_until: Nanos,
}
