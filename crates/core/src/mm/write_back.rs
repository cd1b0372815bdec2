//! Pages move from a compressing area that fills up to another area ([`crate::swap::write_back`] decides which).
//!
//! No fault waits for this work: it goes in small steps, and leaves alone the memory that faults need. If the area
//! fills faster, it refuses writes, and these go to the next area.

use super::Mm;
use crate::frames::{FrameDesc, NOTHING};
use crate::io::SLOTS_PER_IO;
use crate::space::page_table::{EVICTED_BITS, Entry};
use crate::swap::write_back::*;
use crate::units::{Frame, Slot};
use crate::world::World;

impl Mm {
    /// The area that is to be relieved now, if any.
    fn filling_area(&mut self, w: &impl World) -> Option<u8> {
        let areas = || (0..).map_while(|n| w.nth(n));
        let area = areas().find(|&area| w.compresses(area))?;
        let (used, slots) = (w.used(area) * 16, u64::from(w.slots(area)));
        let bound = if self.swap.back.active { ENDS } else { BEGINS };
        if used < slots * bound {
            self.swap.back.active = false;
            return None;
        }
        let (mut all, mut room) = (0, 0);
        for area in areas().filter(|&area| !w.compresses(area)) {
            let slots = u64::from(w.slots(area));
            all += slots;
            room += slots.saturating_sub(w.used(area));
        }
        if room <= LEAST_ROOM.min(all / LEAST_PART) {
            self.swap.back.active = false;
            return None;
        }
        if !self.swap.back.active {
            self.swap.back.active = true;
            let oldest = (self.reclaim.evictions / 2).min(1 << (EVICTED_BITS - 1)) as u32;
            self.swap.back.age = match self.swap.back.age {
                0 => oldest,
                age => (age * 2).min(oldest),
            };
        }
        Some(area)
    }

    /// Returns whether there is more to do at once.
    pub(super) fn write_back_step(&mut self, w: &mut impl World) -> bool {
        if self.space.held || !self.fault.stalled.is_empty() || self.is_draining() {
            return false;
        }
        let Some(area) = self.filling_area(w) else {
            return false;
        };
        let most = BATCH.min(self.reclaim.marks.writes / 2);
        if self.frames.unwritten() + most > self.reclaim.marks.writes {
            return false;
        }
        // Otherwise they would come back to the same area for ever.
        if !self.swap.slots.has_whole(w) {
            self.swap.back.active = false;
            return false;
        }
        let mut met = core::mem::take(&mut self.swap.back.met);
        let mut batch = core::mem::take(&mut self.swap.back.batch);
        met.clear();
        batch.clear();
        let mut next = self
            .space
            .table
            .on_area(area, self.swap.back.hand, LOOK, &mut met);
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
                        whole: true,
                        ..NOTHING
                    };
                    self.begin_read(page, slot, frame, desc);
                    batch.push((slot, frame));
                }
                _ => {}
            }
        }
        worked |= !batch.is_empty();
        self.swap.back.found |= worked;
        self.submit_reads(w, &mut batch, None, SLOTS_PER_IO);
        let end_of_round = next.is_none();
        self.swap.back.hand = next.unwrap_or_default();
        if end_of_round && !core::mem::take(&mut self.swap.back.found) {
            self.swap.back.age /= 2;
        }
        self.swap.back.met = met;
        self.swap.back.batch = batch;
        worked
    }

    fn is_cold(&self, w: &impl World, slot: Slot, evicted: u32) -> bool {
        let age = (self.reclaim.evictions as u32).wrapping_sub(evicted) & ((1 << EVICTED_BITS) - 1);
        age >= self.swap.back.age && w.count(slot) == 1
    }

    /// A page that is to go to another area has been read from its old one.
    pub(super) fn send_on(&mut self, w: &mut impl World, slot: Slot, frame: Frame) {
        let digest = w.digest(slot);
        self.put(w, Some(slot));
        self.frames.set_leaves(frame, true);
        self.frames.set_homeless(frame, digest);
    }
}
