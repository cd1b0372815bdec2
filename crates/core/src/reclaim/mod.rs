//! Which pages are evicted, and when.
//!
//! A clock hand sweeps the page table in order of address. A mapped page has references (more if it returned soon after
//! its eviction). The hand takes one reference per pass, and evicts a page that has none. Pages that a large scan has
//! passed are evicted first (drop-behind): the scan would push out all other pages and itself. An evicted page stays in
//! its frame for a while. A touch there is cheap and serves as the reference bit. The digest tells whether a page is
//! clean, so nothing depends on write protection. Background reclaim keeps a reserve of frames for faults; it runs
//! while I/O is in flight and stops at the high mark.

mod unshare;

use alloc::vec::Vec;

use crate::fault::grace;
use crate::fault::stalled::UNMOVABLE;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::huge::clusters::{List, UNIT};
use crate::huge::{Thp, unit_of};
use crate::mm::Mm;
use crate::space::page_table::{Entry, Resident};
use crate::space::vma::LOCAL;
use crate::units::{Frame, Nanos, Slot, Vpn};
use crate::world::{Stop, World};
pub(crate) use unshare::Unsharing;

/// Leaves that one call of [`Mm::evict`] looks at.
const LEAVES_PER_PASS: usize = 512;
/// Passes that skip a leaf whose pages cannot be moved.
pub(crate) const REST: u8 = 8;
/// Pages evicted at a time while a thread waits for a read.
pub(crate) const BESIDE_READS: u32 = 16;
/// Most pages in one move.
const RUN: u32 = 64;
/// A stream that has passed over this part of the resident pages is evicted behind itself, except for the last part.
const LONG: u64 = 8;
const KEPT: u64 = 16;
/// Pages of such a stream that are searched for resident ones before the clock continues.
const OFFERED: u64 = 4 * UNIT as u64;

/// Units that are kept ready while some are taken, and the largest part of memory for them.
const UNITS: u32 = 6;
const UNITS_PART: u64 = 8;

/// If this many pages are kept for units, reclaim evicts a unit as soon as one is taken: the disk always has writes.
/// With fewer, it rests in between, and a scan finds more of its readahead.
const FLOWING: u32 = 4 * UNIT;

/// When reclaim starts and stops, in pages that a fault could have at once.
#[derive(Clone, Copy, Debug)]
pub struct Watermarks {
    /// Below this, background reclaim wakes up.
    pub low: u32,
    /// Above this, it sleeps.
    pub high: u32,
    /// Pages evicted in one go.
    pub batch: u32,
    /// Pages that may be in writeback.
    pub writes: u32,
    /// Empty frames that are kept as destinations.
    pub empty: u32,
    /// Frames for pages that readahead read and no touch used yet.
    pub ahead: u32,
    /// Kept ready in addition while streams and first touches take whole units.
    pub units: u32,
}

impl Watermarks {
    /// For a process that can count on `memory`, and a number of frames.
    pub fn new(memory: u64, frames: u32) -> Self {
        let high = (memory / 64).clamp(32, 4096).min(u64::from(frames / 4)) as u32;
        let batch = (high / 4).clamp(8, 128);
        Watermarks {
            low: high / 2,
            high,
            batch,
            writes: frames / 2,
            empty: frames / 4,
            ahead: frames / 4,
            units: (memory / UNITS_PART).min(u64::from(UNITS * UNIT)) as u32,
        }
    }
}

impl Mm {
    /// Work that no fault waits for: writes, reclaim, returning memory. Returns whether more work can be done at once.
    pub fn run(&mut self, w: &mut impl World) -> bool {
        self.tidy(w);
        self.keep_singles(w);
        self.schedule_io(w);
        self.submit_writes(w, self.hurry(w));
        if !self.stalled.is_empty() && self.serve_stalled(w) {
            // The thread must find its page before reclaim does.
            return false;
        }
        if self.held {
            return false;
        }
        self.read_on(w);
        let headroom = self.headroom(w);
        let kept = self.units_kept(w);
        let wanted = u64::from(self.marks.high + kept);
        let flows = kept >= FLOWING;
        let short = match flows {
            true => headroom + self.coming(flows) < wanted,
            false => headroom < u64::from(self.marks.low + kept / 2),
        };
        if !self.awake && short && self.table.resident() > 0 {
            self.awake = true;
            self.stats.kswapd_wakeups += 1;
        }
        let mut moved = self.page_out(w);
        let asked = moved > 0;
        let brought = self.bring_needed(w);
        if self.awake || w.excess() > 0 {
            let coming = self.coming(flows);
            let soon = coming > 0 && self.headroom(w) + coming >= wanted && w.excess() <= coming;
            if !soon && !self.is_much_unwritten() {
                // A read that completes meanwhile must not wait for a whole batch.
                let batch = if self.is_awaited() {
                    BESIDE_READS
                } else {
                    self.marks.batch
                };
                moved += self.evict(w, batch);
                self.submit_writes(w, self.hurry(w));
            }
            self.give_back(w);
            if self.headroom(w) >= wanted {
                self.awake = false;
            }
        }
        self.trim(w);
        if !self.stalled.is_empty() {
            self.serve_stalled(w);
        }
        if moved == 0 {
            self.submit_writes(w, !self.gathers_writes(w));
        } else if w.excess() == 0 {
            self.passing_until = 0;
        }
        let drained = self.drain_step(w) || self.write_back_step(w);
        drained || brought || moved > 0 && (asked || self.awake || w.excess() > 0)
    }

    /// Evicted pages whose memory will be free without further work. Most pages whose digest is being computed are
    /// clean. While units flow, pages to be written count half, and at most twice the number that is kept: the disk
    /// always has some of them while others are ready.
    fn coming(&self, flows: bool) -> u64 {
        let looked_at = self.digesting();
        if !flows || self.areas_full {
            return looked_at;
        }
        let written = u64::from(self.frames.unwritten().saturating_sub(self.on_probation()));
        looked_at + written.saturating_sub(looked_at) / 2
    }

    /// Whether pages must be written at once, however few: no pending work would add more, or memory is short.
    fn hurry(&self, w: &impl World) -> bool {
        let at_once = !self.awake || self.headroom(w) < u64::from(self.marks.low / 2);
        at_once && !self.gathers_writes(w)
    }

    /// Pages that a fault could have without waiting.
    pub(crate) fn headroom(&self, w: &impl World) -> u64 {
        let free = self.frames.free() + self.frames.clusters.count(List::Free) * UNIT;
        w.available() + u64::from(free) + u64::from(self.frames.clean())
    }

    /// Enough pages are in writeback: more would not free memory sooner. During random faults, a page that is evicted
    /// too early may be the very next one to be needed.
    pub(crate) fn is_much_unwritten(&self) -> bool {
        let most = match self.faults_at_random() {
            true => (2 * self.marks.high).min(self.marks.writes),
            false => self.marks.writes,
        };
        self.frames.unwritten().saturating_sub(self.on_probation()) >= most
    }

    /// Return memory that other processes need more, or that a lower limit takes.
    fn give_back(&mut self, w: &mut impl World) {
        let excess = w.excess().min(u64::from(u32::MAX)) as u32;
        if excess == 0 {
            return;
        }
        if self.frames.free() < excess {
            self.drop_clean(excess - self.frames.free());
        }
        let left = excess.saturating_sub(self.frames.free());
        self.release_free(w, excess);
        for _ in 0..left.div_ceil(UNIT) {
            self.release_cluster(w);
        }
        self.slots.give_back(w);
    }

    /// Return free frames beyond the reserve to the system.
    fn trim(&mut self, w: &mut impl World) {
        let surplus = self.frames.free().saturating_sub(2 * self.marks.high);
        self.release_free(w, surplus);
        let kept = 2 * self.marks.high.max(UNIT) + self.units_kept(w);
        if self.frames.clusters.count(List::Free) * UNIT > kept {
            self.release_cluster(w);
        }
    }

    pub(crate) fn release_free(&mut self, w: &mut impl World, mut pages: u32) {
        while pages > 0
            && let Some((frame, n)) = self.frames.take_free(pages.min(RUN))
        {
            w.release(frame, n);
            w.uncharge(u64::from(n));
            for i in 0..n {
                self.frames.set_empty(frame.plus(i));
            }
            pages -= n;
        }
    }

    /// Drop up to `max` clean pages that no thread came back for; their frames become free.
    pub(crate) fn drop_clean(&mut self, max: u32) -> u32 {
        let mut dropped = self.drop_singles(max);
        while dropped < max
            && let Some(id) = self.frames.clusters.oldest(List::Clean)
            && self.drop_unit(id)
        {
            dropped += UNIT;
        }
        dropped
    }

    /// As [`Mm::drop_clean`], but no units.
    pub(crate) fn drop_singles(&mut self, max: u32) -> u32 {
        let mut dropped = 0;
        while dropped < max
            && let Some(frame) = self.frames.oldest_clean()
        {
            let desc @ FrameDesc {
                page: Some(page),
                slot: Some(_),
                wanted,
                ..
            } = *self.frames.get(frame)
            else {
                debug_assert!(false, "a clean page has a page and a slot");
                return dropped;
            };
            if wanted {
                // It is about to be mapped: keep it.
                self.frames.set_state(frame, State::Clean);
                return dropped;
            }
            if desc.ahead {
                self.end_ahead(page, &desc, false);
            }
            self.leave_frame(frame);
            dropped += 1;
        }
        dropped
    }

    /// As [`Mm::drop_clean`], for pages that streams read and did not use yet: in order, but if the stream will use the
    /// oldest one, the newest, which are the farthest from their use.
    pub(crate) fn drop_ahead(&mut self, now: Nanos, max: u32) -> u32 {
        let mut dropped = 0;
        while dropped < max
            && let Some(oldest) = self.frames.oldest_ahead()
            && let Some(newest) = self.frames.newest_ahead()
        {
            let page = self.frames.get(oldest).page;
            let expected = page.is_some_and(|page| self.streams.expects(page, now));
            let frame = if expected { newest } else { oldest };
            let desc = *self.frames.get(frame);
            let Some(page) = desc.page.filter(|_| !desc.wanted) else {
                break;
            };
            self.end_ahead(page, &desc, false);
            self.streams.dropped(page);
            self.leave_frame(frame);
            dropped += 1;
        }
        while dropped < max
            && let Some(oldest) = self.frames.clusters.oldest(List::Ahead)
            && let Some(newest) = self.frames.clusters.newest_ahead()
        {
            let unit = self.frames.clusters.get(oldest).unit;
            let expected = unit.is_some_and(|unit| self.streams.expects(unit, now));
            if !self.drop_unit(if expected { newest } else { oldest }) {
                break;
            }
            dropped += UNIT;
        }
        dropped
    }

    /// Evict about `max` pages from the program. Returns how many were evicted.
    pub(crate) fn evict(&mut self, w: &mut impl World, max: u32) -> u32 {
        // Before any victim is chosen, or a page could be chosen twice.
        let mut moved = self.evict_unshared(w);
        let mut victims = core::mem::take(&mut self.victims);
        victims.clear();
        self.take_cold(max, &mut victims);
        if victims.is_empty() && !self.take_drop_behind(w, max, &mut victims) {
            self.victims = victims;
            return moved;
        }
        let chosen = !victims.is_empty();
        let (mut wraps, now) = (0, w.now());
        self.take_units(&mut victims);
        let units = core::mem::take(&mut self.huge.units);
        for &unit in &units {
            moved += self.move_unit_out(w, unit, false).0;
        }
        self.huge.units = units;
        for _ in 0..LEAVES_PER_PASS {
            let enough = victims.len() as u32 + moved >= max;
            if chosen || enough || self.areas_full && moved > 0 {
                break;
            }
            let Some(leaf) = self.table.next_resident_leaf(self.hand) else {
                wraps += 1;
                self.hand = Vpn(0);
                // Going on with victims in hand could choose a page twice.
                if wraps > 4 || !victims.is_empty() {
                    break;
                }
                continue;
            };
            let unit = unit_of(leaf.start);
            if self.table.is_huge(unit) || leaf.start == unit && self.collapse(w, unit) {
                if wraps < 2 && self.spares_units(w) {
                    self.hand = leaf.end;
                    continue;
                }
                if self.awaits_cluster() {
                    break;
                }
                self.hand = leaf.end;
                if !self.table.age_huge(unit) || self.recent_faults.is_in(unit, now) {
                    continue;
                }
                let (gone, stop) = self.move_unit_out(w, unit, false);
                moved += gone;
                self.begin_probation(w, unit);
                if stop != Some(Stop::NoMemory) || self.clusters_come() {
                    continue;
                }
                // No cluster can take the unit: all hold pages of units that were disbanded. Split this one too, at
                // once: otherwise the hand would find it a huge page again the next time.
                self.stats.huge_splits += u64::from(self.table.unmake_huge(unit));
            }
            self.hand = self
                .table
                .sweep(&leaf, max as usize - victims.len(), &mut victims);
        }
        self.leave_untouched(now, &mut victims);
        victims.retain(|&page| !self.unsharing.has(page));
        let beside = !chosen && self.is_awaited();
        for run in victims.chunk_by(|a, b| a.plus(1) == *b) {
            if beside && moved > 0 && w.has_ended() {
                // The page that the thread waits for is there: the hand continues from here.
                self.hand = run[0];
                break;
            }
            moved += self.move_out(w, run[0], run.len() as u32, false).0;
        }
        self.victims = victims;
        moved
    }

    /// The clock hand found no page that could be moved: the first of the recently faulted pages can, if there are
    /// enough.
    pub(crate) fn evict_recent_faults(&mut self, w: &mut impl World) {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::CreepingLimit) {
            return;
        }
        let first = self
            .recent_faults
            .touched(w.now())
            .find(|page| self.is_single(*page));
        if let Some(page) = first.filter(|_| self.enough_recent_faults()) {
            self.move_out(w, page, 1, false);
            self.passing_until = w.now() + UNMOVABLE;
        }
    }

    /// Whether as many recently faulted pages are mapped as threads may need at a time.
    pub(crate) fn enough_recent_faults(&self) -> bool {
        self.recent_faults
            .all()
            .filter(|page| self.is_single(*page))
            .count()
            == grace::PAGES
    }

    fn is_single(&self, page: Vpn) -> bool {
        matches!(self.table.get(page), Entry::Resident(_)) && !self.table.is_huge(page)
    }

    /// Keep pages that were mapped for a thread a moment ago, and recently faulted pages as long as the limit yields.
    fn leave_untouched(&self, now: Nanos, victims: &mut Vec<Vpn>) {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::TakenUntouched) {
            return;
        }
        if now < self.passing_until {
            victims.retain(|page| !self.recent_faults.all().any(|other| other == *page));
        } else if self.recent_faults.untouched(now).next().is_some() {
            let untouched =
                |page: Vpn| self.recent_faults.untouched(now).any(|other| other == page);
            victims.retain(|page| !untouched(*page));
        }
    }

    /// Drop-behind: resident pages that a long stream has passed, and that did not prove to be needed again. False:
    /// they are units for which there will be room soon.
    fn take_drop_behind(&mut self, w: &mut impl World, max: u32, victims: &mut Vec<Vpn>) -> bool {
        let memory = self.table.resident();
        let yields = self.faults_at_random();
        let (long, margin) = match yields {
            true => (2 * u64::from(UNIT), u64::from(UNIT)),
            false => (memory / LONG, memory / KEPT),
        };
        let mut offered = 0;
        while offered < OFFERED {
            let Some(run) = self
                .streams
                .behind(w.now(), long, margin, max.into(), yields)
            else {
                return true;
            };
            offered += run.count;
            let next = |page: Vpn| match run.falling {
                true => Vpn(page.0.saturating_sub(run.step)),
                false => page.plus(run.step),
            };
            if self.config.thp != Thp::Never {
                let mut last = None;
                for page in run.pages() {
                    // Before the first of its pages is evicted, a whole leaf can still become a unit.
                    if last.replace(unit_of(page)) != Some(unit_of(page)) {
                        self.collapse(w, page);
                    }
                }
            }
            let passed = |&page: &Vpn| self.may_pass(page, next(page));
            victims.extend(run.rising().filter(passed));
            if victims.iter().any(|&page| self.table.is_huge(page)) && self.awaits_cluster() {
                self.streams.offer_drop_behind_again(run);
                victims.clear();
                return false;
            }
            if !victims.is_empty() {
                break;
            }
        }
        true
    }

    /// Move a run of resident pages to frames. `leaves`: their memory is to be free as soon as they are on an area.
    /// Returns how many were evicted, and why not all.
    pub(crate) fn move_out(
        &mut self,
        w: &mut impl World,
        first: Vpn,
        pages: u32,
        leaves: bool,
    ) -> (u32, Option<Stop>) {
        let last = first.plus(u64::from(pages.saturating_sub(1)));
        for page in [first, last] {
            self.stats.huge_splits += u64::from(self.table.unmake_huge(page));
        }
        let (mut at, mut left, mut gone) = (first, pages, 0);
        while left > 0 {
            let Some((frame, n)) = self.frames.take_empty(left.min(RUN)) else {
                return (gone, Some(Stop::NoMemory));
            };
            let done = w.move_out(at, frame, n);
            for i in 0..n {
                if i < done.pages {
                    self.on_moved_out(w, at.plus(u64::from(i)), frame.plus(i), leaves);
                } else {
                    self.frames.put_back(frame.plus(i));
                }
            }
            gone += done.pages;
            at = at.plus(u64::from(done.pages));
            left -= done.pages;
            match done.stop {
                None => {}
                Some(Stop::Absent) => {
                    self.on_missing(w, at);
                    gone += 1;
                    at = at.plus(1);
                    left -= 1;
                }
                Some(Stop::Busy) => {
                    self.on_immovable(w, at, left);
                    return (gone, done.stop);
                }
                Some(Stop::Fixed) => {
                    self.table.rest(at, REST);
                    return (gone, done.stop);
                }
                Some(_) => return (gone, done.stop),
            }
        }
        (gone, None)
    }

    pub(crate) fn on_moved_out(
        &mut self,
        w: &mut impl World,
        page: Vpn,
        frame: Frame,
        leaves: bool,
    ) {
        self.evictions += 1;
        let slot = match self.table.get(page) {
            Entry::Resident(resident) => resident.slot,
            _ => None,
        };
        let digest = w.digest_of(frame);
        if let Some(entry) = self.needs_no_slot(digest) {
            self.put(w, slot);
            self.table.set(page, entry);
            self.frames.set_free(frame);
            return;
        }
        let hash = digest.number();
        let clean = slot.filter(|&slot| w.digest(slot) == hash);
        #[cfg(feature = "planted")]
        let clean = match self.has(crate::planted::Bug::KeptClean) {
            true => slot,
            false => clean,
        };
        let home = clean.or_else(|| slot.filter(|&slot| self.keeps_home(w, page, slot)));
        if home.is_none() {
            self.put(w, slot);
        }
        let state = if clean.is_some() {
            self.stats.clean_drops += 1;
            State::Clean
        } else {
            State::Dirty
        };
        let desc = FrameDesc {
            state,
            page: Some(page),
            digest: hash,
            slot: home,
            leaves,
            ..NOTHING
        };
        self.frames.install(frame, desc);
        self.table.set(page, Entry::Cached(frame));
        if leaves && clean.is_some() {
            self.leave_frame(frame);
        }
    }

    /// Whether a changed page is written to its old slot. Where touches are near each other, adjacent pages are read
    /// together, and must stay together on the area. Pages that are touched at random are better written together,
    /// wherever they are from.
    pub(crate) fn keeps_home(&self, w: &impl World, page: Vpn, slot: Slot) -> bool {
        let local = self
            .vmas
            .find(page)
            .is_some_and(|vma| vma.local > LOCAL / 2);
        local && !self.drains(slot.area) && w.count(slot) == 1
    }

    /// The areas are full: resident pages release the slots that they kept. Returns how many.
    pub(crate) fn take_back_slots(&mut self, w: &mut impl World) -> u32 {
        let mut taken = 0;
        let mut at = Vpn(0);
        while self.table.keeping() > 0
            && let Some((page, entry)) = self.table.next_used(at, Vpn(u64::MAX))
        {
            if let Entry::Resident(Resident {
                slot: Some(slot),
                refs,
                found,
            }) = entry
            {
                w.put(slot);
                let resident = Resident {
                    slot: None,
                    refs,
                    found,
                };
                self.table.set(page, Entry::Resident(resident));
                taken += 1;
            }
            at = page.plus(1);
        }
        taken
    }
}
