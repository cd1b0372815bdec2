//! Which slots the next pages are written to.
//!
//! Each process allocates from one cluster of 512 slots at a time, which only it has claimed. Processes therefore share
//! no lock, pages that are evicted together are adjacent, and one write covers many pages. A used-up cluster is
//! released at once: the next process that needs room finds the slots that have become free in it. No process starves
//! beside another's half-empty clusters.

use alloc::vec::Vec;

use crate::units::{LEAF_PAGES, Nanos, Slot};
use crate::world::{IoResult, SwapMap};

/// Failed writes after which an area gets no pages for a while, and for how long: at first, and at most. It doubles with each
/// trial that fails. A disk that is broken for good costs a write in about a minute; one that was mended, or a server that
/// was full or read-only, is used again.
const WRITE_FAILURES: u32 = 16;
const AWAY: Nanos = 1_000_000_000;
const MOST_AWAY: Nanos = 64 * AWAY;
/// The system's error number for "no space left on device".
const ENOSPC: i32 = 28;
/// The system's error number for "connection reset": the server of the area went away in the middle of the write, which it may
/// still carry out.
const ECONNRESET: i32 = 104;
/// Requests that skip an area whose file system had no room, or whose server went away.
const REST: u32 = 16;

/// Pages that were read keep their slots while less than this many quarters of the area are used: two, and three where a
/// second write means compression, which costs more than the room.
const KEPT_QUARTERS: u64 = 2;
const KEPT_QUARTERS_COMPRESSED: u64 = 3;

/// Whether pages that were read from `area` keep their slots, to save a later write.
pub(crate) fn keeps(map: &impl SwapMap, area: u8) -> bool {
    let quarters = match map.compresses(area) {
        true => KEPT_QUARTERS_COMPRESSED,
        false => KEPT_QUARTERS,
    };
    map.used(area) * 4 < u64::from(map.slots(area)) * quarters
}

#[derive(Default)]
struct Area {
    /// The cluster in use and the slot in it where the search continues.
    current: Option<(u32, u32)>,
    /// Failed writes. After a trial, successful ones make up for them.
    failures: u32,
    /// When it is tried again, if too many writes have failed.
    again: Option<Nanos>,
    /// For how long it was left alone, lately.
    away: Nanos,
    /// Requests that still skip the area.
    rest: u32,
    /// It is being emptied: no slot is taken.
    closed: bool,
}

impl Area {
    fn is_usable(&self) -> bool {
        !self.closed && self.again.is_none()
    }

    fn on_failed(&mut self, now: Nanos) {
        self.failures += 1;
        if self.failures >= WRITE_FAILURES && self.again.is_none() {
            self.away = (2 * self.away).clamp(AWAY, MOST_AWAY);
            self.again = Some(now + self.away);
        }
    }

    fn on_written(&mut self) {
        if self.away > 0 {
            self.failures = self.failures.saturating_sub(1);
        }
        if self.failures == 0 {
            self.away = 0;
        }
    }

    /// One more failure, and it is left alone again.
    fn try_again(&mut self, now: Nanos) {
        if self.again.is_some_and(|at| at <= now) {
            self.again = None;
            self.failures = WRITE_FAILURES - 1;
        }
    }
}

/// The slot allocator of one process.
#[derive(Default)]
pub struct Slots {
    areas: Vec<Area>,
    /// The last try found no free slot.
    full: bool,
    /// Slots that failed. They keep their reference, and no process uses them again.
    bad: Vec<Slot>,
}

impl Slots {
    /// Take up to `max` consecutive free slots; `None` when every area is full.
    pub fn take(&mut self, map: &mut impl SwapMap, max: u32) -> Option<(Slot, u32)> {
        self.take_where(map, max, |_, _| true)
    }

    /// As [`Slots::take`], from an area of tier `least` or beyond, if one has room.
    pub fn take_from_tier(
        &mut self,
        map: &mut impl SwapMap,
        least: u8,
        max: u32,
    ) -> Option<(Slot, u32)> {
        self.take_where(map, max, |map, area| map.tier(area) >= least)
            .or_else(|| self.take(map, max))
    }

    /// Whether an area of tier `least` or beyond has a slot for us. Slots may be free there but lie in clusters that other
    /// processes have claimed; the cluster of a slot that is found is ours.
    pub fn has_in_tier(&mut self, map: &mut impl SwapMap, least: u8) -> bool {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            if map.tier(area) >= least && self.has_in(map, area) {
                return true;
            }
            n += 1;
        }
        false
    }

    fn has_in(&mut self, map: &mut impl SwapMap, area: u8) -> bool {
        let state = self.area(area);
        if !state.is_usable() || state.rest > 0 {
            return false;
        }
        loop {
            let (cluster, next) = match state.current {
                Some(current) => current,
                None => match map.claim_cluster(area) {
                    Some(cluster) => (cluster, 0),
                    None => return false,
                },
            };
            let base = cluster * LEAF_PAGES as u32;
            let end = (base + LEAF_PAGES as u32).min(map.slots(area));
            if (base + next..end).any(|index| map.count(Slot { area, index }) == 0) {
                state.current = Some((cluster, next));
                return true;
            }
            map.release_cluster(area, cluster);
            state.current = None;
        }
    }

    fn take_where<M: SwapMap>(
        &mut self,
        map: &mut M,
        max: u32,
        fits: impl Fn(&M, u8) -> bool,
    ) -> Option<(Slot, u32)> {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            let fits = fits(map, area);
            let taken = fits.then(|| self.take_from(map, area, max)).flatten();
            if taken.is_some() {
                return taken;
            }
            n += 1;
        }
        None
    }

    /// Take a whole slot cluster: returns the first of its 512 slots. `None` when no area has an empty one.
    pub fn take_cluster<M: SwapMap>(&mut self, map: &mut M) -> Option<Slot> {
        let mut n = 0;
        while let Some(area) = map.nth(n) {
            n += 1;
            let state = self.area(area);
            if !state.is_usable() || state.rest > 0 {
                state.rest = state.rest.saturating_sub(1);
                continue;
            }
            if let Some(cluster) = map.claim_empty_cluster(area) {
                let index = cluster * LEAF_PAGES as u32;
                let first = Slot { area, index };
                map.get(first, LEAF_PAGES as u32);
                map.release_cluster(area, cluster);
                return Some(first);
            }
        }
        None
    }

    fn area(&mut self, area: u8) -> &mut Area {
        let index = usize::from(area);
        if self.areas.len() <= index {
            self.areas.resize_with(index + 1, Area::default);
        }
        &mut self.areas[index]
    }

    /// Free slots of all open areas, for any process.
    pub fn room(&self, map: &impl SwapMap) -> u64 {
        let areas = (0..).map_while(|n| map.nth(n));
        areas
            .filter(|&area| {
                let state = self.areas.get(usize::from(area));
                state.is_none_or(Area::is_usable)
            })
            .map(|area| u64::from(map.slots(area)).saturating_sub(map.used(area)))
            .sum()
    }

    /// Take nothing from `area` any more.
    pub fn close(&mut self, map: &mut impl SwapMap, area: u8) {
        let state = self.area(area);
        state.closed = true;
        if let Some((cluster, _)) = state.current.take() {
            map.release_cluster(area, cluster);
        }
    }

    /// Take from `area` again.
    pub fn open(&mut self, area: u8) {
        self.area(area).closed = false;
        self.full = false;
    }

    /// `area` is gone; another one may get its number.
    pub fn forget(&mut self, area: u8) {
        *self.area(area) = Area::default();
    }

    fn take_from(&mut self, map: &mut impl SwapMap, area: u8, max: u32) -> Option<(Slot, u32)> {
        let state = self.area(area);
        if !state.is_usable() {
            return None;
        }
        if state.rest > 0 {
            state.rest -= 1;
            return None;
        }
        loop {
            let (cluster, next) = match state.current {
                Some(current) => current,
                None => (map.claim_cluster(area)?, 0),
            };
            let end = ((cluster + 1) * LEAF_PAGES as u32).min(map.slots(area));
            let base = cluster * LEAF_PAGES as u32;
            let free = |index: u32| map.count(Slot { area, index }) == 0;
            let Some(first) = (base + next..end).find(|&index| free(index)) else {
                map.release_cluster(area, cluster);
                state.current = None;
                continue;
            };
            let run = (first..end.min(first + max))
                .take_while(|&index| free(index))
                .count() as u32;
            state.current = Some((cluster, first + run - base));
            let first = Slot { area, index: first };
            map.get(first, run);
            return Some((first, run));
        }
    }

    /// Drop our reference to a slot, if there is one.
    pub fn put(&mut self, map: &mut impl SwapMap, slot: Option<Slot>) {
        if let Some(slot) = slot.filter(|slot| !slot.is_file()) {
            map.put(slot);
            self.full = false;
        }
    }

    /// At the last write no area accepted a page, and no slot is known to have become free since.
    pub fn are_full(&self) -> bool {
        self.full
    }

    /// No area accepted a page. Returns whether that is new.
    pub fn set_full(&mut self) -> bool {
        !core::mem::replace(&mut self.full, true)
    }

    /// The write of a page to `slot` was not accepted. If the slot failed, it is kept from reuse.
    pub fn on_not_written(&mut self, map: &mut impl SwapMap, slot: Slot, result: IoResult) {
        match result {
            IoResult::Failed(error) if error != ENOSPC => self.keep_bad(slot),
            _ => self.put(map, Some(slot)),
        }
    }

    /// A write to `area` has ended, and its slots are kept or put. `were_full`: no slot was free before.
    pub fn on_write_end(&mut self, area: u8, result: IoResult, were_full: bool, now: Nanos) {
        match result {
            // Other processes may have made room.
            IoResult::Ok => {
                self.full = false;
                self.area(area).on_written();
            }
            IoResult::Refused(refusal) => {
                // The slots that were released are no room.
                self.full = were_full;
                if refusal.full {
                    self.no_room(area);
                }
            }
            // Neither says that the area is bad. A server is used again when it is back.
            IoResult::Failed(ENOSPC | ECONNRESET) => self.no_room(area),
            IoResult::Failed(_) => self.area(area).on_failed(now),
        }
    }

    /// Keep a slot that failed from reuse.
    pub fn keep_bad(&mut self, slot: Slot) {
        if !slot.is_file() {
            self.bad.push(slot);
        }
    }

    /// No slot of `area` will be used any more: drop the references to those that failed.
    pub fn put_bad(&mut self, map: &mut impl SwapMap, area: u8) {
        let on_area = |slot: &mut Slot| slot.area == area;
        for slot in self.bad.extract_if(.., on_area) {
            map.put(slot);
        }
    }

    /// The area's file system is full, or its server is away: the area gets no pages for a while.
    pub fn no_room(&mut self, area: u8) {
        if let Some(state) = self.areas.get_mut(usize::from(area)) {
            state.rest = REST;
        }
    }

    /// Areas whose writes have failed are tried again when it is time.
    pub fn try_again(&mut self, now: Nanos) {
        self.areas.iter_mut().for_each(|area| area.try_again(now));
    }

    /// Release the clusters that we claimed and have not used, for other processes.
    pub fn give_back(&mut self, map: &mut impl SwapMap) {
        for (area, state) in (0u8..).zip(&mut self.areas) {
            if let Some((cluster, _)) = state.current.take() {
                map.release_cluster(area, cluster);
            }
        }
    }
}

#[cfg(test)]
#[path = "slots_tests.rs"]
mod tests;
