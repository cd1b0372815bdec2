//! Which pages are evicted, and how they leave the program.
//!
//! In this order: a run whose shared pages were copied for that ([`crate::reclaim::unshare`]), pages that the program
//! declared cold, pages that a scan has passed (`drop_behind`), then those that
//! the policy names ([`crate::reclaim::policy`]) as a sweep goes over the page table by address. A page that was just
//! mapped for a thread stays for a moment. A huge page is evicted as a whole, and a leaf most of whose pages are old
//! becomes one for that, unless threads fault at random.

use super::Mm;
use crate::fault::grace;
use crate::frames::clusters::UNIT;
use crate::frames::{FrameDesc, NOTHING, State};
use crate::heuristics::Heuristic;
use crate::huge::{Thp, unit_of};
use crate::reclaim::any_policy::{AnyPolicy, with};
use crate::reclaim::policy::ReclaimPolicy as _;
use crate::reclaim::{REST, RUN};
use crate::space::page_table::{Entry, Resident};
use crate::units::{Frame, LEAF_PAGES, Vpn};
use crate::world::{Sharing, Stop, World};

/// Leaves that one call of [`Mm::evict`] looks at.
const LEAVES_PER_PASS: usize = 512;
/// How often the sweep goes around in one call: by then every policy has named a victim.
const WRAPS: u32 = 4;

impl Mm {
    /// Evict about `max` pages from the program. Returns how many were evicted.
    pub(super) fn evict(&mut self, w: &mut impl World, max: u32) -> u32 {
        // Before any victim is chosen, or a page could be chosen twice.
        let mut moved = self.evict_unshared(w);
        let mut victims = core::mem::take(&mut self.buffers.victims);
        victims.clear();
        self.advised
            .take_cold(&self.table, max as usize, &mut victims);
        if victims.is_empty() && !self.take_drop_behind(w, max, &mut victims) {
            self.buffers.victims = victims;
            return moved;
        }
        let chosen = !victims.is_empty();
        let (mut wraps, now, by_page) = (0, w.now(), self.goes_by_page());
        self.take_units(&mut victims);
        let units = core::mem::take(&mut self.buffers.units);
        for &unit in &units {
            moved += self.move_unit_out(w, unit, false).0;
        }
        self.buffers.units = units;
        for _ in 0..LEAVES_PER_PASS {
            let enough = victims.len() as u32 + moved >= max;
            if chosen || enough || self.slots.are_full() && moved > 0 {
                break;
            }
            let Some(leaf) = self.table.next_resident_leaf(self.reclaim.hand()) else {
                wraps += 1;
                self.reclaim
                    .begin_pass(self.stats.refaults, self.table.resident());
                // Going on with victims in hand could choose a page twice.
                if wraps > WRAPS || !victims.is_empty() {
                    break;
                }
                continue;
            };
            let unit = unit_of(leaf.start);
            let shares = self.table.shared_in(&(unit..unit.plus(LEAF_PAGES as u64))) > 0;
            if shares && self.table.is_huge(unit) && !self.takes_shared(w) {
                self.reclaim.set_hand(leaf.end);
                continue;
            }
            let is_huge = self.table.is_huge(unit);
            if by_page {
                self.stats.huge_splits += u64::from(self.table.split_mapping(unit));
            } else if is_huge
                || leaf.start == unit && !shares && self.is_old_leaf(unit) && self.collapse(w, unit)
            {
                if self.awaits_cluster() {
                    break;
                }
                self.reclaim.set_hand(leaf.end);
                if is_huge && !self.is_old_unit(unit) || self.waiters.recent().is_in(unit, now) {
                    continue;
                }
                let (gone, stop) = self.move_unit_out(w, unit, false);
                moved += gone;
                if stop != Some(Stop::NoMemory) || self.clusters_come() {
                    continue;
                }
                // No cluster can take the unit: all hold pages of units that were split. Split this one too, at
                // once: otherwise the hand would find it a huge page again the next time.
                self.stats.huge_splits += u64::from(self.table.split_mapping(unit));
            }
            let room = max as usize - victims.len();
            let shared = self.takes_shared(w);
            let table = &mut self.table;
            let hand = with!(self.reclaim.policy_mut(), policy =>
                table.sweep(&leaf, room, shared, |rank| policy.judge(rank, 1), &mut victims));
            self.reclaim.set_hand(hand);
        }
        #[cfg(feature = "planted")]
        let now = if self.has(crate::planted::Bug::TakenUntouched) {
            u64::MAX
        } else {
            now
        };
        self.waiters.spare(&mut victims, now);
        let shared_too = self.takes_shared(w);
        victims.retain(|&page| {
            !self.unsharing.has(page) && (shared_too || !self.table.is_shared(page))
        });
        let beside = !chosen && self.is_awaited();
        for run in victims.chunk_by(|a, b| a.plus(1) == *b) {
            if beside && moved > 0 && w.has_ended() {
                // The page that the thread waits for is there: the hand continues from here.
                self.reclaim.set_hand(run[0]);
                break;
            }
            moved += self.move_out(w, run[0], run.len() as u32, false).0;
        }
        self.buffers.victims = victims;
        moved
    }

    /// Whether the sweep splits huge pages and judges their pages one by one. Where faults are at random, some pages of
    /// a huge page are in use and most are not: those in use come back from their frames one by one, and the others go.
    fn goes_by_page(&self) -> bool {
        self.config.thp == Thp::Adaptive
            && self.faults_at_random()
            && self.uses(Heuristic::SplitAtRandom)
    }

    /// Whether all pages of a leaf are mapped, and the policy evicts most of them now: then they go as a unit.
    fn is_old_leaf(&mut self, unit: Vpn) -> bool {
        if !self.has_huge_pages() {
            return false;
        }
        let policy = self.reclaim.policy_mut();
        let old = |rank: &u16| policy.judge(*rank, 0).is_none();
        2 * self.table.ranks(unit).filter(old).count() >= LEAF_PAGES
    }

    /// Whether the policy evicts a huge page now.
    fn is_old_unit(&mut self, unit: Vpn) -> bool {
        let policy = self.reclaim.policy_mut();
        self.table.judge_huge(unit, |rank| policy.judge(rank, UNIT))
    }

    /// Whether pages that others may share since a fork are evicted.
    fn takes_shared(&self, w: &impl World) -> bool {
        match w.sharing() {
            Sharing::None => true,
            Sharing::Charged => self.reclaim.takes_shared(),
            Sharing::Owed => false,
        }
    }

    /// The sweep found no page that could be moved: the first of the recently faulted pages can, if there are
    /// enough.
    pub(super) fn evict_recent_faults(&mut self, w: &mut impl World) {
        #[cfg(feature = "planted")]
        if self.has(crate::planted::Bug::CreepingLimit) {
            return;
        }
        let first = self
            .waiters
            .recent()
            .touched(w.now())
            .find(|page| self.is_single(*page));
        if let Some(page) = first.filter(|_| self.enough_recent_faults()) {
            self.move_out(w, page, 1, false);
            self.waiters.yield_limit(w.now());
        }
    }

    /// Whether as many recently faulted pages are mapped as threads may need at a time.
    pub(super) fn enough_recent_faults(&self) -> bool {
        self.waiters
            .recent()
            .all()
            .filter(|page| self.is_single(*page))
            .count()
            == grace::PAGES
    }

    fn is_single(&self, page: Vpn) -> bool {
        matches!(self.table.get(page), Entry::Resident(_)) && !self.table.is_huge(page)
    }

    /// Move a run of resident pages to frames. `leaves`: their memory is to be free as soon as they are on an area.
    /// Returns how many were evicted, and why not all.
    pub(super) fn move_out(
        &mut self,
        w: &mut impl World,
        first: Vpn,
        pages: u32,
        leaves: bool,
    ) -> (u32, Option<Stop>) {
        let last = first.plus(u64::from(pages.saturating_sub(1)));
        for page in [first, last] {
            self.stats.huge_splits += u64::from(self.table.split_mapping(page));
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
                    if self.uses(Heuristic::LeafRest) {
                        self.table.rest(at, REST);
                    }
                    return (gone, done.stop);
                }
                Some(_) => return (gone, done.stop),
            }
        }
        (gone, None)
    }

    pub(super) fn on_moved_out(
        &mut self,
        w: &mut impl World,
        page: Vpn,
        frame: Frame,
        leaves: bool,
    ) {
        self.reclaim.on_evicted(1);
        self.streams.on_evicted(1);
        let copied = self.table.unshare(&(page..page.plus(1)));
        if copied > 0 {
            w.on_copied(copied);
        }
        let slot = match self.table.get(page) {
            Entry::Resident(resident) => resident.slot,
            _ => None,
        };
        let digest = w.digest_of(frame);
        if let Some(entry) = self.needs_no_slot(page, digest) {
            self.slots.put(w, slot);
            self.table.set(page, entry);
            self.frames.set_free(frame);
            return;
        }
        let hash = digest.number();
        let clean = slot.filter(|&slot| self.holds(w, slot, hash));
        #[cfg(feature = "planted")]
        let clean = match self.has(crate::planted::Bug::KeptClean) {
            true => slot,
            false => clean,
        };
        if clean.is_none() {
            self.slots.put(w, slot);
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
            slot: clean,
            leaves,
            ..NOTHING
        };
        self.frames.install(frame, desc);
        self.table.set(page, Entry::Cached(frame));
        if leaves && clean.is_some() {
            self.leave_frame(frame);
        }
    }

    /// The areas are full: resident pages release the slots that they kept. Returns how many.
    pub(super) fn take_back_slots(&mut self, w: &mut impl World) -> u32 {
        let mut taken = 0;
        let mut at = Vpn(0);
        while self.table.keeping() > 0
            && let Some((page, entry)) = self.table.next_used(at, Vpn(u64::MAX))
        {
            if let Entry::Resident(Resident {
                slot: Some(slot),
                rank,
                found,
            }) = entry
                && !slot.is_file()
            {
                w.put(slot);
                let resident = Resident {
                    slot: None,
                    rank,
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
