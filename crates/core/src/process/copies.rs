//! Writes that would copy a page which a fork shares.
//!
//! The kernel reports no copy. While pages are not paid for, the driver write-protects them, and the first write to a
//! batch waits here until the batch is paid for. If there is no room, other processes are asked for some. If none can
//! give any in time, the limit gives way, as for every fault.

use alloc::vec::Vec;

use super::account::Account;
use super::ledger::LedgerMut;
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
}

/// The result of the removal of a protection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Opening {
    /// The pages are writable, or gone.
    Done,
    /// The address space is changing: try again.
    Again,
}

/// The write-protected pages of a process.
pub trait Protected {
    /// Pages of `range` that others may share.
    fn shared(&self, range: &PageRange) -> u64;
    /// The copies of all pages of `range` are paid for: they are shared no more.
    fn unshare(&mut self, range: &PageRange);
    /// Remove the protection of `range`, at least of `page`, and wake its writers.
    fn open(&mut self, range: &PageRange, page: Vpn) -> Opening;
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

    /// Several writes wait.
    pub fn extend(&mut self, copies: impl IntoIterator<Item = Copy>) {
        self.waiting.extend(copies);
    }

    /// No page is protected any more: `account` needs no room for copies.
    pub fn clear<P: core::marker::Copy + PartialEq>(&mut self, account: &mut Account<P>) {
        account.retry_copies();
        self.waiting.clear();
    }

    /// Whether no write waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Let writes through as far as their copies are paid for. Returns whether some still wait.
    pub fn step<P: core::marker::Copy + PartialEq>(
        &mut self,
        account: &mut Account<P>,
        ledger: &mut impl LedgerMut<Process = P>,
        now: Nanos,
        pages: &mut impl Protected,
    ) -> bool {
        account.retry_copies();
        let mut opened = Vpn(u64::MAX)..Vpn(u64::MAX);
        self.waiting.retain(|copy| {
            if opened.contains(&copy.page) {
                return false;
            }
            let one = copy.page..copy.page.plus(1);
            let start = copy.page.0 / BATCH * BATCH;
            let batch = Vpn(start)..Vpn(start + BATCH);
            let n = pages.shared(&batch);
            // A write to the process' own page beside shared ones does not wait: it may be the one that makes room.
            let range = if n > 0 && pages.shared(&one) == 0 {
                one
            } else {
                let is_late = now.saturating_sub(copy.since) > PATIENCE;
                if !account.may_copy(ledger, n, is_late) {
                    return true;
                }
                pages.unshare(&batch);
                batch
            };
            let is_open = pages.open(&range, copy.page) == Opening::Done;
            if is_open {
                opened = range;
            }
            !is_open
        });
        !self.waiting.is_empty()
    }
}
