//! Pages move from an area that fills up to one beyond it, and come back when they are read more often than those that
//! stayed ([`crate::swap::write_back`] decides which, [`crate::swap::tiers`] whether).
//!
//! No fault waits for this work: it goes in small steps, and leaves alone the memory that faults need. If the area
//! fills faster, pages go to the next one at once.

use super::Mm;
use crate::frames::{FrameDesc, NOTHING};
use crate::io::SLOTS_PER_IO;
use crate::space::page_table::Entry;
use crate::swap::tiers::Usage;
use crate::swap::write_back::WriteBack;
use crate::units::{Frame, Slot};
use crate::world::{SwapMap, World};

impl Mm {
    fn area_usage(&self, w: &impl SwapMap, area: u8) -> Usage {
        Usage {
            slots: w.slots(area).into(),
            used: w.used(area),
            reads: self.area_reads.of(area),
        }
    }

    /// The same of its cold pages.
    fn cold_usage(&self, w: &impl SwapMap, area: u8) -> Usage {
        let all = self.area_usage(w, area);
        let back = self.write_back.get(usize::from(area));
        Usage {
            used: back.map_or(all.used, |back| back.cold_of(all.used)),
            reads: self.area_reads.of_cold(area),
            ..all
        }
    }

    /// A page is about to be read from an area, to which so many pages were evicted after it.
    pub(super) fn note_read(&mut self, area: u8, later: Option<u32>) {
        let back = self.write_back.get(usize::from(area));
        let is_cold = back
            .zip(later)
            .is_none_or(|(back, later)| back.is_cold(later));
        self.area_reads.note(area, is_cold);
    }

    /// The areas of higher tiers than `tier`, together.
    fn beyond(&self, w: &impl SwapMap, tier: u8) -> Usage {
        let areas = (0..).map_while(|n| w.nth(n));
        let beyond = areas.filter(|&area| w.tier(area) > tier);
        beyond.fold(Usage::default(), |all, area| {
            all.and(self.area_usage(w, area))
        })
    }

    /// Whether a page that was read from `slot` is to have its next place on a nearer area.
    pub(super) fn comes_nearer(&self, w: &impl SwapMap, slot: Slot) -> bool {
        let tier = w.tier(slot.area);
        let mut areas = (0..).map_while(|n| w.nth(n));
        w.nth(1).is_some()
            && areas.any(|area| {
                w.tier(area) < tier && {
                    let usage = self.area_usage(w, area);
                    // All that is in memory and needs a slot would still leave room there.
                    let homeless = self.table.resident().saturating_sub(self.table.keeping());
                    let is_empty = || WriteBack::has_room(usage, homeless);
                    let cold = || self.cold_usage(w, area);
                    let is_exchanged =
                        || self.beyond(w, w.tier(area)).is_read_more_often_than(cold());
                    WriteBack::has_room(usage, 0) && (is_empty() || is_exchanged())
                }
            })
    }

    /// The area that is to be relieved now, if any: the farthest first, as it makes room for the others. What compressed
    /// memory holds costs memory, so that it is relieved in any case.
    fn filling_area(&mut self, w: &impl World) -> Option<u8> {
        w.nth(1)?;
        let evictions = self.reclaim.evictions();
        let mut filling: Option<u8> = None;
        let mut n = 0;
        while let Some(area) = w.nth(n) {
            n += 1;
            let index = usize::from(area);
            if self.write_back.len() <= index {
                self.write_back.resize_with(index + 1, WriteBack::default);
            }
            let usage = self.area_usage(w, area);
            let beyond = self.beyond(w, w.tier(area));
            let cold = self.cold_usage(w, area);
            let is_worth_it = w.compresses(area) || beyond.is_read_more_often_than(cold);
            let beyond = match is_worth_it {
                true => beyond,
                false => Usage::default(),
            };
            let is_due = self.write_back[index].is_due(usage, beyond, evictions);
            if is_due && filling.is_none_or(|other| w.tier(area) > w.tier(other)) {
                filling = Some(area);
            }
        }
        filling
    }

    /// Returns whether there is more to do at once.
    pub(super) fn write_back_step(&mut self, w: &mut impl World) -> bool {
        if self.held || self.waiters.are_stalled() || self.is_draining() {
            return false;
        }
        let Some(area) = self.filling_area(w) else {
            return false;
        };
        let (index, least) = (usize::from(area), w.tier(area) + 1);
        let most = self.write_back[index].batch(self.reclaim.marks().writes);
        if self.frames.unwritten() + most > self.reclaim.marks().writes {
            return false;
        }
        // Otherwise they would come back to the same area for ever.
        if !self.slots.has_in_tier(w, least) {
            self.write_back[index].stop();
            return false;
        }
        let mut met = core::mem::take(&mut self.buffers.met);
        let mut batch = core::mem::take(&mut self.buffers.batch);
        met.clear();
        batch.clear();
        let (hand, look) = self.write_back[index].next_look();
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
                        least_tier: least,
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
        self.write_back[index].end_step(worked, next);
        self.buffers.met = met;
        self.buffers.batch = batch;
        worked
    }

    fn is_cold(&mut self, w: &impl World, slot: Slot, evicted: u32) -> bool {
        let later = self.reclaim.evicted_since(evicted);
        let is_cold = self.write_back[usize::from(slot.area)].meets_cold(later);
        is_cold && w.count(slot) == 1
    }

    /// A page that is to go to another area has been read from its old one.
    pub(super) fn send_on(&mut self, w: &mut impl World, slot: Slot, frame: Frame) {
        let digest = w.digest(slot);
        self.slots.put(w, Some(slot));
        self.frames.set_leaves(frame, true);
        self.frames.clear_slot(frame, digest);
    }
}
