//! Memory that came in a way that nobody noticed: the kernel was asked past the C library, or the memory is
//! not of a kind that a wrapper sees.
//!
//! The kernel's count of data pages is looked at a few times a second, also under load, and the map when
//! the count has changed. How soon the next look comes goes by whether the last one found something. What
//! was never touched of a new region is registered at once, so that it can grow no further without us;
//! what is there already follows in pieces, as reclaim makes room for them.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::{Nanos, PageRange, len};
use foreswap_core::world::Limit;
use rustix::time::{ClockId, clock_gettime};

use super::adopt::{SMALLEST, pages};
use super::boot::bytes_of;
use super::world::now;
use super::{IDLE, Mode, Pager, SOON};

/// How long after a look that found something the next one comes, and the longest time where the program
/// can get memory past the C library; otherwise it is [`IDLE`].
pub(super) const LOOKS_SOON: Nanos = 5_000_000;
const LOOKS_AT_BYPASS: Nanos = 20_000_000;
/// So many times what a look took passes until the next one, but no more than [`IDLE`].
const PART: u64 = 32;
/// Looks, 5 ms apart, for which memory that is there already waits for room while none is made.
const ROOM_LOOKS: u32 = 40;
/// Pages that are paid for at a time.
const PIECE: u64 = 1024;
/// Untouched pages between touched ones from so many on are registered first. Each cut is a mapping more
/// until what is between them is registered too.
const HOLE: u64 = 256;

impl Pager {
    /// Soon again where something was found, more and more seldom where not.
    pub(super) fn look_for_growth(&mut self, at: Nanos) {
        let seldom = if self.program.bypasses.load(Relaxed) {
            LOOKS_AT_BYPASS
        } else {
            IDLE
        };
        let (stalled, began) = (self.mm.is_stalled(), cpu_time());
        self.next_look = at + if stalled { SOON } else { self.look_every };
        self.look_every = if self.on_tick() {
            LOOKS_SOON
        } else {
            seldom.min(2 * self.look_every)
        };
        if self.room_wanted == 0 {
            // Of the processor's time: where others have it, a look is no dearer.
            let took = cpu_time() - began;
            self.next_look = self.next_look.max(now() + (PART * took).min(IDLE));
        }
    }

    /// Has memory come that is not managed? Returns whether it has.
    fn on_tick(&mut self) -> bool {
        self.expire_children();
        let data = self.space.data_bytes().unwrap_or(self.data_bytes);
        let unchanged = data == self.data_bytes && self.room_wanted == 0;
        if unchanged || self.fork.is_held() || self.fork.is_under_way() {
            return false;
        }
        if self.mode == Mode::Bare {
            self.data_bytes = data;
            // What was noticed is within the grant.
            let before = self.granted;
            self.grant();
            return self.granted != before;
        }
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return false;
        };
        if self.w.program.mmap_changing() {
            // What looks new may have moved there, with what is known of it still at the old place.
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
        // What waited for room is managed, or has gone meanwhile.
        if !waits && self.room_wanted != 0 {
            self.room_wanted = 0;
            self.w.shrink_to = None;
        }
        if !waits {
            let unused = std::mem::take(&mut self.w.prepaid);
            self.w.uncharge(unused);
        }
        found || waits
    }

    /// Adopt what nobody has touched of `range`, and what is there if there is room. Returns whether
    /// anything was adopted, and whether something waits for room.
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

    /// Pay for what is there already of `range`. Where it does not fit, reclaim makes room for it and
    /// the next look comes soon; after some looks without any it is adopted anyway.
    fn has_room_for(&mut self, range: &PageRange) -> bool {
        let present = self.space.present(range).unwrap_or_default();
        let known = self.mm.usage(range).0;
        let new = present.iter().map(len).sum::<u64>().saturating_sub(known);
        let missing = new.saturating_sub(self.w.prepaid);
        // What is free is taken at once, or a fault would.
        let free = missing.min(self.w.available());
        if self.w.ledger.try_charge(self.w.me, free) {
            self.w.prepaid += free;
            self.room_wanted = if free > 0 { 1 } else { self.room_wanted };
        }
        let missing = new.saturating_sub(self.w.prepaid);
        if missing == 0 || self.room_wanted >= ROOM_LOOKS {
            return true;
        }
        self.room_wanted += 1;
        let mine = self.w.ledger.process_charged(self.w.me);
        self.w.shrink_to = Some(mine.saturating_sub(missing));
        self.next_look = now() + SOON;
        false
    }
}

/// What this thread has had of the processor.
fn cpu_time() -> Nanos {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
