//! Writes that would copy a page which a fork shares.
//!
//! The kernel reports no copy. While pages are not paid for, the driver write-protects them, and the first write to a
//! batch waits here until the batch is paid for. If there is no room, other processes are asked for some. If none can
//! give any in time, the limit gives way, as for every fault.

use alloc::vec::Vec;

use super::{Account, Ledger};
use crate::units::{Nanos, PageRange, Vpn};

/// Pages paid for at a time: 64 KiB.
const BATCH: u64 = 16;
/// How long a write waits for room.
const PATIENCE: Nanos = 300_000_000;

/// A write that waits.
#[derive(Clone, Copy, Debug)]
pub struct Copy {
    /// The page.
    pub page: Vpn,
    /// When the write came.
    pub since: Nanos,
    /// The write itself makes room: it copies pages that are to be evicted, and does not wait.
    pub makes_room: bool,
}

/// The result of the removal of a protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// The batch, or at least the page, is writable, or gone.
    Done,
    /// The address space is changing: try again.
    Again,
}

/// The waiting writes of a process.
#[derive(Debug, Default)]
pub struct Copies {
    waiting: Vec<Copy>,
}

impl Copies {
    /// A write waits.
    pub fn push(&mut self, copy: Copy) {
        self.waiting.push(copy);
    }

    /// All writes that wait.
    pub fn extend(&mut self, copies: impl IntoIterator<Item = Copy>) {
        self.waiting.extend(copies);
    }

    /// No page is protected any more.
    pub fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Whether no write waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Let writes through as far as their copies are paid for. `open` removes the protection of a batch, at least of
    /// the page. Returns whether some still wait.
    pub fn step<P: core::marker::Copy + PartialEq>(
        &mut self,
        account: &mut Account<P>,
        ledger: &mut impl Ledger<Process = P>,
        now: Nanos,
        mut open: impl FnMut(&PageRange, Vpn) -> Opening,
    ) -> bool {
        let mut opened = Vpn(u64::MAX)..Vpn(u64::MAX);
        self.waiting.retain(|copy| {
            if opened.contains(&copy.page) {
                return false;
            }
            let start = copy.page.0 / BATCH * BATCH;
            let batch = Vpn(start)..Vpn(start + BATCH);
            let is_late = now.saturating_sub(copy.since) > PATIENCE;
            let may = copy.makes_room || account.may_copy(ledger, BATCH, is_late);
            let is_open = may && open(&batch, copy.page) == Opening::Done;
            if is_open {
                opened = batch;
            }
            !is_open
        });
        !self.waiting.is_empty()
    }
}
