//! Pages that one word fills from end to end, zeros or another.
//!
//! All there is to know of such a page is that word, which its digest tells as it goes out: it gets no slot, is never
//! written, and a touch makes it anew. Whole huge pages do so as well, in one piece. What differs in a single word is a page as
//! any other.

use crate::frames::{FrameDesc, NOTHING, State};
use crate::huge::clusters::ClusterId;
use crate::mm::{Mm, Outcome, Pending};
use crate::space::page_table::{Entry, Fill};
use crate::units::{Frame, LEAF_PAGES, Vpn};
use crate::world::{Digest, World};

impl Mm {
    /// What is known of a page by its digest alone, if that is all there is to know: it is counted as dropped.
    pub(crate) fn needs_no_slot(&mut self, digest: Digest) -> Option<Entry> {
        match digest {
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

    /// Forget a unit all of whose words are the same, if it is one.
    pub(crate) fn drop_filled(&mut self, w: &mut impl World, id: ClusterId) -> bool {
        let first = self.frames.clusters.first(id);
        let number = self.frames.get(first).digest;
        let mut frames = self.frames.clusters.frames(id);
        if !frames.all(|frame| self.frames.get(frame).digest == number) {
            return false;
        }
        // The number does not tell of which kind the pages are; they are all of the same.
        let digest = w.digest_of(first);
        for frame in self.frames.clusters.frames(id) {
            let Some(entry) = self.needs_no_slot(digest) else {
                return false;
            };
            let FrameDesc { page, slot, .. } = *self.frames.get(frame);
            self.put(w, slot);
            if let Some(page) = page {
                self.table.set(page, entry);
            }
        }
        self.frames.end_all(id, State::Free);
        true
    }

    /// A touch of a page that is filled by one word. As many of those behind it that the same word fills come along as
    /// of first touches.
    pub(crate) fn on_filled(
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
        (0..n).for_each(|i| w.fill_with(frame.plus(i), word));
        let desc = FrameDesc {
            state: State::Dirty,
            page: Some(page),
            // Where it cannot be mapped now, it may be written.
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

    /// Map `n` frames at pages that are filled by what they hold. Returns how many went.
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
            self.set_mapped(w, page.plus(i.into()), None, 0);
        }
        self.stats.first_touched += u64::from(done.pages);
        done.pages
    }
}
