//! Holding still for a fork.
//!
//! A child gets the parent's memory as of the fork. What is mapped then, the kernel shares; what is
//! not mapped must be on an area, with a reference for the child. So before a fork the driver calls
//! [`Mm::hold`], lets the writes finish ([`Mm::is_quiet`]), and takes a snapshot: every page that
//! is not mapped, with its slot. Until [`Mm::release`] nothing is moved out; faults go on, and
//! each page that comes back is announced through [`World::returns`] before it is mapped, so that the
//! child can tell it from one that never came.

use alloc::vec::Vec;

use crate::frames::State;
use crate::huge::clusters::List;
use crate::mm::{Mm, Pending};
use crate::page_table::{Entry, Resident};
use crate::units::{Slot, Vpn};
use crate::world::World;

impl Mm {
    /// Move nothing out from now on.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Everything that is not mapped has its bytes on an area, or is marked as lost. Pages for which no slot is free go
    /// back to the program.
    pub fn is_quiet(&mut self, w: &mut impl World) -> bool {
        self.submit_writes(w, true);
        if self.areas_full {
            while let Some(id) = self.frames.clusters.oldest(List::Dirty) {
                self.frames.disband(id);
            }
            let dirty: Vec<_> = self.frames.dirty().iter().copied().collect();
            for frame in dirty {
                self.frames.get_mut(frame).since = w.now();
                self.deliver(w, frame);
            }
        }
        // A lost page whose mark is not set yet would read as zeros in the child.
        let unmarked = |pending: &Pending| self.table.get(pending.page) == Entry::Poisoned;
        self.frames.unwritten() == 0 && !self.retry.iter().any(unmarked)
    }

    /// Every page that is not mapped and not zero, in order of address, with its slot.
    pub fn unmapped(&self, out: &mut Vec<(Vpn, Slot)>) {
        let mut at = Vpn(0);
        while let Some((page, entry)) = self.table.next_used(at, Vpn(u64::MAX)) {
            let slot = match entry {
                Entry::Swapped { slot, .. } => Some(slot),
                Entry::Cached(frame) => {
                    let holding = self.frames.get(frame);
                    debug_assert!(matches!(holding.state, State::Clean | State::Reading));
                    holding.slot
                }
                Entry::Never | Entry::Resident(_) | Entry::Poisoned => None,
            };
            out.extend(slot.map(|slot| (page, slot)));
            at = page.plus(1);
        }
    }

    /// Take a reference for the child to each slot of the snapshot.
    pub fn share(&self, w: &mut impl World, pages: &[(Vpn, Slot)]) {
        #[cfg(feature = "planted")]
        let pages = match self.has(crate::planted::Bug::ForgottenCount) {
            true => pages.get(1..).unwrap_or_default(),
            false => pages,
        };
        for &(_, slot) in pages {
            w.share(slot);
        }
    }

    /// The fork is over.
    pub fn release(&mut self) {
        self.held = false;
    }

    /// In the child: `page` was on an area when the parent forked, and `slot` is ours. `present`
    /// when it is mapped here and came back rightly before the fork.
    pub fn inherit(&mut self, w: &mut impl World, page: Vpn, slot: Slot, present: bool) {
        if self.vmas.find(page).is_none() {
            self.put(w, Some(slot));
        } else if present {
            let resident = Resident {
                slot: None,
                credit: 1,
            };
            self.put(w, Some(slot));
            self.table.set(page, Entry::Resident(resident));
            w.charge_existing(1);
        } else {
            self.table.set(page, Entry::Swapped { slot, evicted: 0 });
            self.note_owner(slot, page);
        }
    }
}
