//! swapoff as the kernel does it, for comparison: page by page, and the readahead policy answers each miss. Seed 003 is
//! about the accounting of pages that are in memory already.

use alloc::vec::Vec;

use super::Mm;
use crate::frames::{NOTHING, State};
use crate::io::SLOTS_PER_IO;
use crate::readahead::Touch;
use crate::space::page_table::Entry;
use crate::units::{Frame, Slot, Vpn};
use crate::world::World;

impl Mm {
    /// One step: up to the first page that must be read. `legacy`: pages in memory count as misses. Returns whether
    /// there is more to do at once.
    pub(super) fn page_by_page(
        &mut self,
        w: &mut impl World,
        area: u8,
        legacy: bool,
        met: &mut Vec<(Vpn, Entry)>,
    ) -> bool {
        for _ in 0..self.drain.step() {
            met.clear();
            let next = self.table.on_area(area, self.drain.cursor(), 1, met);
            let Some(&(page, entry)) = met.first() else {
                return self.walk_on(w, area, next);
            };
            match entry {
                Entry::Resident(resident) => self.give_slot_back(w, page, resident),
                Entry::Cached(frame) => {
                    let desc = *self.frames.get(frame);
                    let slot = desc.slot.filter(|slot| slot.area == area);
                    if let Some(slot) = slot {
                        self.frames.single_out(frame);
                        let first_look = self.drain.on_found_page(page);
                        if first_look && legacy {
                            self.answer_miss(w, page, slot, None);
                        } else if first_look {
                            self.on_hit(w, page.address(), frame);
                        }
                        if desc.state == State::Reading {
                            return false;
                        }
                        if self.table.get(page) != entry {
                            // Dropped to make room for the window.
                            continue;
                        }
                        if desc.state == State::Clean && !desc.wanted {
                            let desc = *self.frames.get(frame);
                            if desc.ahead {
                                // Used, but not seen.
                                self.end_ahead(page, &desc);
                                self.frames.use_ahead(frame);
                            }
                            self.place(w, &[(page, frame)]);
                        }
                    }
                }
                Entry::Swapped { slot, .. } => {
                    let Some((frame, _)) = self.frames_to_read(w, 1) else {
                        self.drain.on_found();
                        self.drain.stop_at(self.drain.cursor(), Some(w.now()));
                        return false;
                    };
                    self.drain.on_found_page(page);
                    self.begin_read(page, slot, frame, NOTHING);
                    self.answer_miss(w, page, slot, Some(frame));
                    return false;
                }
                Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {}
            }
            if next.is_none() {
                return self.walk_on(w, area, None);
            }
            self.drain.stop_at(page.plus(1), None);
        }
        true
    }

    /// A miss, as the policy sees it: read its answer, with `frame` for the page itself.
    fn answer_miss(&mut self, w: &mut impl World, page: Vpn, slot: Slot, frame: Option<Frame>) {
        let mut batch = core::mem::take(&mut self.buffers.batch);
        batch.clear();
        batch.extend(frame.map(|frame| (slot, frame)));
        let window = self.vmas.find_mut(page).map(|vma| {
            let touch = Touch {
                page,
                slot: Some(slot),
                ahead: false,
                region: &vma.range,
            };
            let policy = vma.policy(self.config.readahead);
            policy.on_miss(&mut self.policies, &mut vma.history, &touch)
        });
        if let Some(window) = window {
            w.window(window.count().into());
            self.read_window(w, &window, &mut batch);
        }
        self.submit_reads(w, &mut batch, frame, SLOTS_PER_IO);
        self.buffers.batch = batch;
    }
}
