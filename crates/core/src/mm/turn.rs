//! Faults that wait for the turn of their process, and what load control is told.
//!
//! [`crate::process::Load`] decides which processes of a run wait while the working sets of all do not fit together. A
//! process that waits keeps what it has in memory until others need it; a fault that needs further memory waits for its
//! turn. A page that is in a frame is still mapped, as that takes no memory. During a fork nothing waits: the faulting
//! thread may be the one that forks, or hold a lock that it needs. Swapoff must come to its end, too.

use super::Mm;
use crate::fault::Pending;
use crate::frames::FrameDesc;
use crate::space::page_table::Entry;
use crate::world::World;

impl Mm {
    /// This process `waits` for its turn, or not. A driver that tells it to wait tells it to go on later, in any case.
    pub fn set_waits_for_turn(&mut self, w: &mut impl World, waits: bool) {
        self.waiters.set_no_turn(waits);
        if waits && !self.held && !self.is_draining() {
            return;
        }
        let now = w.now();
        for pending in self.waiters.take_turn() {
            // The time until here is no time of the disk.
            let pending = Pending {
                since: now,
                ..pending
            };
            self.serve_or_wake(w, pending);
        }
    }

    /// Faults that wait for the turn of this process.
    pub fn waiting_for_turn(&self) -> usize {
        self.waiters.waiting_for_turn()
    }

    /// Pages of memory that the process would have if nothing was short: those in memory, and those on areas only.
    pub fn needed(&self) -> u64 {
        self.table.resident() + u64::from(self.frames.backed()) + self.table.swapped()
    }

    pub(super) fn has_to_wait(&self, entry: Entry) -> bool {
        let needs_memory = match entry {
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Swapped { .. } => true,
            Entry::Resident(_) | Entry::Cached(_) | Entry::Poisoned | Entry::Guarded => false,
        };
        needs_memory && self.waiters.has_no_turn() && !self.held && !self.is_draining()
    }

    /// A thread got the page that was in the frame. If this process had all the memory of the run, it would not have
    /// waited: fewer pages were evicted since the page's eviction than that memory holds beyond what is mapped.
    pub(super) fn count_loss(&mut self, w: &impl World, desc: &FrameDesc) {
        let within = |distance| u64::from(distance) + self.table.resident() <= w.limit();
        if desc.distance.is_some_and(within) {
            self.stats.lost_ns += w.now().saturating_sub(desc.since);
            self.stats.losses += 1;
        }
    }
}
