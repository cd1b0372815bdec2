//! The world of one process for the core. Each call asserts conditions that a real kernel and device would violate
//! silently: a frame that is moved while I/O uses it, a slot that is freed while it is written, memory that is absent.

mod limit;
mod swap_map;

use foreswap_core::units::{Frame, LEAF_PAGES, Nanos, Slot, Vpn};
use foreswap_core::world::{
    Clock, Digest, Disk, Done, HugeMmu, IoId, Mmu, Notice, Stop, Store, World,
};

use crate::space::{Mapping, Page, Space, Use};
use crate::system::{GARBAGE, System};

/// The longest time of an I/O that does not stall.
pub const LATENCY: Nanos = 200_000;
/// The longest time of a stalled I/O.
const STALL: Nanos = 5_000_000_000;
/// Time for which others on the disk heed the random faults of a process, as in the engine.
const SHARED: Nanos = 50_000_000;

/// One process' world, for one call of the core.
pub struct View<'a> {
    /// The shared state.
    pub sys: &'a mut System,
    /// Its own state.
    pub space: &'a mut Space,
}

impl View<'_> {
    fn page(&mut self, page: Vpn) -> Option<&mut Page> {
        let at = page.0.checked_sub(self.space.base)?;
        self.space.pages.get_mut(at as usize)
    }

    fn frame(&mut self, frame: Frame) -> &mut Option<u64> {
        &mut self.space.frames[frame.0 as usize]
    }

    fn idle(&self, frame: Frame) {
        let what = self.space.frame_use[frame.0 as usize];
        assert_eq!(what, Use::Idle, "{frame:?} is used by I/O");
    }

    fn full(&self, frame: Frame) {
        assert!(
            self.space.frames[frame.0 as usize].is_some(),
            "{frame:?} has no memory"
        );
    }

    /// A failure this many times out of 1000.
    fn unlucky(&mut self, per_mille: u32) -> bool {
        let unlucky = self.sys.chance.one_in(per_mille);
        self.space.unlucky |= unlucky;
        unlucky
    }

    /// Process one page after another until one is refused, or is busy by chance.
    fn each(
        &mut self,
        n: u32,
        busy: u32,
        mut one: impl FnMut(&mut Self, u32) -> Result<(), Stop>,
    ) -> Done {
        assert!(n > 0, "the MMU is called for no page");
        if self.space.changing > 0 || self.unlucky(self.sys.chaos.again) {
            return Done::stopped(0, Stop::Again);
        }
        let trouble = self.sys.trouble(n as usize);
        for i in 0..n {
            let due = trouble.is_none_or(|at| at == i as usize);
            if due && i > 0 && self.unlucky(self.sys.chaos.partial) {
                return Done::stopped(i, Stop::Again);
            }
            if due && self.unlucky(busy) {
                return Done::stopped(i, Stop::Busy);
            }
            if let Err(stop) = one(self, i) {
                return Done::stopped(i, stop);
            }
        }
        Done::all(n)
    }

    /// Whether a page may be mapped here.
    fn absent(&mut self, page: Vpn) -> Result<(), Stop> {
        if self.page(page).is_some_and(|p| p.guard) {
            return Err(Stop::Exists);
        }
        self.room(page)
    }

    /// Whether data may be copied here. The kernel replaces guards.
    fn room(&mut self, page: Vpn) -> Result<(), Stop> {
        let found = self.page(page).map(|p| *p).unwrap_or_default();
        if found.mapping != Mapping::Managed {
            return Err(Stop::Gone);
        }
        if found.present.is_some() || found.poisoned {
            self.space.existed = true;
            return Err(Stop::Exists);
        }
        Ok(())
    }

    fn map(&mut self, page: Vpn, content: u64) {
        if let Some(p) = self.page(page) {
            assert!(!p.guard, "a guard is replaced by {page:?}");
            p.present = Some(content);
        }
        self.space.woken.push(page.0);
    }

    fn no_memory(&mut self) -> Result<(), Stop> {
        if self.unlucky(self.sys.chaos.no_memory) {
            return Err(Stop::NoMemory);
        }
        Ok(())
    }
}

impl Mmu for View<'_> {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        self.sys.note(1, page.0, u64::from(frame.0));
        self.each(n, 0, |w, i| {
            let (page, frame) = (page.plus(u64::from(i)), frame.plus(i));
            w.idle(frame);
            assert!(w.frame(frame).is_none(), "{frame:?} is not empty");
            let protected = w.space.protected;
            let Some(p) = w.page(page) else {
                return Err(Stop::Gone);
            };
            match *p {
                p if p.mapping != Mapping::Managed => return Err(Stop::Gone),
                p if p.guard => return Err(Stop::Fixed),
                p if p.present.is_none() => return Err(Stop::Absent),
                _ => {}
            }
            if let Some(stop) = p.stays(protected) {
                w.space.refused += 1;
                return Err(stop);
            }
            let content = p.present.take();
            (p.id, p.wp) = (0, false);
            *w.frame(frame) = content;
            Ok(())
        })
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        self.sys.note(2, page.0, u64::from(frame.0));
        if !self.space.lingering.is_empty() && self.space.holds(frame, n) {
            return Done::stopped(0, Stop::Busy);
        }
        self.each(n, self.sys.chaos.busy, |w, i| {
            let (page, frame) = (page.plus(u64::from(i)), frame.plus(i));
            w.idle(frame);
            w.full(frame);
            w.absent(page)?;
            if w.space.protected || w.page(page).is_some_and(|p| p.locked) {
                return Err(Stop::Fixed);
            }
            let content = w.frame(frame).take().unwrap_or(GARBAGE);
            w.map(page, content);
            Ok(())
        })
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        self.sys.note(3, page.0, u64::from(frame.0));
        self.each(1, 0, |w, _| {
            let what = w.space.frame_use[frame.0 as usize];
            assert_ne!(what, Use::Reading, "{frame:?} is copied while it is read");
            w.full(frame);
            w.room(page)?;
            w.no_memory()?;
            let content = w.frame(frame).unwrap_or(GARBAGE);
            w.map(page, content);
            Ok(())
        })
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        self.sys.note(4, page.0, u64::from(n));
        self.each(n, 0, |w, i| {
            let page = page.plus(u64::from(i));
            w.room(page)?;
            w.no_memory()?;
            w.map(page, 0);
            Ok(())
        })
    }

    fn poison(&mut self, page: Vpn) -> Done {
        self.sys.note(5, page.0, 0);
        self.each(1, 0, |w, _| {
            w.absent(page)?;
            if let Some(p) = w.page(page) {
                p.poisoned = true;
            }
            w.space.woken.push(page.0);
            Ok(())
        })
    }

    fn wake(&mut self, page: Vpn) {
        self.sys.note(9, page.0, 0);
        self.space.woken.push(page.0);
    }

    fn unshare(&mut self, page: Vpn, n: u32) {
        let most = if self.sys.families { 1 } else { 64 };
        if self.space.unshare.len() < most {
            self.space.unshare.push((page, n));
        }
    }

    fn is_unsharing(&self) -> bool {
        self.sys.families && !self.space.unshare.is_empty()
    }

    fn fill(&mut self, frame: Frame, n: u32) -> Done {
        self.sys.note(6, u64::from(frame.0), u64::from(n));
        for i in 0..n {
            let frame = frame.plus(i);
            self.idle(frame);
            if self.no_memory().is_err() {
                return Done::stopped(i, Stop::NoMemory);
            }
            let content = self.frame(frame);
            assert!(content.is_none(), "{frame:?} has memory already");
            *content = Some(GARBAGE);
        }
        Done::all(n)
    }

    fn release(&mut self, frame: Frame, n: u32) {
        self.sys.note(7, u64::from(frame.0), u64::from(n));
        for i in 0..n {
            self.idle(frame.plus(i));
            self.full(frame.plus(i));
            *self.frame(frame.plus(i)) = None;
        }
    }

    fn clear(&mut self, frame: Frame, n: u32) {
        self.fill_with(frame, n, 0);
    }

    fn fill_with(&mut self, frame: Frame, n: u32, word: u64) {
        for frame in (0..n).map(|i| frame.plus(i)) {
            self.idle(frame);
            self.full(frame);
            *self.frame(frame) = Some(word);
        }
    }

    fn digest_of(&mut self, frame: Frame) -> Digest {
        self.full(frame);
        let what = self.space.frame_use[frame.0 as usize];
        assert_ne!(
            what,
            Use::Reading,
            "{frame:?} is looked at while it is read"
        );
        let content = self.space.frames[frame.0 as usize].unwrap_or(0);
        System::digest(content, self.sys.ordinary)
    }

    fn digest_read(&mut self, frame: Frame) -> Digest {
        self.space.check_arrived(frame);
        self.digest_of(frame)
    }
}

impl HugeMmu for View<'_> {
    fn fill_huge(&mut self, first: Frame) -> bool {
        self.sys.note(9, u64::from(first.0), 0);
        if self.no_memory().is_err() {
            return false;
        }
        for i in 0..LEAF_PAGES as u32 {
            let frame = first.plus(i);
            self.idle(frame);
            let content = self.frame(frame);
            assert!(content.is_none(), "{frame:?} has memory already");
            *content = Some(0);
        }
        true
    }

    fn is_huge(&mut self, _: Frame) -> bool {
        !self.sys.chance.one_in(self.sys.chaos.partial)
    }

    fn is_mapped_huge(&mut self, _: Vpn) -> bool {
        !self.sys.chance.one_in(self.sys.chaos.partial)
    }

    fn rebuild(&mut self, first: Frame) {
        for i in 0..LEAF_PAGES as u32 {
            let frame = first.plus(i);
            assert!(self.frame(frame).is_none(), "{frame:?} has memory");
        }
    }

    fn collapse(&mut self, unit: Vpn) -> bool {
        let there = |w: &mut Self, i| w.page(unit.plus(i)).is_some_and(|p| p.present.is_some());
        let all = (0..LEAF_PAGES as u64).all(|i| there(self, i));
        let done = all && !self.sys.chance.one_in(self.sys.chaos.partial);
        if done && self.space.reads > 0 {
            let protected = self.space.protected;
            let stays = |i| {
                self.page(unit.plus(i))
                    .is_some_and(|p| p.stays(protected).is_some())
            };
            let stays = (0..LEAF_PAGES as u64).any(stays);
            self.space.in_vain += u32::from(stays);
        }
        self.space.collapsed += u32::from(done);
        done
    }
}

impl View<'_> {
    fn begin(
        &mut self,
        io: IoId,
        slot: Slot,
        frames: &[Frame],
        write: bool,
        as_it_is: bool,
    ) -> bool {
        self.sys
            .note(8, slot.pack(), frames.len() as u64 * 2 + u64::from(write));
        let most = LEAF_PAGES;
        assert!(
            !frames.is_empty() && frames.len() <= most,
            "an I/O of {} pages",
            frames.len()
        );
        let ios = self
            .space
            .flights
            .iter()
            .filter(|flight| flight.slot.is_some());
        if ios.count() >= self.space.depth || self.unlucky(self.sys.chaos.queue_full) {
            return false;
        }
        let in_flight = self
            .space
            .flights
            .iter()
            .any(|flight| flight.io == io.0 && flight.slot.is_some());
        assert!(!in_flight, "{io:?} is in flight already");
        let mut flight = self.space.new_flight();
        for (i, &frame) in (0..).zip(frames) {
            let slot = slot.plus(i);
            self.idle(frame);
            self.full(frame);
            if slot.is_file() {
                assert!(!write, "{slot:?} is written, which is of a file");
                self.space.frame_use[frame.0 as usize] = Use::Reading;
                *self.frame(frame) = Some(GARBAGE);
                continue;
            }
            assert!(*self.space.refs_mut(slot) > 0, "I/O on {slot:?}, not ours");
            let what = &mut self.space.frame_use[frame.0 as usize];
            let area = &mut self.sys.areas[usize::from(slot.area)];
            let at = slot.index as usize;
            if write {
                *what = Use::Writing;
                assert_eq!(area.writing[at], 0, "{slot:?} is written twice at a time");
                area.writing[at] += 1;
                assert_eq!(area.counts[at], 1, "{slot:?} is written and shared");
                let content = self.space.frames[frame.0 as usize].unwrap_or(GARBAGE);
                flight.data.push(content);
            } else {
                *what = Use::Reading;
                assert_eq!(area.writing[at], 0, "{slot:?} is read while it is written");
                *self.frame(frame) = Some(GARBAGE);
            }
        }
        flight.io = io.0;
        flight.write = write;
        flight.as_it_is = as_it_is;
        flight.slot = Some(slot);
        flight.frames.extend_from_slice(frames);
        flight.stalls = self.sys.chance.one_in(self.sys.chaos.stall);
        self.space.stalls += u32::from(flight.stalls);
        let most = if flight.stalls { STALL } else { LATENCY };
        flight.due = self.sys.now + self.sys.chance.below(most);
        if self.space.at_once && !flight.stalls {
            // I/O begun while the first is in flight ends with it.
            let mut others = self.space.flights.iter();
            let first = others.find(|other| other.slot.is_some() && !other.stalls);
            flight.due = first.map_or(flight.due + LATENCY, |first| first.due);
        }
        self.space.flights.push(flight);
        self.space.begun += 1;
        self.space.added += u64::from(self.space.had > 0);
        true
    }
}

impl Store for View<'_> {
    fn begin_digest(&mut self, first: Frame) -> bool {
        let taken = self
            .space
            .flights
            .iter()
            .filter(|flight| flight.slot.is_none());
        if taken.count() >= self.space.helpers {
            return false;
        }
        let mut flight = self.space.new_flight();
        for frame in (0..LEAF_PAGES as u32).map(|n| first.plus(n)) {
            self.idle(frame);
            self.full(frame);
            self.space.frame_use[frame.0 as usize] = Use::Writing;
            let content = self.space.frames[frame.0 as usize];
            flight.data.push(content.unwrap_or(GARBAGE));
            flight.frames.push(frame);
        }
        flight.due = self.sys.now + self.sys.chance.below(LATENCY);
        self.space.flights.push(flight);
        true
    }

    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, false, false)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, true, false)
    }

    fn write_uncompressed(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, true, true)
    }
}

impl World for View<'_> {
    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::ReadFailed { slot, .. } | Notice::Corrupt { slot, .. } => {
                assert!(
                    self.sys.spoiled.contains(&slot),
                    "{notice:?}, though the device did nothing wrong"
                );
                if !slot.is_file() {
                    *self.space.bad_mut(slot) += 1;
                }
            }
            Notice::OutOfMemory { page } => {
                let trouble = self.sys.write_failed || self.sys.chaos.queue_full > 0;
                assert!(
                    trouble || !self.sys.has_room(self.space.pid),
                    "{page:?} is given up for want of slots, and some are free"
                );
            }
            Notice::LimitPassed => self.sys.excuse(),
            _ => {}
        }
        self.sys.notices.push((self.space.pid, notice));
    }

    fn served(&mut self, took: Nanos) {
        assert!(took <= self.sys.now, "a fault took {took} ns");
    }

    fn window(&mut self, pages: u64) {
        *self.sys.windows.entry(pages).or_default() += 1;
    }

    fn share_disk(&mut self, random_faults: bool) -> bool {
        if random_faults {
            self.sys.random_faults = Some((self.space.pid, self.sys.now));
        }
        let other = self.sys.random_faults;
        let other = other.filter(|&(pid, at)| pid != self.space.pid && self.sys.now - at < SHARED);
        other.is_some() || self.sys.others_fault_at_random
    }

    fn has_ended(&mut self) -> bool {
        let mut ios = self.space.flights.iter();
        self.sys.ends_show && ios.any(|flight| flight.slot.is_some())
    }

    fn returns(&mut self, page: Vpn) {
        self.space.returned.push(page);
    }

    fn disk(&self) -> Disk {
        let ios = self
            .space
            .flights
            .iter()
            .filter(|flight| flight.slot.is_some());
        Disk {
            begun: self.space.begun,
            left: ios.count() as u64,
        }
    }
}

impl Clock for View<'_> {
    fn now(&self) -> Nanos {
        self.sys.now
    }
}
