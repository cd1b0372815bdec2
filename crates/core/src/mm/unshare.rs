//! Pages that a fork shares are copied before they are evicted, one run at a time ([`crate::reclaim::unshare::Unsharing`]).

use super::Mm;
use crate::reclaim::REST;
use crate::reclaim::unshare::Next;
use crate::space::page_table::Entry;
use crate::units::Vpn;
use crate::world::{Stop, World};

impl Mm {
    /// The kernel refused to move `n` pages from `page` on: a fork shares them, or they are pinned.
    pub(super) fn on_immovable(&mut self, w: &mut impl World, page: Vpn, n: u32) {
        if self.unsharing.begin((page, n), w.now()) {
            self.copy_for_eviction(w, page, n);
        }
    }

    /// Evict the run that was copied, as far as it is. Returns how many pages left the program.
    pub(super) fn evict_unshared(&mut self, w: &mut impl World) -> u32 {
        let Some((page, n)) = self.unsharing.run() else {
            return 0;
        };
        let now = w.now();
        if w.is_unsharing() {
            self.unsharing.go_on(now);
            return 0;
        }
        // The program may have discarded or moved some of them.
        let resident = |i: &u32| {
            let entry = self.table.get(page.plus(u64::from(*i)));
            matches!(entry, Entry::Resident(_))
        };
        let n = (0..n).take_while(resident).count() as u32;
        let (moved, stop) = match n {
            0 => (0, None),
            n => self.move_out(w, page, n, false),
        };
        let left = (page.plus(moved.into()), n - moved);
        let refused = stop == Some(Stop::Busy);
        match self.unsharing.on_tried(moved > 0, left, refused, now) {
            Next::Done | Next::Wait => {}
            Next::Pinned => self.table.rest(left.0, REST),
            Next::Ask => self.copy_for_eviction(w, left.0, left.1),
        }
        moved
    }

    fn copy_for_eviction(&mut self, w: &mut impl World, page: Vpn, n: u32) {
        let copied = self.table.unshare(&(page..page.plus(n.into())));
        if copied > 0 {
            w.on_copied(copied);
        }
        w.unshare(page, n);
    }
}
