//! Where clusters for huge pages come from, and when their memory is given back.
//!
//! A free cluster is taken first, then a fresh huge page, then the memory of the oldest clean unit, then single frames
//! are exchanged for a huge page. Fragmented clusters are repaired between two faults.

use super::Mm;
use crate::frames::State;
use crate::frames::clusters::{ClusterId, List, UNIT};
use crate::heuristics::Heuristic;
use crate::huge::{Thp, unit_of};
use crate::units::Vpn;
use crate::world::World;

impl Mm {
    /// Pages that reclaim keeps ready beyond its usual reserve, while units are being taken.
    pub(super) fn units_kept(&self, w: &impl World) -> u32 {
        match self.uses(Heuristic::KeptUnits) && self.huge.are_wanted(|| w.now()) {
            true => self.reclaim.marks().units,
            false => 0,
        }
    }

    /// Whether memory may be managed in huge pages.
    pub fn has_huge_pages(&self) -> bool {
        self.frames.clusters().number() > 0 && self.config.thp != Thp::Never
    }

    /// Whether the unit of `page` lies in one region, and huge pages are enabled.
    pub(super) fn holds_unit(&self, page: Vpn) -> bool {
        let unit = unit_of(page);
        self.has_huge_pages()
            && self
                .vmas
                .find(unit)
                .is_some_and(|vma| vma.range.end >= unit.plus(UNIT.into()))
    }

    /// Whether the region of `page` is touched in order.
    pub(super) fn is_touched_in_order(&self, page: Vpn) -> bool {
        self.config.thp == Thp::Always
            || self.vmas.find(page).is_some_and(|vma| vma.is_local())
            || !self.uses(Heuristic::LocalRegions)
    }

    /// Take a cluster with a huge page that is not needed; [`crate::frames::Frames::settle`] puts it back unused.
    /// Evicts for it if `hard`.
    pub(super) fn obtain_cluster(&mut self, w: &mut impl World, hard: bool) -> Option<ClusterId> {
        let taken = self.spare_cluster(w);
        if taken.is_some() || !hard || self.held || self.is_much_unwritten() {
            return taken;
        }
        // If the system has no huge page, eviction makes a cluster only if some have memory.
        let clusters = self.frames.clusters();
        if self.huge.is_scarce() && clusters.are_bare() {
            return None;
        }
        self.stats.direct_reclaims += 1;
        self.evict(w, UNIT);
        self.submit_writes(w, true);
        self.spare_cluster(w)
    }

    /// Pages that a fault could have without a cluster being broken up.
    fn singles(&self, w: &impl World) -> u64 {
        let singles = self.frames.free() + self.frames.clean_singles();
        w.available() + u64::from(singles)
    }

    /// A cluster for a stream, which leaves the memory that single pages need.
    pub(super) fn cluster_to_read(&mut self, w: &mut impl World, hard: bool) -> Option<ClusterId> {
        if self.lacks_singles(w, self.reclaim.marks().reserve) {
            self.reclaim.wake();
            return None;
        }
        self.obtain_cluster(w, hard)
    }

    /// During random faults, keep memory for them that is in no cluster.
    pub(super) fn keep_singles(&mut self, w: &mut impl World) {
        if self.lacks_singles(w, self.reclaim.marks().low) {
            self.release_cluster(w);
        }
    }

    /// Threads fault at random, and less than `least` pages that are in no cluster are available.
    fn lacks_singles(&self, w: &impl World, least: u32) -> bool {
        self.faults_at_random()
            && self.uses(Heuristic::KeptSingles)
            && self.singles(w) < u64::from(least)
    }

    fn spare_cluster(&mut self, w: &mut impl World) -> Option<ClusterId> {
        if let Some(id) = self.frames.take_cluster(List::Free) {
            return Some(id);
        }
        if self.back_cluster(w) {
            return self.frames.take_cluster(List::Free);
        }
        while let Some(id) = self.frames.clusters().oldest(List::Clean) {
            if !self.drop_unit(id) {
                break;
            }
            // A fragmented one is of no use here.
            if let Some(id) = self.frames.take_cluster(List::Free) {
                return Some(id);
            }
        }
        let spare = self.frames.free() + self.frames.clean_singles();
        let kept = match self.faults_at_random() && self.uses(Heuristic::KeptSingles) {
            true => self.reclaim.marks().high,
            false => self.reclaim.marks().reserve,
        };
        if spare >= UNIT + kept
            && !self.huge.is_scarce()
            && self.frames.clusters().count(List::Empty) > 0
        {
            // Memory is in single pages: exchange it.
            if self.frames.free() < UNIT {
                self.drop_singles(UNIT - self.frames.free());
            }
            self.release_free(w, UNIT);
            if self.back_cluster(w) {
                return self.frames.take_cluster(List::Free);
            }
        }
        None
    }

    /// Back an empty cluster with a fresh huge page, if the limit allows.
    fn back_cluster(&mut self, w: &mut impl World) -> bool {
        if !self.huge.may_ask() {
            return false;
        }
        if self.frames.clusters().count(List::Empty) == 0 || !w.try_charge(UNIT.into()) {
            return false;
        }
        let Some(id) = self.frames.take_cluster(List::Empty) else {
            w.uncharge(UNIT.into());
            return false;
        };
        if !w.fill_huge(self.frames.clusters().first(id)) {
            w.uncharge(UNIT.into());
            if self.uses(Heuristic::ScarceUnits) {
                self.huge.on_none();
            }
            self.frames.settle(id);
            return false;
        }
        self.frames.fill_cluster(id);
        true
    }

    /// Take a cluster without memory.
    pub(super) fn empty_cluster(&mut self, w: &mut impl World) -> Option<ClusterId> {
        if self.frames.clusters().count(List::Empty) == 0 && !self.release_cluster(w) {
            // Unused readahead is dropped before the clusters that reclaim needs, unless some will be free anyway.
            if !self.clusters_come()
                && let Some(id) = self.frames.clusters().newest_ahead()
                && self.drop_unit(id)
            {
                self.release_cluster(w);
            }
        }
        self.frames.take_cluster(List::Empty)
    }

    /// No cluster can take a unit now, but one will soon.
    pub(super) fn awaits_cluster(&self) -> bool {
        let clusters = self.frames.clusters();
        let none = clusters.count(List::Empty) + clusters.count(List::Free) == 0
            && clusters.oldest(List::Clean).is_none();
        none && self.clusters_come()
    }

    /// Whether some cluster will be usable again without further work.
    pub(super) fn clusters_come(&self) -> bool {
        let clusters = self.frames.clusters();
        clusters.count(List::Dirty) > 0 && !self.slots.are_full()
            || clusters.count(List::Fragmented) > 0
            || clusters.any_busy()
    }

    /// Return the memory of one unneeded cluster to the system, or of a clean unit if there is no other. Returns
    /// whether there was one.
    pub(super) fn release_cluster(&mut self, w: &mut impl World) -> bool {
        if self.frames.clusters().count(List::Free) == 0
            && let Some(id) = self.frames.clusters().oldest(List::Clean)
        {
            self.drop_unit(id);
        }
        let Some(id) = self.frames.take_cluster(List::Free) else {
            return false;
        };
        w.release(self.frames.clusters().first(id), UNIT);
        w.uncharge(UNIT.into());
        self.frames.end_all(id, State::Empty);
        true
    }

    /// Break up clusters for single frames: up to `max`, free.
    pub(super) fn break_cluster(&mut self, w: &mut impl World, max: u32) {
        if !self.release_cluster(w) {
            return;
        }
        if let Some((frame, n)) = self.back_empty(w, max) {
            for i in 0..n {
                self.frames.set_free(frame.plus(i));
            }
        }
    }

    /// Drop a clean unit: it is on its area only. False: a thread waits for it.
    pub(super) fn drop_unit(&mut self, id: ClusterId) -> bool {
        let wanted = |frame| self.frames.get(frame).wanted;
        if self.frames.clusters().frames(id).any(wanted) {
            self.frames.file(id);
            return false;
        }
        if self.frames.clusters().get(id).ahead {
            let first = *self.frames.get(self.frames.clusters().first(id));
            if let Some(page) = first.page {
                self.end_unit_ahead(page, &first);
                self.streams.dropped(page);
            }
        }
        for frame in self.frames.clusters().frames(id) {
            self.leave_for_area(frame);
        }
        self.frames.end_all(id, State::Free);
        true
    }

    /// Tidy the clusters: the remaining memory of fragmented ones is returned, and pages are delivered whose unit was
    /// split while threads waited for them.
    pub(super) fn tidy(&mut self, w: &mut impl World) {
        self.deliver_orphans(w);
        while let Some(frame) = self.frames.take_stray() {
            w.release(frame, 1);
            w.uncharge(1);
            self.frames.set_empty(frame);
        }
        // A repair maps memory again, and a fork must not see it half done.
        while !self.held
            && let Some(id) = self.frames.take_cluster(List::Fragmented)
        {
            for frame in self.frames.clusters().frames(id) {
                if self.frames.get(frame).state == State::Free {
                    w.release(frame, 1);
                    w.uncharge(1);
                }
            }
            w.rebuild(self.frames.clusters().first(id));
            self.frames.repair_cluster(id);
        }
    }
}
