//! Same-filled pages: one word, zero or another, fills the page from end to end.
//!
//! The digest at eviction names that word. Such a page gets no slot and is never written; a touch makes it again from
//! the word. Whole huge pages work the same way, in one piece. A page that differs in a single word is an ordinary
//! page.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::frames::clusters::ClusterId;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::reclaim::policy::Came;
use crate::space::page_table::{Entry, Fill};
use crate::units::{Frame, LEAF_PAGES, Vpn};
use crate::world::{Digest, World};

impl Mm {
    /// If the digest alone determines the content, the entry for it; the page counts as dropped.
    pub(super) fn needs_no_slot(&mut self, page: Vpn, digest: Digest) -> Option<Entry> {
        match digest {
            Digest::Zero if self.file_page(page).is_some() => {
                let fill = self.table.fill_of(0)?;
                self.stats.filled_drops += 1;
                Some(Entry::SameFilled(fill))
            }
            Digest::Zero => {
                self.stats.zero_drops += 1;
                Some(Entry::Unmapped)
            }
            Digest::Filled(word) => {
                let fill = self.table.fill_of(word)?;
                self.stats.filled_drops += 1;
                Some(Entry::SameFilled(fill))
            }
            Digest::Hash(_) => None,
        }
    }

    /// Drop a unit if all its words are the same.
    pub(super) fn drop_filled(&mut self, w: &mut impl World, id: ClusterId) -> bool {
        let first = self.frames.clusters().first(id);
        let number = self.frames.get(first).digest;
        let mut frames = self.frames.clusters().frames(id);
        if !frames.all(|frame| self.frames.get(frame).digest == number) {
            return false;
        }
        // The stored number does not tell the kind of the pages; all have the same kind.
        let digest = w.digest_of(first);
        let pages = self
            .frames
            .clusters()
            .frames(id)
            .filter_map(|frame| self.frames.get(frame).page);
        let has_file = pages.into_iter().any(|page| self.file_page(page).is_some());
        // All of it is dropped, or nothing: only the word of zeros may be missing for some of the pages.
        if has_file && digest == Digest::Zero && self.table.fill_of(0).is_none() {
            return false;
        }
        for frame in self.frames.clusters().frames(id) {
            let FrameDesc { page, slot, .. } = *self.frames.get(frame);
            let Some(page) = page else {
                self.slots.put(w, slot);
                continue;
            };
            let Some(entry) = self.needs_no_slot(page, digest) else {
                return false;
            };
            self.slots.put(w, slot);
            self.table.set(page, entry);
        }
        self.frames.end_all(id, State::Free);
        true
    }

    /// A touch of a same-filled page. Following pages of the same word are mapped too, in batches as large as those of
    /// first touches.
    pub(super) fn on_filled(
        &mut self,
        w: &mut impl World,
        pending: Pending,
        fill: Fill,
    ) -> Outcome {
        let page = pending.page;
        let Some(vma) = self.vmas.find(page) else {
            return Outcome::Unmanaged;
        };
        let batch = vma.streams.batch(page).min(self.config.first_touch.max(1));
        let edge = page.0.next_multiple_of(LEAF_PAGES as u64).max(page.0 + 1);
        let end = vma.range.end.min(Vpn(edge));
        if let Some(outcome) = self.touch_unit(w, pending, batch, Some(fill)) {
            return outcome;
        }
        let alike = |n: &u64| {
            let next = page.plus(*n);
            next < end && self.table.get(next) == Entry::SameFilled(fill)
        };
        let wanted = 1 + (1..u64::from(batch)).take_while(alike).count() as u32;
        let batch = self.spared(w, wanted);
        if self.frames.free() < batch {
            self.drop_clean(batch - self.frames.free());
        }
        let Some((frame, n)) = self.obtain(w, batch) else {
            return self.stall(w, pending);
        };
        let word = self.table.word_of(fill);
        w.fill_with(frame, n, word);
        let desc = FrameDesc {
            state: State::Dirty,
            page: Some(page),
            // If it cannot be mapped now, it may be written later.
            digest: Digest::Filled(word).number(),
            wanted: true,
            since: pending.since,
            ..NOTHING
        };
        self.frames.install(frame, desc);
        self.table.set(page, Entry::Cached(frame));
        self.stats.faults_minor += 1;
        let outcome = self.deliver(w, frame);
        let others = match self.table.get(page) {
            Entry::Resident(_) => self.map_filled(w, frame.plus(1), page.plus(1), n - 1),
            _ => 0,
        };
        (1 + others..n).for_each(|i| self.frames.set_free(frame.plus(i)));
        if let Some(vma) = self.vmas.find_mut(page) {
            vma.streams.mapped_of(page, 1 + others, wanted);
        }
        outcome
    }

    /// Map `n` frames that hold the content of same-filled pages. Returns how many were mapped.
    fn map_filled(&mut self, w: &mut impl World, frame: Frame, page: Vpn, n: u32) -> u32 {
        if n == 0 {
            return 0;
        }
        if self.held {
            (0..n.into()).for_each(|i| w.returns(page.plus(i)));
        }
        let done = w.move_in(frame, page, n);
        for i in 0..done.pages {
            debug_assert!(matches!(
                self.table.get(page.plus(i.into())),
                Entry::SameFilled(_)
            ));
            self.frames.set_empty(frame.plus(i));
            self.set_mapped(w, page.plus(i.into()), None, Came::Beside);
        }
        self.stats.first_touched += u64::from(done.pages);
        done.pages
    }
}
