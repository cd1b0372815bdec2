//! An area on servers, as a machine sees it: its transfers go out as [`Request`]s, and what cannot be read back is lost.
//!
//! A page that is lost is a bus error at each touch, and the program goes on, as if it handled the signal: its further faults are
//! of interest.

use std::collections::HashSet;

use foreswap_core::units::{Nanos, Slot, Vpn};
use foreswap_core::world::{IoId, Notice};

use crate::hash::Spread;
use crate::sim::histogram::Histogram;

/// A transfer that leaves the machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// When the engine handed it over.
    pub at: Nanos,
    /// Its name on this machine until it ends.
    pub io: IoId,
    /// The first slot.
    pub slot: Slot,
    /// Slots.
    pub pages: u32,
    /// To the area.
    pub write: bool,
}

/// What failed, and where transfers are.
#[derive(Default)]
pub struct Elsewhere {
    /// Transfers that nobody has taken yet.
    pub sent: Vec<Request>,
    left: u64,
    ended: u64,
    lost: HashSet<u64, Spread>,
    /// Touches of lost pages.
    pub bus_errors: u64,
}

impl Elsewhere {
    /// Transfers that have not ended.
    pub fn left(&self) -> u64 {
        self.left
    }

    /// A transfer begins.
    pub fn submit(&mut self, at: Nanos, io: IoId, slot: Slot, pages: usize, write: bool) {
        self.left += 1;
        self.sent.push(Request {
            at,
            io,
            slot,
            pages: pages as u32,
            write,
        });
    }

    /// A transfer has ended. Returns how many have.
    pub fn end(&mut self) -> u64 {
        self.left -= 1;
        self.ended += 1;
        self.ended
    }

    /// Whether a touch of `page`, which is not mapped, is a bus error; it is counted.
    pub fn bus_error(&mut self, page: Vpn) -> bool {
        let is_lost = !self.lost.is_empty() && self.lost.contains(&page.0);
        self.bus_errors += u64::from(is_lost);
        is_lost
    }

    /// `page` cannot be read back.
    pub fn lose(&mut self, page: Vpn) {
        self.lost.insert(page.0);
    }

    /// Whether an event is one that servers cause; others are errors of the core.
    pub fn notice(&self, notice: Notice) -> bool {
        match notice {
            Notice::AreasFull
            | Notice::ReadFailed { .. }
            | Notice::WriteFailed { .. }
            | Notice::OutOfMemory { .. } => true,
            Notice::Corrupt { .. } | Notice::Unaccounted { .. } | Notice::LimitPassed => false,
        }
    }
}

/// The faults that wait, and how long those took that have ended.
#[derive(Default)]
pub struct Watch {
    waiting: HashSet<u64, Spread>,
    /// From the touch until the thread runs again, of faults that waited for a read or for memory.
    pub latencies: Histogram,
}

impl Watch {
    /// The fault on `page` waits.
    pub fn waits(&mut self, page: Vpn) {
        self.waiting.insert(page.0);
    }

    /// `page` is there. Whether a fault on it had to wait.
    pub fn ends(&mut self, page: Vpn) -> bool {
        self.waiting.remove(&page.0)
    }
}
