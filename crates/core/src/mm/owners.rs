//! The page of each slot.

use super::Mm;
use crate::readahead::Window;
use crate::space::page_table::{Entry, Resident};
use crate::units::{Slot, Vpn};

impl Mm {
    /// `page` is in `slot` from now on, or will be when a write is done.
    pub(super) fn note_owner(&mut self, slot: Slot, page: Vpn) {
        if self.swap.by_slot {
            self.swap.owners.set(slot, page);
        }
    }

    /// As [`Mm::note_owner`], for a page that moved with its slot, if it has one.
    pub(super) fn note_moved(&mut self, entry: Entry, page: Vpn) {
        let slot = match entry {
            Entry::Swapped { slot, .. } => Some(slot),
            Entry::Resident(Resident { slot, .. }) => slot,
            Entry::Cached(frame) => self.frames.get(frame).slot,
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => None,
        };
        if let Some(slot) = slot {
            self.note_owner(slot, page);
        }
    }

    /// Page number `n` of a window, if there is one. In a window of slots, only a page that is in its slot and nowhere
    /// else.
    pub(super) fn page_of(&self, window: &Window, n: u32) -> Option<Vpn> {
        match *window {
            Window::Pages { first, stride, .. } => {
                let distance = i64::from(n).wrapping_mul(stride);
                Some(Vpn(first.0.wrapping_add_signed(distance)))
            }
            Window::Slots { first, .. } => {
                let wanted = first.plus(n);
                let page = self.swap.owners.get(wanted)?;
                match self.space.table.get(page) {
                    Entry::Swapped { slot, .. } if slot == wanted => Some(page),
                    _ => None,
                }
            }
        }
    }
}
