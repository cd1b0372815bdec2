//! The world of one modelled process, as the core sees it. Each call asserts conditions whose violation a real kernel
//! and device would not report: a frame that is moved during its I/O, a slot that is freed during its write, memory
//! that is not there.

use foreswap_core::units::{Frame, Nanos, Slot, Vpn};
use foreswap_core::world::{
    Digest, Disk, Done, IoId, Limit, Mmu, Notice, Stop, Store, SwapMap, World,
};

use super::space::{Flight, Mapping, Page, Space, Use};
use super::system::{GARBAGE, System};

/// One process' view of the world, for one call of the core.
pub struct View<'a> {
    pub sys: &'a mut System,
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

    /// Do one page after another until one is refused.
    fn each(&mut self, n: u32, mut one: impl FnMut(&mut Self, u32) -> Result<(), Stop>) -> Done {
        assert!(n > 0);
        if self.space.changing > 0 || self.sys.rng.chance(self.sys.chaos.again) {
            return Done::stopped(0, Stop::Again);
        }
        for i in 0..n {
            if i > 0 && self.sys.rng.chance(self.sys.chaos.partial) {
                return Done::stopped(i, Stop::Again);
            }
            if let Err(stop) = one(self, i) {
                return Done::stopped(i, stop);
            }
        }
        Done::all(n)
    }

    /// May something be mapped at this page?
    fn absent(&mut self, page: Vpn) -> Result<(), Stop> {
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
            p.present = Some(content);
        }
        self.space.woken.push(page.0);
    }

    fn no_memory(&mut self) -> Result<(), Stop> {
        if self.sys.rng.chance(self.sys.chaos.no_memory) {
            return Err(Stop::NoMemory);
        }
        Ok(())
    }
}

impl Mmu for View<'_> {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        self.sys.note(1, page.0, u64::from(frame.0));
        self.each(n, |w, i| {
            let (page, frame) = (page.plus(u64::from(i)), frame.plus(i));
            w.idle(frame);
            assert!(w.frame(frame).is_none(), "{frame:?} is not empty");
            let Some(p) = w.page(page) else {
                return Err(Stop::Gone);
            };
            match *p {
                p if p.mapping != Mapping::Managed => return Err(Stop::Gone),
                p if p.present.is_none() => return Err(Stop::Absent),
                p if p.locked => return Err(Stop::Fixed),
                p if p.pinned || p.shared => return Err(Stop::Busy),
                _ => {}
            }
            let content = p.present.take();
            *w.frame(frame) = content;
            Ok(())
        })
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        self.sys.note(2, page.0, u64::from(frame.0));
        if self.space.holds(frame, n) {
            return Done::stopped(0, Stop::Busy);
        }
        self.each(n, |w, i| {
            let (page, frame) = (page.plus(u64::from(i)), frame.plus(i));
            w.idle(frame);
            w.full(frame);
            w.absent(page)?;
            if w.page(page).is_some_and(|p| p.locked) {
                return Err(Stop::Fixed);
            }
            if w.sys.rng.chance(w.sys.chaos.busy) {
                return Err(Stop::Busy);
            }
            let content = w.frame(frame).take().unwrap_or(GARBAGE);
            w.map(page, content);
            Ok(())
        })
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        self.sys.note(3, page.0, u64::from(frame.0));
        self.each(1, |w, _| {
            assert_ne!(w.space.frame_use[frame.0 as usize], Use::Reading);
            w.full(frame);
            w.absent(page)?;
            w.no_memory()?;
            let content = w.frame(frame).unwrap_or(GARBAGE);
            w.map(page, content);
            Ok(())
        })
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        self.sys.note(4, page.0, u64::from(n));
        self.each(n, |w, i| {
            let page = page.plus(u64::from(i));
            w.absent(page)?;
            w.no_memory()?;
            w.map(page, 0);
            Ok(())
        })
    }

    fn poison(&mut self, page: Vpn) -> Done {
        self.sys.note(5, page.0, 0);
        self.each(1, |w, _| {
            w.absent(page)?;
            if let Some(p) = w.page(page) {
                p.poisoned = true;
            }
            w.space.woken.push(page.0);
            Ok(())
        })
    }

    fn wake(&mut self, page: Vpn) {
        self.space.woken.push(page.0);
    }

    fn unshare(&mut self, page: Vpn, n: u32) {
        if self.space.unshare.len() < 64 {
            self.space.unshare.push((page, n));
        }
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

    fn fill_huge(&mut self, first: Frame) -> bool {
        self.sys.note(9, u64::from(first.0), 0);
        if self.no_memory().is_err() {
            return false;
        }
        for i in 0..512 {
            self.idle(first.plus(i));
            let content = self.frame(first.plus(i));
            assert!(content.is_none(), "{first:?} has memory already");
            *content = Some(0);
        }
        true
    }

    fn is_huge(&mut self, _: Frame) -> bool {
        !self.sys.rng.chance(self.sys.chaos.partial)
    }

    fn is_mapped_huge(&mut self, _: Vpn) -> bool {
        !self.sys.rng.chance(self.sys.chaos.partial)
    }

    fn rebuild(&mut self, first: Frame) {
        for i in 0..512 {
            assert!(self.frame(first.plus(i)).is_none(), "{first:?} has memory");
        }
    }

    fn collapse(&mut self, unit: Vpn) -> bool {
        let there = |w: &mut Self, i| w.page(unit.plus(i)).is_some_and(|p| p.present.is_some());
        let done = (0..512).all(|i| there(self, i)) && !self.sys.rng.chance(self.sys.chaos.partial);
        self.space.collapsed += u32::from(done);
        done
    }

    fn clear(&mut self, frame: Frame) {
        self.idle(frame);
        self.full(frame);
        *self.frame(frame) = Some(0);
    }

    fn fill_with(&mut self, frame: Frame, word: u64) {
        self.idle(frame);
        self.full(frame);
        *self.frame(frame) = Some(word);
    }

    fn digest_of(&mut self, frame: Frame) -> Digest {
        self.full(frame);
        assert_ne!(self.space.frame_use[frame.0 as usize], Use::Reading);
        self.sys
            .digest(self.space.frames[frame.0 as usize].unwrap_or(0))
    }

    fn digest_read(&mut self, frame: Frame) -> Digest {
        // An engine computed the digest when the read ended. It must still be the frame's.
        let brought = self.space.brought.iter().find(|(read, _)| *read == frame);
        let (_, content) = brought.unwrap_or_else(|| panic!("{frame:?} was not just read"));
        assert_eq!(
            *content, self.space.frames[frame.0 as usize],
            "{frame:?} has changed"
        );
        self.digest_of(frame)
    }
}

impl View<'_> {
    fn begin(&mut self, io: IoId, slot: Slot, frames: &[Frame], write: bool) -> bool {
        self.sys
            .note(8, slot.pack(), frames.len() as u64 * 2 + u64::from(write));
        let most = foreswap_core::units::LEAF_PAGES;
        assert!(!frames.is_empty() && frames.len() <= most);
        let full = self.disk().left >= self.space.depth as u64;
        if full || self.sys.rng.chance(self.sys.chaos.queue_full) {
            return false;
        }
        assert!(
            self.space
                .flights
                .iter()
                .all(|flight| flight.digest || flight.io != io),
            "{io:?} is in flight"
        );
        let mut data = Vec::new();
        for (i, &frame) in (0..).zip(frames) {
            let slot = slot.plus(i);
            self.idle(frame);
            self.full(frame);
            assert!(*self.space.refs_mut(slot) > 0, "I/O on {slot:?}, not ours");
            let what = &mut self.space.frame_use[frame.0 as usize];
            if write {
                *what = Use::Writing;
                let area = &mut self.sys.areas[usize::from(slot.area)];
                area.writing[slot.index as usize] += 1;
                assert_eq!(area.counts[slot.index as usize], 1, "{slot:?} is shared");
                data.push(self.space.frames[frame.0 as usize].unwrap_or(GARBAGE));
            } else {
                *what = Use::Reading;
                *self.frame(frame) = Some(GARBAGE);
            }
        }
        self.space.begun += 1;
        self.space.added += u64::from(self.space.had > 0);
        self.space.flights.push(Flight {
            digest: false,
            io,
            write,
            as_it_is: false,
            slot,
            frames: frames.to_vec(),
            data,
        });
        true
    }
}

impl Store for View<'_> {
    fn read(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, false)
    }

    fn write(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        self.begin(io, slot, frames, true)
    }

    fn write_as_it_is(&mut self, io: IoId, slot: Slot, frames: &[Frame]) -> bool {
        let begun = self.begin(io, slot, frames, true);
        if begun && let Some(flight) = self.space.flights.last_mut() {
            flight.as_it_is = true;
        }
        begun
    }

    fn begin_digest(&mut self, first: Frame) -> bool {
        let taken = self.space.flights.iter().filter(|flight| flight.digest);
        if taken.count() >= self.sys.helpers {
            return false;
        }
        let frames: Vec<_> = (0..512).map(|n| first.plus(n)).collect();
        for &frame in &frames {
            self.idle(frame);
            self.full(frame);
            self.space.frame_use[frame.0 as usize] = Use::Writing;
        }
        let content = |frame: &Frame| self.space.frames[frame.0 as usize].unwrap_or(GARBAGE);
        self.space.flights.push(Flight {
            digest: true,
            io: IoId(u32::MAX),
            write: false,
            as_it_is: false,
            slot: Slot { area: 0, index: 0 },
            data: frames.iter().map(content).collect(),
            frames,
        });
        true
    }
}

impl SwapMap for View<'_> {
    fn nth(&self, n: u8) -> Option<u8> {
        self.sys.order.get(usize::from(n)).copied()
    }

    fn slots(&self, area: u8) -> u32 {
        self.sys.areas[usize::from(area)].counts.len() as u32
    }

    fn used(&self, area: u8) -> u64 {
        self.sys.areas[usize::from(area)].used
    }

    fn compresses(&self, area: u8) -> bool {
        self.sys.compresses(area)
    }

    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        let pid = self.space.pid;
        self.sys.claim(area, pid)
    }

    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        let pid = self.space.pid;
        self.sys.claim_empty(area, pid)
    }

    fn release_cluster(&mut self, area: u8, cluster: u32) {
        let claim = &mut self.sys.areas[usize::from(area)].claims[cluster as usize];
        assert_eq!(claim.take(), Some(self.space.pid));
    }

    fn count(&self, slot: Slot) -> u32 {
        self.sys.count(slot).into()
    }

    fn get(&mut self, slot: Slot) {
        assert_eq!(self.sys.count(slot), 0, "{slot:?} is in use");
        assert_ne!(self.sys.draining, Some(slot.area), "{slot:?} is to be free");
        let claims = &self.sys.areas[usize::from(slot.area)].claims;
        assert_eq!(claims[slot.cluster() as usize], Some(self.space.pid));
        self.sys.get(slot);
        *self.space.refs_mut(slot) += 1;
    }

    fn put(&mut self, slot: Slot) {
        let area = &self.sys.areas[usize::from(slot.area)];
        assert!(
            area.writing[slot.index as usize] == 0 || area.counts[slot.index as usize] > 1,
            "{slot:?} is freed while it is written"
        );
        let refs = self.space.refs_mut(slot);
        assert!(*refs > 0, "{slot:?} is not ours to put");
        *refs -= 1;
        let bad = self.space.bad_mut(slot);
        if *bad > 0 {
            assert_eq!(self.sys.draining, Some(slot.area), "{slot:?} is bad");
            *bad -= 1;
        }
        self.sys.put(slot);
    }

    fn share(&mut self, slot: Slot) {
        assert!(self.sys.count(slot) > 0);
        self.sys.get(slot);
        self.space.shares.push(slot);
    }

    fn digest(&self, slot: Slot) -> u64 {
        assert!(self.sys.count(slot) > 0, "digest of a free slot");
        self.sys.areas[usize::from(slot.area)].digests[slot.index as usize]
    }

    fn set_digest(&mut self, slot: Slot, digest: u64) {
        self.sys.areas[usize::from(slot.area)].digests[slot.index as usize] = digest;
    }
}

impl Limit for View<'_> {
    fn limit(&self) -> u64 {
        self.sys.limit
    }

    fn available(&self) -> u64 {
        self.sys.limit.saturating_sub(self.sys.charged)
    }

    fn try_charge(&mut self, n: u64) -> bool {
        if self.available() < n {
            for (pid, pressure) in self.sys.pressure.iter_mut().enumerate() {
                if pid != self.space.pid {
                    *pressure = (*pressure).max(n);
                }
            }
            return false;
        }
        self.sys.charged += n;
        self.space.charged += n;
        true
    }

    fn charge_existing(&mut self, n: u64) {
        self.sys.charged += n;
        self.space.charged += n;
        if self.space.existed || self.space.lenient {
            self.sys.excuse();
        }
    }

    fn uncharge(&mut self, n: u64) {
        assert!(
            self.space.charged >= n,
            "more is given back than was charged"
        );
        self.sys.charged -= n;
        self.space.charged -= n;
        let pressure = &mut self.sys.pressure[self.space.pid];
        *pressure = pressure.saturating_sub(n);
    }

    fn excess(&self) -> u64 {
        let over = self.sys.charged.saturating_sub(self.sys.limit);
        over.max(self.sys.pressure[self.space.pid])
            .min(self.space.charged)
    }
}

impl World for View<'_> {
    fn now(&self) -> Nanos {
        self.sys.now
    }

    fn notice(&mut self, notice: Notice) {
        match notice {
            Notice::ReadFailed { slot, .. } | Notice::Corrupt { slot, .. } => {
                *self.space.bad_mut(slot) += 1;
            }
            Notice::LimitPassed => self.sys.excuse(),
            _ => {}
        }
        self.sys.notices.push((self.space.pid, notice));
        self.sys.told.push(notice);
    }

    fn window(&mut self, pages: u64) {
        *self.sys.windows.entry(pages).or_default() += 1;
    }

    fn returns(&mut self, page: Vpn) {
        self.space.returned.push(page);
    }

    fn others_miss(&self) -> bool {
        self.sys.others_miss
    }

    fn has_ended(&mut self) -> bool {
        let mut ios = self.space.flights.iter();
        self.sys.ends_show && ios.any(|flight| !flight.digest)
    }

    fn disk(&self) -> Disk {
        let ios = self.space.flights.iter().filter(|flight| !flight.digest);
        Disk {
            begun: self.space.begun,
            left: ios.count() as u64,
        }
    }
}
