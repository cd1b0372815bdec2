//! swapoff: everything on an area is moved into memory or to another area, while the program runs.
//!
//! A pass walks the page table in order of address. Pages that are on the area only are read in large I/Os, several at
//! a time. Pages that were read are mapped by few calls while the limit has room; otherwise they become dirty, and are
//! written to another area. Pages that readahead read are looked up by the same function as in faults, and counted as
//! hits there. [`crate::swap::drain`] decides when a pass goes on, pauses, and begins again.
//!
//! A fault never waits for this: a step does nothing while a fault waits for memory, leaves the reserve of faults
//! alone, and keeps few reads in flight while the program is faulting. If memory and the other areas fill up meanwhile,
//! swapoff is given up ([`Mm::starved`]), not a page.

use alloc::vec::Vec;

use super::Mm;
use super::huge_drain::UnitAction;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::reclaim::policy::Came;
use crate::space::page_table::{Entry, Resident};
use crate::swap::drain::{SLOTS_PER_SWAPOFF_IO, Swapoff};
use crate::swap::write_back::WriteBack;
use crate::units::{Frame, Slot, Vpn};
use crate::world::{IoId, Stop, World};

/// Slots that must stay free elsewhere, as other processes take some before the next look; and the part of all slots
/// that they are at most.
const MARGIN: u64 = 1024;
const MARGIN_PART: u64 = 64;

impl Mm {
    /// Begin to empty `area`: it gets no more pages.
    pub fn drain(&mut self, w: &mut impl World, area: u8) {
        self.slots.close(w, area);
        self.drain.begin(area);
    }

    /// Pages may go to `area` (again).
    pub fn use_area(&mut self, area: u8) {
        self.slots.open(area);
        self.drain.end(area);
    }

    /// `area` is gone. No slot of it is in use, and no I/O on it is in flight.
    pub fn forget_area(&mut self, area: u8) {
        debug_assert!(!self.has_io(area));
        self.use_area(area);
        self.slots.forget(area);
        self.area_reads.forget(area);
        if let Some(back) = self.write_back.get_mut(usize::from(area)) {
            *back = WriteBack::default();
        }
    }

    /// Some I/O on `area` is in flight.
    pub fn has_io(&self, area: u8) -> bool {
        self.io.any_on(area)
    }

    /// An area is being emptied.
    pub fn is_draining(&self) -> bool {
        self.drain.area().is_some()
    }

    /// An area is being emptied and had slots in use at the last look.
    pub fn has_to_drain(&self) -> bool {
        self.is_draining() && self.drain.finds()
    }

    pub(super) fn drains(&self, area: u8) -> bool {
        self.drain.area() == Some(area)
    }

    /// The area whose emptying keeps a fault from making progress: memory and the other areas are full.
    pub fn starved(&self) -> Option<u8> {
        self.drain.area().filter(|_| self.drain.is_starved())
    }

    /// Work that no fault waits for; returns whether there is more to do at once.
    pub(super) fn drain_step(&mut self, w: &mut impl World) -> bool {
        let Some(area) = self.drain.area() else {
            return false;
        };
        if self.held || self.waiters.are_stalled() || !self.drain.is_due(w.now()) {
            return false;
        }
        let mut met = core::mem::take(&mut self.buffers.met);
        met.clear();
        let more = match self.config.swapoff {
            Swapoff::Stream => self.stream(w, area, &mut met),
            Swapoff::Readahead => self.page_by_page(w, area, false, &mut met),
            Swapoff::LegacyStats => self.page_by_page(w, area, true, &mut met),
        };
        self.buffers.met = met;
        more
    }

    /// The walk continues at `next`, or with another pass after a pause.
    pub(super) fn walk_on(&mut self, w: &mut impl World, area: u8, next: Option<Vpn>) -> bool {
        if let Some(next) = next {
            self.drain.stop_at(next, None);
        } else if self.drain.end_pass(w.now()) {
            self.slots.put_bad(w, area);
        }
        next.is_some()
    }

    /// A mapped page releases its slot.
    pub(super) fn give_slot_back(&mut self, w: &mut impl World, page: Vpn, resident: Resident) {
        self.slots.put(w, resident.slot);
        let slot = None;
        self.table
            .set(page, Entry::Resident(Resident { slot, ..resident }));
    }

    /// Pages that may be taken without the memory that faults need.
    pub(super) fn spare(&self, w: &impl World) -> u32 {
        let spare = self
            .headroom(w)
            .saturating_sub(self.reclaim.marks().low.into());
        spare.min(u64::from(u32::MAX)) as u32
    }

    /// Take up to `max` contiguous frames with memory: fresh memory while the limit allows, as the pages will stay.
    pub(super) fn frames_to_read(&mut self, w: &mut impl World, max: u32) -> Option<(Frame, u32)> {
        let max = max.min(self.spare(w));
        if max == 0 {
            return None;
        }
        if w.available() >= u64::from(self.reclaim.marks().low + max)
            && self.frames.empty() > self.reclaim.marks().empty
            && let Some(run) = self.back_empty(w, max)
        {
            return Some(run);
        }
        if self.frames.free() == 0 {
            self.drop_clean(max);
        }
        if self.frames.free() == 0 {
            // All available memory is in clusters.
            self.break_cluster(w, max);
        }
        self.frames.take_free(max)
    }

    fn stream(&mut self, w: &mut impl World, area: u8, met: &mut Vec<(Vpn, Entry)>) -> bool {
        let now = w.now();
        let faults = match self.uses(Heuristic::SwapoffDepth) {
            true => self.stats.faults_major,
            false => 0,
        };
        let Some(max) = self.drain.look(faults, now) else {
            return false;
        };
        let next = self.table.on_area(area, self.drain.cursor(), max, met);
        let mut batch = core::mem::take(&mut self.buffers.batch);
        let mut come = core::mem::take(&mut self.buffers.maps);
        batch.clear();
        come.clear();
        let mut later = None;
        for &(page, entry) in met.iter() {
            match entry {
                Entry::Resident(resident) => self.give_slot_back(w, page, resident),
                Entry::Cached(frame) => {
                    let desc = *self.frames.get(frame);
                    let here = desc.slot.is_some_and(|slot| slot.area == area);
                    // The unit of an earlier page may have included it.
                    if !here || self.table.get(page) != entry {
                        continue;
                    }
                    let in_flight = matches!(desc.state, State::Reading | State::Writing);
                    let unit = self.frames.unit_of(frame).is_some();
                    let placed = match unit && in_flight {
                        true => UnitAction::Issued,
                        false => self.place_unit(w, frame),
                    };
                    if placed == UnitAction::Retry {
                        later = Some(page);
                        break;
                    }
                    if placed == UnitAction::Issued {
                        self.drain.on_found();
                        continue;
                    }
                    // Some pages of a unit that could not be read whole are in memory.
                    if self.table.get(page) != entry {
                        self.drain.on_found();
                        continue;
                    }
                    self.frames.single_out(frame);
                    if desc.state == State::Dirty {
                        // It was to be written to its old slot.
                        self.slots.put(w, desc.slot);
                        self.frames.forget_slot(frame);
                    }
                    if desc.state == State::Clean && !desc.wanted {
                        if desc.ahead {
                            self.on_hit(w, page.address(), frame);
                        }
                        come.push((page, frame));
                    }
                }
                Entry::Swapped { .. } => {}
                Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {
                    continue;
                }
            }
            self.drain.on_found();
        }
        if let Some(page) = later {
            met.retain(|&(other, _)| other < page);
        }
        // Before the search for frames, which may drop clean pages.
        self.place(w, &come);
        let stopped = match self.drain_unit(w, met, &mut batch) {
            UnitAction::Issued => None,
            UnitAction::Retry => met.first().map(|&(page, _)| page),
            UnitAction::Split => self.begin_drain(w, met, &mut batch),
        };
        let worked = !batch.is_empty() || !come.is_empty();
        self.buffers.maps = come;
        let refused = self.submit_drain(w, &mut batch);
        self.buffers.batch = batch;
        let stopped = [stopped, refused, later].into_iter().flatten().min();
        if let Some(page) = stopped {
            // No memory or no queue entry now, or a page that is held: the end of an I/O makes room.
            self.drain.stop_at(page, (!worked).then_some(now));
            return false;
        }
        self.walk_on(w, area, next)
    }

    /// Take frames for the pages of `met` that are on the area only. Returns the first that got none.
    fn begin_drain(
        &mut self,
        w: &mut impl World,
        met: &[(Vpn, Entry)],
        batch: &mut Vec<(Slot, Frame)>,
    ) -> Option<Vpn> {
        let mut run: Option<(Frame, u32)> = None;
        let mut stopped = None;
        for (at, &(page, entry)) in met.iter().enumerate() {
            let Entry::Swapped { slot, .. } = entry else {
                continue;
            };
            run = run.or_else(|| self.frames_to_read(w, (met.len() - at) as u32));
            let Some((frame, n)) = run else {
                stopped = Some(page);
                break;
            };
            run = (n > 1).then_some((frame.plus(1), n - 1));
            self.begin_read(page, slot, frame, NOTHING);
            batch.push((slot, frame));
        }
        if let Some((frame, n)) = run {
            for i in 0..n {
                self.frames.put_back(frame.plus(i));
            }
        }
        stopped
    }

    /// Start the reads of `batch`: consecutive slots become one read. Returns the first page for which the queue had no
    /// entry.
    fn submit_drain(&mut self, w: &mut impl World, batch: &mut [(Slot, Frame)]) -> Option<Vpn> {
        batch.sort_unstable_by_key(|&(slot, _)| slot);
        let follows = |a: &(Slot, Frame), b: &(Slot, Frame)| a.0.plus(1) == b.0;
        let mut refused: Option<Vpn> = None;
        let runs = batch.chunk_by(follows);
        for run in runs.flat_map(|run| run.chunks(SLOTS_PER_SWAPOFF_IO)) {
            let frames = run.iter().map(|&(_, frame)| frame);
            let io = self.io.begin_read(run[0].0, frames, w.now());
            if self.drain.may_read() && self.io.start_at_once(w, io) {
                self.io.set_drain(io);
                self.drain.begin_read(run.len());
                self.stats.swap_read_ios += 1;
                continue;
            }
            refused = self.un_submit(io, refused);
        }
        refused
    }

    fn un_submit(&mut self, io: IoId, before: Option<Vpn>) -> Option<Vpn> {
        let mut first = before;
        if let Some(ended) = self.io.end(io) {
            for &frame in &ended.frames {
                let page = self.frames.get(frame).page;
                first = first.into_iter().chain(page).min();
                self.un_read(frame);
            }
            self.io.recycle(io, ended.frames);
        }
        first
    }

    /// A read of swapoff has succeeded.
    pub(super) fn on_drained(&mut self, w: &mut impl World, slot: Slot, frames: &[Frame]) {
        if frames
            .first()
            .is_some_and(|&frame| self.frames.unit_of(frame).is_some())
        {
            return self.on_unit_drained(w, slot, frames);
        }
        let mut come = core::mem::take(&mut self.buffers.maps);
        come.clear();
        for (i, &frame) in (0..).zip(frames) {
            let (slot, desc) = (slot.plus(i), *self.frames.get(frame));
            let ours = self.drains(slot.area) && !self.held && !desc.wanted;
            match desc.page {
                Some(page) if ours && w.digest_read(frame).number() == w.digest(slot) => {
                    self.stats.swap_in += 1;
                    come.push((page, frame));
                }
                // A thread waits for it, or it is gone, lost, or no longer on this area.
                _ => self.on_read(w, slot, frame, crate::world::IoResult::Ok),
            }
        }
        if !come.is_sorted() {
            come.sort_unstable();
        }
        self.place(w, &come);
        self.buffers.maps = come;
    }

    /// Pages that are complete in their frames leave the area: into the program by one move per run, or towards another
    /// area. A page that cannot leave now stays a clean page.
    pub(super) fn place(&mut self, w: &mut impl World, come: &[(Vpn, Frame)]) {
        let mut rest = come;
        while let Some(&(page, frame)) = rest.first() {
            let follows =
                |(n, &(p, f)): (u32, &(Vpn, Frame))| p == page.plus(n.into()) && f == frame.plus(n);
            let run = (0..).zip(rest).take_while(|&pair| follows(pair)).count() as u32;
            let fits = self.fits(w, frame, run);
            if fits == 0 {
                for i in 0..run {
                    self.send_elsewhere(w, frame.plus(i));
                }
                rest = &rest[run as usize..];
                continue;
            }
            let done = w.move_in(frame, page, fits);
            for i in 0..done.pages {
                let at = frame.plus(i);
                let slot = self.frames.get(at).slot;
                self.slots.put(w, slot);
                self.frames.set_empty(at);
                self.set_mapped(w, page.plus(i.into()), None, Came::Beside);
            }
            rest = &rest[done.pages as usize..];
            if let (Some(stop), Some(&(page, frame))) = (done.stop, rest.first()) {
                self.not_moved(w, page, frame, stop);
                rest = &rest[1..];
            }
        }
    }

    /// How many pages of a run may be mapped. Pages that were just read have their memory already.
    fn fits(&self, w: &impl World, frame: Frame, run: u32) -> u32 {
        let read = self.frames.get(frame).state == State::Reading;
        let elsewhere = self.slots.room(w) > 0;
        let keep = if elsewhere {
            self.reclaim.marks().high
        } else {
            self.reclaim.marks().low
        };
        let room = self.headroom(w).saturating_sub(keep.into());
        match (read, elsewhere) {
            (true, false) => run,
            (true, true) => run * u32::from(room > 0),
            (false, _) => room.min(run.into()) as u32,
        }
    }

    /// A page that could not be moved into the program's memory.
    fn not_moved(&mut self, w: &mut impl World, page: Vpn, frame: Frame, stop: Stop) {
        let slot = self.frames.get(frame).slot;
        match stop {
            Stop::Exists => {
                // The program mapped a page there: it is newer than our copy.
                w.charge_existing(1);
                self.slots.put(w, slot);
                self.frames.set_free(frame);
                // The kernel may still take it away, as in `deliver`.
                let foreign = Resident {
                    found: true,
                    ..Resident::default()
                };
                self.table.set(page, Entry::Resident(foreign));
                return;
            }
            Stop::Busy | Stop::Fixed if w.try_charge(1) => {
                if w.copy_in(frame, page).stop.is_some() {
                    w.uncharge(1);
                    return self.stay(frame);
                }
            }
            Stop::Busy | Stop::Fixed => return self.send_elsewhere(w, frame),
            _ => return self.stay(frame),
        }
        self.slots.put(w, slot);
        self.frames.set_free(frame);
        self.set_mapped(w, page, None, Came::Beside);
    }

    /// The page stays in its frame; a later pass tries again.
    fn stay(&mut self, frame: Frame) {
        if self.frames.get(frame).state == State::Reading {
            self.frames.set_state(frame, State::Clean);
        }
    }

    fn send_elsewhere(&mut self, w: &mut impl World, frame: Frame) {
        let FrameDesc {
            slot: Some(slot), ..
        } = *self.frames.get(frame)
        else {
            return;
        };
        if !self.has_room_elsewhere(w, 1) {
            return self.stay(frame);
        }
        self.frames.clear_slot(frame, w.digest(slot));
        self.slots.put(w, Some(slot));
    }

    /// Whether `n` pages more may go to other areas now.
    pub(super) fn has_room_elsewhere(&self, w: &impl World, n: u32) -> bool {
        let unwritten = self.frames.unwritten();
        let room = self.slots.room(w) >= u64::from(unwritten + n) + self.margin(w);
        room && unwritten < self.reclaim.marks().writes
    }

    /// Slots elsewhere that are left alone; few if all areas are small.
    fn margin(&self, w: &impl World) -> u64 {
        let slots = (0..).map_while(|n| w.nth(n)).map(|area| w.slots(area));
        MARGIN.min(slots.map(u64::from).sum::<u64>() / MARGIN_PART)
    }
}
