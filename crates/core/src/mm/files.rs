//! Mapped files: regions whose pages are those of a file until the program writes to them.
//!
//! A page of a file is a page on an area of its own ([`crate::units::FILES`]) that is always there and never written. All
//! that holds for swapped pages therefore holds for it: readahead, one order of eviction, one limit. What the program
//! writes to is no page of the file any more. It becomes one again when it is discarded, as the kernel's private mappings
//! do.

use super::Mm;
use crate::space::page_table::Entry;
use crate::units::{PageRange, Slot, Vpn, len, pages};
use crate::world::World;

impl Mm {
    /// `range`, which is managed, maps a file, whose page `first` is at its start. Pages with content keep it.
    pub fn map_file(&mut self, range: &PageRange, first: Slot) {
        self.vmas.set_backing(range, Some(first));
        for page in self.vmas.overlapping(range).iter().flat_map(pages) {
            if self.table.get(page) == Entry::Unmapped {
                self.table.set(page, self.without_content(page));
            }
        }
    }

    /// `range` maps no file any more; its content is about to go.
    pub(super) fn leave_files(&mut self, range: &PageRange) {
        if !self.vmas.maps_files() {
            return;
        }
        for part in self.vmas.overlapping(range) {
            if let Some(first) = self.file_page(part.start) {
                self.files.forget(first, len(&part));
            }
        }
        self.vmas.set_backing(range, None);
    }

    /// The page of a file that is mapped at `page`.
    pub fn file_page(&self, page: Vpn) -> Option<Slot> {
        self.vmas.place_of(page)
    }

    /// The entry of a page to which nothing was written: zeros, or the file's page.
    pub(super) fn without_content(&self, page: Vpn) -> Entry {
        match self.file_page(page) {
            Some(slot) => Entry::Swapped {
                slot,
                evicted: self.reclaim.long_ago(),
            },
            None => Entry::Unmapped,
        }
    }

    /// Whether a slot, or a page of a file, holds the content with this digest.
    pub(super) fn holds(&self, w: &impl World, slot: Slot, digest: u64) -> bool {
        match slot.is_file() {
            true => self.files.is(slot, digest),
            false => w.digest(slot) == digest,
        }
    }
}
