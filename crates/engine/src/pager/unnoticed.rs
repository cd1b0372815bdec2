//! Memory that appeared unnoticed: the program called the kernel past the C library, or the memory is of a kind that
//! no wrapper sees.
//!
//! The pager checks the kernel's count of data pages a few times a second, also under load, and reads the map when
//! the count has changed. The interval depends on whether the last look found something. The untouched part of a new
//! region is registered at once, which stops unmanaged growth. Its present pages follow in pieces, as reclaim makes
//! room for them.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::{Nanos, PageRange, len};
use foreswap_core::world::Limit;
use rustix::time::{ClockId, clock_gettime};

use super::adopt::{SMALLEST, pages};
use super::boot::bytes_of;
use super::world::now;
use super::{IDLE, Mode, Pager, SOON};

/// The interval after a look that found something, and the longest interval if the program can map memory past the C
/// library; otherwise the longest is [`IDLE`].
pub(super) const LOOKS_SOON: Nanos = 5_000_000;
const LOOKS_AT_BYPASS: Nanos = 20_000_000;
/// The interval is at least this multiple of the time of a look, but at most [`IDLE`].
const PART: u64 = 32;
/// Looks, 5 ms apart, for which present memory waits for room while none is made.
const ROOM_LOOKS: u32 = 40;
/// Pages paid for at a time.
const PIECE: u64 = 1024;
/// Gaps of at least this many untouched pages are registered first. Each cut adds a mapping until the pages between
/// are registered too.
const HOLE: u64 = 256;

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
        if self.room_wanted == 0 {
            // In CPU time: other load does not make a look more expensive.
            let took = cpu_time() - began;
            self.next_look = self.next_look.max(now() + (PART * took).min(IDLE));
        }
    }

    /// Whether unmanaged memory has appeared.
    fn has_grown_unnoticed(&mut self) -> bool {
        self.expire_children();
        let data = self.space.data_bytes().unwrap_or(self.data_bytes);
        let unchanged = data == self.data_bytes && self.room_wanted == 0;
        if unchanged || !self.hold.is_none() {
            return false;
        }
        if self.mode == Mode::Bare {
            self.data_bytes = data;
            // Noticed memory is within the grant.
            let before = self.grant.pages();
            self.extend_grant();
            return self.grant.pages() != before;
        }
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return false;
        };
        if self.w.program.mmap_changing() {
            // Memory that looks new may have moved there, while its pages are still known at the old place.
            self.next_look = now() + SOON;
            return false;
        }
        self.data_bytes = data;
        let (mut found, mut waits) = (false, false);
        for vma in vmas {
            let range = pages(vma.start, vma.end);
            let mut at = range.start;
            let known = self.mm.managed_in(&range);
            for known in known.into_iter().chain([range.end..range.end]) {
                if at < known.start {
                    let (some, left) = self.adopt_in_pieces(&(at..known.start), !waits);
                    found |= some;
                    waits |= left;
                }
                at = known.end;
            }
        }
        // The waiting memory is managed, or has gone.
        if !waits && self.room_wanted != 0 {
            self.room_wanted = 0;
            self.w.account.stop_shrinking();
        }
        if !waits {
            self.return_prepaid();
        }
        found || waits
    }

    /// Adopt the untouched part of `range`, and its present pages if there is room. Returns whether anything was
    /// adopted, and whether something waits for room.
    fn adopt_in_pieces(&mut self, range: &PageRange, may_pay: bool) -> (bool, bool) {
        let present = self.space.present(range).unwrap_or_default();
        let mut touched: Vec<PageRange> = Vec::new();
        for run in present {
            match touched.last_mut() {
                Some(last) if run.start.0 - last.end.0 < HOLE => last.end = run.end,
                _ => touched.push(run),
            }
        }
        let (mut found, mut at) = (false, range.start);
        for part in touched.iter().cloned().chain([range.end..range.end]) {
            if at < part.start {
                found |= self.adopt(bytes_of(&(at..part.start)));
            }
            at = part.end;
        }
        for part in touched {
            let mut at = part.start;
            while at < part.end {
                let piece = at..at.plus(PIECE.min(part.end.0 - at.0));
                if !may_pay || !self.has_room_for(&piece) {
                    return (found, true);
                }
                found |= self.adopt(bytes_of(&piece));
                at = piece.end;
            }
        }
        (found, false)
    }

    /// Pay for the present pages of `range`. If they do not fit, reclaim makes room and the next look comes soon;
    /// after several looks without room they are adopted anyway.
    fn has_room_for(&mut self, range: &PageRange) -> bool {
        let present = self.space.present(range).unwrap_or_default();
        let known = self.mm.usage(range).0;
        let new = present.iter().map(len).sum::<u64>().saturating_sub(known);
        let missing = new.saturating_sub(self.w.account.prepaid());
        // Take free pages at once, or a fault would.
        let free = missing.min(self.w.available());
        if self.w.ledger.try_charge(self.w.me, free) {
            self.w.account.prepay(free);
            self.room_wanted = if free > 0 { 1 } else { self.room_wanted };
        }
        let missing = new.saturating_sub(self.w.account.prepaid());
        if missing == 0 || self.room_wanted >= ROOM_LOOKS {
            return true;
        }
        self.room_wanted += 1;
        let seat = self.w.seat();
        self.w.account.shrink_by(&seat, missing);
        self.next_look = now() + SOON;
        false
    }
}

/// The CPU time of this thread.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
