//! Pages that a fork shares are copied before they are evicted, one run at a time ([`crate::reclaim::Unsharing`]).

use super::Mm;
use crate::reclaim::REST;
use crate::reclaim::Unsharing;
use crate::reclaim::unshare::{AGAIN, PATIENCE};
use crate::space::page_table::Entry;
use crate::units::Vpn;
use crate::world::{Stop, World};

impl Mm {
    /// The kernel refused to move `n` pages from `page` on: a fork shares them, or they are pinned.
    pub(super) fn on_immovable(&mut self, w: &mut impl World, page: Vpn, n: u32) {
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
