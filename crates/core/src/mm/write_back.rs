//! Pages move from a compressing area that fills up to another area ([`crate::swap::write_back`] decides which).
//!
//! No fault waits for this work: it goes in small steps, and leaves alone the memory that faults need. If the area
//! fills faster, it refuses writes, and these go to the next area.

use super::Mm;
use crate::frames::{FrameDesc, NOTHING};
use crate::io::SLOTS_PER_IO;
use crate::space::page_table::Entry;
use crate::swap::write_back::Usage;
use crate::units::{Frame, Slot};
use crate::world::World;

impl Mm {
    /// The area that is to be relieved now, if any.
    fn filling_area(&mut self, w: &impl World) -> Option<u8> {
        let areas = || (0..).map_while(|n| w.nth(n));
        let usage = |area| Usage {
            slots: w.slots(area).into(),
            used: w.used(area),
        };
        let area = areas().find(|&area| w.compresses(area))?;
        let others = || {
            let others = areas().filter(|&area| !w.compresses(area)).map(usage);
            others.fold(Usage::default(), |all, one| Usage {
                slots: all.slots + one.slots,
                used: all.used + one.used.min(one.slots),
            })
        };
        let evictions = self.reclaim.evictions();
        self.write_back
            .is_due(usage(area), others, evictions)
            .then_some(area)
    }

    /// Returns whether there is more to do at once.
    pub(super) fn write_back_step(&mut self, w: &mut impl World) -> bool {
        if self.held || self.waiters.are_stalled() || self.is_draining() {
            return false;
        }
        let Some(area) = self.filling_area(w) else {
            return false;
        };
        let most = self.write_back.batch(self.reclaim.marks().writes);
        if self.frames.unwritten() + most > self.reclaim.marks().writes {
            return false;
        }
        // Otherwise they would come back to the same area for ever.
        if !self.slots.has_uncompressed(w) {
            self.write_back.stop();
            return false;
        }
        let mut met = core::mem::take(&mut self.buffers.met);
        let mut batch = core::mem::take(&mut self.buffers.batch);
        met.clear();
        batch.clear();
        let (hand, look) = self.write_back.next_look();
        let mut next = self.table.on_area(area, hand, look, &mut met);
        let mut worked = false;
        for &(page, entry) in &met {
            match entry {
                Entry::Resident(resident) => {
                    self.give_slot_back(w, page, resident);
                    worked = true;
                }
                Entry::Swapped { slot, evicted } if self.is_cold(w, slot, evicted) => {
                    let frame = (batch.len() < most as usize)
                        .then(|| self.frames_to_read(w, 1))
                        .flatten();
                    let Some((frame, _)) = frame else {
                        next = Some(page);
                        break;
                    };
                    let desc = FrameDesc {
                        incompressible: true,
                        ..NOTHING
                    };
                    self.begin_read(page, slot, frame, desc);
                    batch.push((slot, frame));
                }
                _ => {}
            }
        }
        worked |= !batch.is_empty();
        self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
        self.write_back.end_step(worked, next);
        self.buffers.met = met;
        self.buffers.batch = batch;
        worked
    }

    fn is_cold(&self, w: &impl World, slot: Slot, evicted: u32) -> bool {
        let later = self.reclaim.evicted_since(evicted);
        self.write_back.is_cold(later) && w.count(slot) == 1
    }

    /// A page that is to go to another area has been read from its old one.
    pub(super) fn send_on(&mut self, w: &mut impl World, slot: Slot, frame: Frame) {
        let digest = w.digest(slot);
        self.slots.put(w, Some(slot));
        self.frames.set_leaves(frame, true);
        self.frames.clear_slot(frame, digest);
    }
}
