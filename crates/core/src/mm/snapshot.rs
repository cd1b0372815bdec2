//! The memory of a process is held still for a fork.
//!
//! A child gets the parent's memory as of the fork. The kernel shares mapped pages. The others must be on an area, with
//! a reference for the child. Before a fork the driver therefore calls [`Mm::hold`], lets the writes finish
//! ([`Mm::is_quiet`]), and takes a snapshot: every unmapped page, with its slot or the word that fills it. Until
//! [`Mm::release`] nothing is evicted. Faults are served: each page that comes back is announced through
//! [`World::returns`] before it is mapped, which lets the child tell it from a page that did not.

use alloc::vec::Vec;

use super::Mm;
use crate::fault::Pending;
use crate::frames::State;
use crate::frames::clusters::List;
use crate::space::page_table::Entry;
use crate::space::{Place, Stored};
use crate::units::Vpn;
use crate::world::World;

impl Mm {
    /// Evict nothing from now on.
    pub fn hold(&mut self) {
        self.held = true;
    }

    /// Every unmapped page is on an area, or is marked as lost. Pages for which no slot is free are mapped in the
    /// program again. The driver copies no pages for eviction: after the fork it would copy pages that are shared anew.
    pub fn is_quiet(&mut self, w: &mut impl World) -> bool {
        if w.is_unsharing() {
            return false;
        }
        self.submit_writes(w, true);
        if self.slots.are_full() {
            while let Some(id) = self.frames.clusters().oldest(List::Dirty) {
                self.frames.split_unit(id);
            }
            let dirty: Vec<_> = self.frames.dirty().iter().copied().collect();
            for frame in dirty {
                self.frames.set_since(frame, w.now());
                self.deliver(w, frame);
            }
        }
        // A lost page whose mark is not set yet would read as zeros in the child.
        let unmarked = |pending: &Pending| self.table.get(pending.page) == Entry::Poisoned;
        self.frames.unwritten() == 0 && !self.waiters.retries().iter().any(unmarked)
    }

    /// Every page that is not mapped and not zero, in order of address, and the place of its content. Memory is quiet.
    /// Pages of mapped files that were not written to are left out: the child knows them by its regions
    /// ([`Mm::map_file`]).
    pub fn unmapped(&self, out: &mut Vec<(Vpn, Stored)>) {
        out.extend(self.places().filter_map(|(page, place)| {
            debug_assert!(!matches!(place, Place::Frame(_)), "{page:?} is not quiet");
            match place {
                Place::Stored(Stored::In(slot))
                    if slot.is_file() && self.file_page(page) == Some(slot) =>
                {
                    None
                }
                Place::Stored(stored) => Some((page, stored)),
                Place::Frame(_) | Place::Nowhere => None,
            }
        }));
    }

    /// As [`Mm::unmapped`], at any time.
    pub fn places(&self) -> impl Iterator<Item = (Vpn, Place)> {
        self.table.elsewhere().filter_map(|(page, entry)| {
            let place = match entry {
                Entry::Swapped { slot, .. } => Place::Stored(Stored::In(slot)),
                Entry::SameFilled(fill) => Place::Stored(Stored::Filled(self.table.word_of(fill))),
                Entry::Cached(frame) => {
                    let desc = self.frames.get(frame);
                    match (desc.state, desc.slot) {
                        (State::Clean | State::Reading, Some(slot)) => {
                            Place::Stored(Stored::In(slot))
                        }
                        _ => Place::Frame(frame),
                    }
                }
                Entry::Poisoned => Place::Nowhere,
                Entry::Unmapped | Entry::Resident(_) | Entry::Guarded => return None,
            };
            Some((page, place))
        })
    }

    /// The process has forked without notice: its child shares all pages that are mapped, and lacks all others
    /// ([`Mm::places`]).
    pub fn forked_without_notice(&mut self) {
        self.table.share_all();
    }

    /// Take a reference for the child to each slot of the snapshot.
    pub fn share(&self, w: &mut impl World, pages: &[(Vpn, Stored)]) {
        #[cfg(feature = "planted")]
        let pages = match self.has(crate::planted::Bug::ForgottenCount) {
            true => pages.get(1..).unwrap_or_default(),
            false => pages,
        };
        w.share(pages.iter().filter_map(|&(_, stored)| match stored {
            Stored::In(slot) if !slot.is_file() => Some(slot),
            _ => None,
        }));
    }

    /// The fork is over. The child shares all pages that are mapped; some may have come back only after the fork.
    pub fn release(&mut self) {
        self.held = false;
        self.table.share_all();
    }

    /// In the child: `page` was not mapped when the parent forked. If it is in a slot, we hold a reference. `present`:
    /// the page is mapped here, because it came back before the fork.
    pub fn inherit(&mut self, w: &mut impl World, page: Vpn, stored: Stored, present: bool) {
        let slot = match stored {
            Stored::In(slot) => Some(slot),
            Stored::Filled(_) => None,
        };
        if self.vmas.find(page).is_none() {
            return self.slots.put(w, slot);
        }
        if present {
            self.slots.put(w, slot);
            self.set_found(page);
            if w.shares_found() {
                self.table.share(page);
            }
            w.charge_existing(1);
            return;
        }
        match stored {
            Stored::In(slot) => {
                self.table.set(page, Entry::Swapped { slot, evicted: 0 });
                self.owners.note(slot, page);
            }
            Stored::Filled(word) => {
                // The parent knew no more words than this table has room for.
                let fill = self.table.fill_of(word);
                let entry = fill.map_or(Entry::Poisoned, Entry::SameFilled);
                self.table.set(page, entry);
            }
        }
    }
}
