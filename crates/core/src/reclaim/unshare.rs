//! Pages that a fork shares are copied before they are evicted, one run at a time.
//!
//! The kernel does not move a page that parent and child share. A copy makes it movable, and costs a page until the
//! copy is evicted. Reclaim therefore asks for the copies of one run, evicts that run first when the copies are made,
//! and asks for no other run meanwhile. If it asked wherever its hand finds a shared page, everything would be copied
//! before the hand comes back to evict the first copy.

use super::REST;
use crate::mm::Mm;
use crate::space::page_table::Entry;
use crate::units::{Nanos, Vpn};
use crate::world::{Stop, World};

/// How long a run may stay immovable. Copies are made in microseconds; a page that is still refused then is pinned.
const PATIENCE: Nanos = 20_000_000;
/// After this time the driver is asked once more: it may drop a request.
const AGAIN: Nanos = 5_000_000;

/// The run that is being copied.
#[derive(Debug, Default)]
pub(crate) struct Unsharing {
    run: Option<(Vpn, u32)>,
    /// When a page of it left last, and when the driver was asked.
    since: Nanos,
    asked: Nanos,
}

impl Unsharing {
    /// Whether `page` is of that run: if it was evicted now, the copying thread would fault on it.
    pub fn has(&self, page: Vpn) -> bool {
        let of = |(first, n): (Vpn, u32)| first <= page && page < first.plus(n.into());
        self.run.is_some_and(of)
    }
}

impl Mm {
    /// The kernel refused to move `n` pages from `page` on: a fork shares them, or they are pinned.
    pub(crate) fn on_immovable(&mut self, w: &mut impl World, page: Vpn, n: u32) {
        if self.reclaim.unsharing.run.is_none() {
            let now = w.now();
            self.reclaim.unsharing = Unsharing {
                run: Some((page, n)),
                since: now,
                asked: now,
            };
            w.unshare(page, n);
        }
    }

    /// Evict the run that was copied, as far as it is. Returns how many pages left the program.
    pub(super) fn evict_unshared(&mut self, w: &mut impl World) -> u32 {
        let Some((page, n)) = self.reclaim.unsharing.run else {
            return 0;
        };
        let now = w.now();
        if w.is_unsharing() {
            self.reclaim.unsharing.since = now;
            return 0;
        }
        // The program may have discarded or moved some of them.
        let resident = |i: &u32| {
            let entry = self.space.table.get(page.plus(u64::from(*i)));
            matches!(entry, Entry::Resident(_))
        };
        let n = (0..n).take_while(resident).count() as u32;
        let (moved, stop) = match n {
            0 => (0, None),
            n => self.move_out(w, page, n, false),
        };
        if moved > 0 {
            self.reclaim.unsharing.since = now;
        }
        let left = (page.plus(moved.into()), n - moved);
        let is_pinned = now.saturating_sub(self.reclaim.unsharing.since) > PATIENCE;
        if stop != Some(Stop::Busy) || is_pinned {
            self.reclaim.unsharing.run = None;
            if is_pinned {
                self.space.table.rest(left.0, REST);
            }
            return moved;
        }
        self.reclaim.unsharing.run = Some(left);
        if now.saturating_sub(self.reclaim.unsharing.asked) > AGAIN {
            self.reclaim.unsharing.asked = now;
            w.unshare(left.0, left.1);
        }
        moved
    }
}
