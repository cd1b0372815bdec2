//! Guards (MADV_GUARD_INSTALL): a touch raises SIGSEGV until the guard is removed; then the page reads as zeros.
//!
//! The kernel sends no event for a guard, so the driver reports it. The content of a guarded page is dropped at once.
//! Nothing is mapped there before the guard is gone, as the kernel lets UFFDIO_COPY replace a guard. A discard leaves
//! guards in place; unmapping and moving take them along.

use super::{Mm, Outcome};
use crate::fault::Pending;
use crate::reclaim::policy::Came;
use crate::space::page_table::{Entry, Resident};
use crate::units::{PageRange, pages};
use crate::world::{Stop, World};

impl Mm {
    /// The kernel guards `range` now.
    pub fn guard(&mut self, w: &mut impl World, range: &PageRange) {
        self.discard(w, range);
        for part in self.vmas.overlapping(range) {
            for page in pages(&part) {
                self.table.set(page, Entry::Guarded);
            }
        }
    }

    /// No page of `range` is guarded any more.
    pub fn unguard(&mut self, range: &PageRange) {
        for part in self.vmas.overlapping(range) {
            let mut at = part.start;
            while let Some((page, entry)) = self.table.next_used(at, part.end) {
                if entry == Entry::Guarded {
                    self.table.set(page, self.without_content(page));
                }
                at = page.plus(1);
            }
        }
    }

    /// Nothing is mapped in `range` any more: unreported guards stood there, and are removed. Evicted pages stay
    /// evicted.
    pub fn forget_mapped(&mut self, w: &mut impl World, range: &PageRange) {
        for part in self.vmas.overlapping(range) {
            let mut at = part.start;
            while let Some((page, entry)) = self.table.next_used(at, part.end) {
                if let Entry::Resident(Resident { slot, .. }) = entry {
                    self.forget_resident(w, page, slot, self.without_content(page));
                }
                at = page.plus(1);
            }
        }
    }

    /// A fault on a guarded page: the message is old, or an unreported call removed the guard. A move tells, as the
    /// kernel refuses it where a guard is.
    pub(super) fn on_guarded(&mut self, w: &mut impl World, pending: Pending) -> Outcome {
        let page = pending.page;
        if self.file_page(page).is_some() {
            // A page of zeros must not be seen there.
            return self.lost_unless_there(w, pending);
        }
        let Some((frame, _)) = self.obtain(w, 1) else {
            return self.stall(w, pending);
        };
        w.clear(frame, 1);
        let mut stop = w.move_in(frame, page, 1).stop;
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::ReplacedGuard) && stop == Some(Stop::Exists) {
            stop = Some(Stop::Fixed);
        }
        match stop {
            None => self.frames.set_empty(frame),
            Some(Stop::Fixed) => {
                // The mapping has another protection than our frames: it gets a page of its own instead of this one.
                w.release(frame, 1);
                self.frames.set_empty(frame);
                stop = w.zero_in(page, 1).stop;
                w.uncharge(u64::from(stop.is_some()));
            }
            Some(_) => self.frames.set_free(frame),
        }
        match stop {
            None => {
                self.set_mapped(w, page, None, Came::Touched);
                self.stats.faults_zero += 1;
                self.on_touched(w, &pending);
            }
            Some(Stop::Again | Stop::Busy) => return self.again(pending),
            Some(_) => w.wake(page),
        }
        Outcome::Served
    }
}
