//! Memory that appeared unnoticed: the program called the kernel past the C library, or the memory is of a kind that
//! no wrapper sees.
//!
//! The pager checks the kernel's count of data pages a few times a second, also under load, and reads the map when
//! the count has changed. The interval depends on whether the last look found something. A mapping with new memory is
//! registered as a whole, which stops unmanaged growth, and is one mapping for the kernel at any time: it refuses
//! mremap over several. The core knows all its present pages from then on and may evict them. They are charged as
//! room is made (`Account::pay_for_found`).

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::{Nanos, len};
use rustix::time::{ClockId, clock_gettime};

use super::adopt::{SMALLEST, pages};
use super::boot::pages_of;
use super::world::now;
use super::{IDLE, Mode, Pager, SOON};

/// The interval after a look that found something, and the longest interval if the program can map memory past the C
/// library; otherwise the longest is [`IDLE`].
pub(super) const LOOKS_SOON: Nanos = 5_000_000;
const LOOKS_AT_BYPASS: Nanos = 20_000_000;
/// The interval is at least this multiple of the time of a look, but at most [`IDLE`].
const PART: u64 = 32;
impl Pager {
    /// The interval is short after a find, and grows while nothing is found.
    pub(super) fn look_for_growth(&mut self, at: Nanos) {
        let seldom = if self.program.bypasses.load(Relaxed) {
            LOOKS_AT_BYPASS
        } else {
            IDLE
        };
        let (stalled, began) = (self.mm.is_stalled(), cpu_time());
        self.next_look = at + if stalled { SOON } else { self.look_every };
        self.look_every = if self.has_grown_unnoticed() {
            LOOKS_SOON
        } else {
            seldom.min(2 * self.look_every)
        };
        if self.w.account.unpaid() == 0 {
            // In CPU time: other load does not make a look more expensive.
            let took = cpu_time() - began;
            self.next_look = self.next_look.max(now() + (PART * took).min(IDLE));
        }
    }

    /// Whether unmanaged memory has appeared, or waits for room.
    fn has_grown_unnoticed(&mut self) -> bool {
        self.expire_children();
        self.pay_for_found();
        let waits = self.w.account.unpaid() > 0;
        let data = self.space.data_bytes().unwrap_or(self.data_bytes);
        if data == self.data_bytes || !self.hold.is_none() {
            return waits;
        }
        if self.mode == Mode::Bare {
            self.data_bytes = data;
            // Noticed memory is within the grant, but for what comes while the grant is extended.
            let before = self.grant.pages();
            let regions = &self.program.regions;
            let named: u64 = regions.ranges().map(|range| len(&pages_of(&range))).sum();
            if regions.are_all() && named <= before {
                return waits;
            }
            self.extend_grant();
            return self.grant.pages() != before;
        }
        if self.program.regions.are_all() {
            // Each is reported.
            return waits;
        }
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return waits;
        };
        if self.w.program.mmap_changing() {
            // Memory that looks new may have moved there, while its pages are still known at the old place.
            self.next_look = now() + SOON;
            return waits;
        }
        self.data_bytes = data;
        let mut found = false;
        self.w.account.open_found(now());
        for vma in vmas {
            let range = pages(vma.start, vma.end);
            let known: u64 = self.mm.managed_in(&range).iter().map(len).sum();
            if known < len(&range) {
                found |= self.adopt(vma.range());
            }
        }
        self.w.account.close_found();
        self.pay_for_found();
        found || self.w.account.unpaid() > 0
    }

    /// Charge the pages that were found, as far as there is room. While some are left, the next look comes soon.
    pub(super) fn pay_for_found(&mut self) {
        self.w.ledger.note_found(self.w.account.unpaid());
        self.w.account.pay_for_found(&mut self.w.seat(), now());
        if self.w.account.unpaid() > 0 {
            self.next_look = self.next_look.min(now() + SOON);
        }
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
