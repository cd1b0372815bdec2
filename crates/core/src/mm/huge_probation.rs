//! Huge pages on probation: when they rest, and when that ends ([`crate::huge::probation`]).

use super::Mm;
use crate::frames::clusters::{ClusterId, List, UNIT};
use crate::heuristics::Heuristic;
use crate::huge::probation::REST_TIME;
use crate::space::page_table::Entry;
use crate::units::{Nanos, Vpn};
use crate::world::World;

impl Mm {
    /// Whether the clock hand is to skip huge pages.
    pub(super) fn spares_units(&self, w: &impl World) -> bool {
        let resting = self.frames.clusters().resting();
        let singles = self.table.resident_singles();
        let high = self.reclaim.marks().high;
        self.probation.spares_others(resting, singles, high) && self.may_rest(w)
    }

    /// A unit was evicted for its age.
    pub(super) fn begin_probation(&mut self, w: &impl World, unit: Vpn) {
        let Entry::Cached(frame) = self.table.get(unit) else {
            return;
        };
        if let Some((id, _)) = self.frames.unit_of(frame)
            && self.may_rest(w)
        {
            let cluster = self.frames.clusters().get(id);
            if cluster.list == List::Dirty || cluster.busy > 0 {
                self.frames.rest(id, w.now() + REST_TIME);
            }
        }
    }

    /// Units whose rest ends before this time may be written.
    pub(super) fn rested_at(&self, w: &impl World) -> Nanos {
        match self.may_rest(w) {
            true => w.now(),
            false => Nanos::MAX,
        }
    }

    /// The unit of a cluster is about to be written.
    pub(super) fn end_trial(&mut self, w: &impl World, id: ClusterId) {
        let until = self.frames.end_rest(id);
        if until.is_some_and(|until| until <= w.now()) {
            self.probation.on_unused(self.table.resident());
        }
    }

    /// The unit of a cluster was touched and is mapped again.
    pub(super) fn pass_trial(&mut self, id: ClusterId) {
        if self.frames.end_rest(id).is_some() {
            self.probation.on_used();
        }
    }

    /// Pages of units on probation, which count as being in writeback but are not.
    pub(super) fn on_probation(&self) -> u32 {
        self.frames.clusters().resting() * UNIT
    }

    /// Whether units may rest: threads fault at random, and no fault needs the memory of resting units.
    fn may_rest(&self, w: &impl World) -> bool {
        let clusters = self.frames.clusters();
        self.faults_at_random()
            && self.uses(Heuristic::Probation)
            && !self.held
            && !self.is_draining()
            && !self.waiters.are_stalled()
            && w.excess() == 0
            && clusters.count(List::Empty) + clusters.count(List::Free) > 0
            && self.headroom(w) >= u64::from(self.reclaim.marks().reserve)
    }
}
