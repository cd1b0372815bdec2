//! Mapped pages that are missing.
//!
//! A page may be missing for two good reasons. A page from before the registration that was never moved since may have
//! been freed earlier (MADV_FREE). And the kernel zaps the pages of a discard some time after its event was read, also
//! those that were mapped in between ([`crate::space::discarded`]). Both read as zeros, as they would without us
//! ([`Resident::found`]). Any other page had content that we moved there, and nothing says where it is. It is lost: a
//! touch raises SIGBUS, and the user is told. Zeros could be wrong bytes there.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::reclaim::policy::{Came, ReclaimPolicy as _};
use crate::space::page_table::{Entry, Resident};
use crate::units::{Slot, Vpn};
use crate::world::{Notice, Stop, World};

impl Mm {
    /// `page` was mapped, with `slot` holding the same bytes.
    pub(super) fn set_mapped(
        &mut self,
        w: &mut impl World,
        page: Vpn,
        slot: Option<Slot>,
        came: Came,
    ) {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::HastyLoss) {
            self.discarded = Default::default();
        }
        if self.table.unshare(&(page..page.plus(1))) > 0 {
            // The kernel has taken the shared page without an event, and another stands there now.
            w.on_copied(1);
        }
        let found = !self.discarded.is_empty() && self.discarded.has(page, w.now());
        let rank = self.reclaim.rank_mapped(came, self.table.resident());
        let resident = Resident { slot, rank, found };
        self.table.set(page, Entry::Resident(resident));
    }

    /// The program's own page was found at `page`. It may be missing later for a good reason.
    pub(super) fn set_found(&mut self, page: Vpn) {
        let rank = self
            .reclaim
            .rank_mapped(Came::Touched, self.table.resident());
        let resident = Resident {
            slot: None,
            rank,
            found: true,
        };
        self.table.set(page, Entry::Resident(resident));
    }

    /// The pages of `unit` were mapped, and are one huge page.
    pub(super) fn make_huge(&mut self, unit: Vpn, came: Came) {
        let rank = self.reclaim.policy().rank(came, self.table.resident());
        self.table.make_huge(unit, rank);
    }

    /// A message about a page that should be mapped: the message is old, or the page is gone. An attempt to map
    /// something there tells: the kernel refuses it where a page is.
    pub(super) fn on_present(
        &mut self,
        w: &mut impl World,
        pending: Pending,
        resident: Resident,
    ) -> Outcome {
        let page = pending.page;
        if resident.found && self.file_page(page).is_some() {
            return self.on_present_in_file(w, pending);
        }
        let tried = if resident.found {
            w.zero_in(page, 1)
        } else {
            w.poison(page)
        };
        match tried.stop {
            Some(Stop::Again) => return self.again(pending),
            Some(_) => w.wake(page),
            None if resident.found => {
                self.slots.put(w, resident.slot);
                self.set_mapped(w, page, None, Came::Touched);
                self.stats.faults_zero += 1;
            }
            None => self.on_missing(w, page),
        }
        Outcome::Served
    }

    /// As [`Mm::on_present`], for a page of a mapped file that may be missing. Zeros must not be seen there: a move out of
    /// the program tells whether the page is there.
    fn on_present_in_file(&mut self, w: &mut impl World, pending: Pending) -> Outcome {
        if self.held {
            // The child would lack what is moved now.
            return self.again(pending);
        }
        match self.move_out(w, pending.page, 1, false) {
            (0, Some(Stop::Again)) => self.again(pending),
            (0, Some(Stop::NoMemory)) => self.stall(w, pending),
            // No page can be moved there, whether it is there or not.
            (0, Some(Stop::Fixed)) => self.lost_unless_there(w, pending),
            (0, _) => {
                // It is there, and stays.
                w.wake(pending.page);
                Outcome::Served
            }
            _ => self.serve(w, pending),
        }
    }

    /// The page is lost if it is missing: the mark of a lost page cannot be set where a page, or a guard, is.
    pub(super) fn lost_unless_there(&mut self, w: &mut impl World, pending: Pending) -> Outcome {
        let page = pending.page;
        match w.poison(page).stop {
            None => {
                match self.table.get(page) {
                    Entry::Resident(Resident { slot, .. }) => {
                        self.forget_resident(w, page, slot, Entry::Poisoned);
                    }
                    _ => {
                        self.table.set(page, Entry::Poisoned);
                    }
                }
                w.notice(Notice::Unaccounted { page });
            }
            Some(Stop::Again) => return self.again(pending),
            Some(_) => w.wake(page),
        }
        Outcome::Served
    }

    /// The mapped page is missing, and no event that could explain it is pending.
    pub(super) fn on_missing(&mut self, w: &mut impl World, page: Vpn) {
        let Entry::Resident(Resident { slot, found, .. }) = self.table.get(page) else {
            return;
        };
        if found {
            self.forget_resident(w, page, slot, self.without_content(page));
        } else {
            self.forget_resident(w, page, slot, Entry::Poisoned);
            w.notice(Notice::Unaccounted { page });
        }
    }
}
