//! Whether huge pages are in use that were never moved out.
//!
//! Of what is mapped no bit says here that it was touched. Small pages prove it on their way out: one that
//! is in use is touched again while it waits in its frame, comes back and is left alone for some time. A huge
//! page is on its way for a moment only, and once it is written it comes back page by page, where pages are
//! missed at random. So then one that goes for its age rests before it is written: it is on *trial*. Meanwhile
//! the other huge pages stay, as those that come in and go again, small and clean most of them, make the room
//! for each other. Where it was not touched, more go on trial at a time; where it was, only one.

use super::clusters::{ClusterId, List, UNIT};
use crate::mm::Mm;
use crate::space::page_table::Entry;
use crate::units::{Nanos, Vpn};
use crate::world::World;

/// How long a huge page rests. One of which any page is touched every 10 ms proves it in 99 of 100 trials.
const REST_TIME: Nanos = 50_000_000;
/// The part of what is mapped that may be on trial at a time.
const TRIALS: u64 = 4;
/// Small pages that recycle each other: so many times the frames that reclaim keeps ready.
const SINGLES: u64 = 4;

impl Mm {
    /// Whether the clock hand is to leave huge pages where they are.
    pub(crate) fn spares_units(&self, w: &impl World) -> bool {
        self.frames.clusters.resting >= self.huge.trials.max(1)
            && self.may_rest(w)
            && self.table.resident_singles() >= SINGLES * u64::from(self.marks.high)
    }

    /// A unit was moved out for its age.
    pub(crate) fn begin_probation(&mut self, w: &impl World, unit: Vpn) {
        let Entry::Cached(frame) = self.table.get(unit) else {
            return;
        };
        if let Some((id, _)) = self.frames.unit_of(frame)
            && self.may_rest(w)
        {
            let cluster = self.frames.clusters.get(id);
            if cluster.list == List::Dirty || cluster.busy > 0 {
                self.frames.clusters.rest(id, w.now() + REST_TIME);
            }
        }
    }

    /// Until then rest is over, of those that are on trial.
    pub(crate) fn rested_at(&self, w: &impl World) -> Nanos {
        match self.may_rest(w) {
            true => w.now(),
            false => Nanos::MAX,
        }
    }

    /// The unit of a cluster is about to be written.
    pub(crate) fn end_trial(&mut self, w: &impl World, id: ClusterId) {
        let until = self.frames.clusters.end_rest(id);
        if until.is_some_and(|until| until <= w.now()) {
            let most = self.table.resident() / TRIALS / u64::from(UNIT);
            self.huge.trials = (self.huge.trials.max(1) * 2).min(most as u32);
        }
    }

    /// The unit of a cluster was touched and is mapped again.
    pub(crate) fn pass_trial(&mut self, id: ClusterId) {
        if self.frames.clusters.end_rest(id).is_some() {
            self.huge.trials = 1;
        }
    }

    /// Pages of units on trial, which count as being written but are not.
    pub(crate) fn on_probation(&self) -> u32 {
        self.frames.clusters.resting * UNIT
    }

    /// Nobody needs what is on trial.
    fn may_rest(&self, w: &impl World) -> bool {
        let clusters = &self.frames.clusters;
        self.faults_at_random()
            && !self.held
            && !self.is_draining()
            && self.stalled.is_empty()
            && w.excess() == 0
            && clusters.count(List::Empty) + clusters.count(List::Free) > 0
            && self.headroom(w) >= u64::from(self.marks.low / 2)
    }
}
