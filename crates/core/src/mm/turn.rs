//! Faults that wait for the turn of their process, and what load control is told.
//!
//! [`crate::process::Load`] decides which processes of a run wait while the working sets of all do not fit together. A
//! process that waits keeps what it has in memory until others need it; a fault that needs further memory waits for its
//! turn. A page that is in a frame is still mapped, as that takes no memory. During a fork nothing waits: the faulting
//! thread may be the one that forks, or hold a lock that it needs. Swapoff must come to its end, too.
//!
//! When its turn comes, the pages that it lost last are read back in large I/Os, in order of address, as far as there is
//! memory, and mapped. Faults would read them one by one, which takes ten times as long.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::{FrameDesc, NOTHING};
use crate::io::SLOTS_PER_IO;
use crate::space::page_table::Entry;
use crate::units::{Frame, Slot, Vpn};
use crate::world::World;

/// Above this number of I/Os in flight, none is added: a fault's read must find an entry.
const READS: usize = 32;
/// Pages of the address space that one step looks at: it stays short.
const LOOK: u64 = 1 << 18;
/// Fewer pages are not worth a step.
const LEAST: u32 = 16;

/// Reading back what a process lost while it waited.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refill {
    /// Where it goes on.
    at: Vpn,
    /// The evictions at its begin. Pages that were evicted at most so many evictions earlier are read.
    evictions: u64,
    most: u64,
}

impl Mm {
    /// This process `waits` for its turn, or not. A driver that tells it to wait tells it to go on later, in any case.
    pub fn set_waits_for_turn(&mut self, w: &mut impl World, waits: bool) {
        let waited = self.waiters.has_no_turn();
        if !waits && !waited {
            // As a rule: this is asked in each turn of the driver's loop.
            return;
        }
        self.waiters.set_no_turn(waits);
        if waits {
            self.refill = None;
        } else {
            self.refill = Some(Refill {
                at: Vpn(0),
                evictions: self.reclaim.evictions(),
                most: w.limit().saturating_sub(self.table.resident()),
            });
        }
        if waits && !self.held && !self.is_draining() {
            return;
        }
        for pending in self.waiters.take_turn(w.now()) {
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

    /// Pages are being read back that were lost while this process waited.
    pub fn is_refilling(&self) -> bool {
        self.refill.is_some()
    }

    /// Read some of them. Returns whether there is more to do at once.
    pub(super) fn refill_step(&mut self, w: &mut impl World) -> bool {
        let Some(refill) = self.refill else {
            return false;
        };
        if self.held || self.is_draining() || self.waiters.are_stalled() {
            return false;
        }
        let Some(vma) = self.vmas.iter().find(|vma| vma.range.end > refill.at) else {
            self.refill = None;
            return false;
        };
        let start = vma.range.start.max(refill.at);
        let range = start..vma.range.end.min(start.plus(LOOK));
        let most = self.spare(w).min(SLOTS_PER_IO as u32);
        if most < LEAST || self.io.in_flight() >= READS {
            return false;
        }
        let age = refill.most + self.reclaim.evictions() - refill.evictions;
        let mut pages = Vec::new();
        let reclaim = &self.reclaim;
        let recent = |entry| match entry {
            Entry::Swapped { evicted, .. } => u64::from(reclaim.evicted_since(evicted)) <= age,
            _ => false,
        };
        let mut next = self.table.search(&range, most as usize, recent, &mut pages);
        let mut batch: Vec<(Slot, Frame)> = Vec::new();
        let mut run: Option<(Frame, u32)> = None;
        for (at, &page) in pages.iter().enumerate() {
            run = run.or_else(|| self.frames_to_read(w, (pages.len() - at) as u32));
            let (Some((frame, n)), Entry::Swapped { slot, .. }) = (run, self.table.get(page))
            else {
                next = page;
                break;
            };
            run = (n > 1).then_some((frame.plus(1), n - 1));
            let direct = true;
            self.begin_read(page, slot, frame, FrameDesc { direct, ..NOTHING });
            batch.push((slot, frame));
        }
        if let Some((frame, n)) = run {
            for i in 0..n {
                self.frames.put_back(frame.plus(i));
            }
        }
        self.refill = Some(Refill { at: next, ..refill });
        batch.sort_unstable_by_key(|&(slot, _)| slot);
        for run in batch.chunk_by(|a, b| a.0.plus(1) == b.0) {
            self.submit_read(w, run[0].0, run.iter().map(|&(_, frame)| frame), true);
        }
        next > start
    }

    pub(super) fn has_to_wait(&self, entry: Entry) -> bool {
        let needs_memory = match entry {
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Swapped { .. } => true,
            Entry::Resident(_) | Entry::Cached(_) | Entry::Poisoned | Entry::Guarded => false,
        };
        needs_memory && self.waiters.has_no_turn() && !self.held && !self.is_draining()
    }

    /// A thread got the page that was in the frame. It would not have waited if this process had all the memory of the
    /// run: fewer pages were evicted since the page's eviction than that memory holds. Evictions are more than the
    /// different pages among them, so what is mapped now is not added.
    pub(super) fn count_loss(&mut self, w: &impl World, desc: &FrameDesc) {
        let within = |distance| u64::from(distance) <= w.limit();
        if desc.distance.is_some_and(within) {
            self.stats.lost_ns += w.now().saturating_sub(desc.since);
            self.stats.losses += 1;
        }
    }
}
