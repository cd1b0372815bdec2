//! Whether a huge page that was never evicted before is in use.
//!
//! The engine has no accessed bit for mapped memory. Small pages prove their use on the way out: a page in use is
//! touched again while it waits in its frame, is mapped again and stays for some time. A huge page is in its frames for
//! a moment only. Once it is written, it comes back page by page where faults are random. A huge page that is evicted
//! for its age therefore rests before it is written: it is on *probation*. Meanwhile the other huge pages stay, as
//! pages that come and go, most of them small and clean, make room for each other. If a unit was not touched, more go
//! on probation at a time; if it was, only one.

use super::Mm;
use crate::frames::clusters::{ClusterId, List, UNIT};
use crate::space::page_table::Entry;
use crate::units::{Nanos, Vpn};
use crate::world::World;

/// How long a huge page rests. If any of its pages is touched every 10 ms, 99 of 100 probations prove it.
const REST_TIME: Nanos = 50_000_000;
/// The part of mapped memory that may be on probation at a time.
const TRIALS: u64 = 4;
/// Small pages recycle each other if they are at least this many times the frames that reclaim keeps ready.
const SINGLES: u64 = 4;

impl Mm {
    /// Whether the clock hand is to skip huge pages.
    pub(super) fn spares_units(&self, w: &impl World) -> bool {
        self.frames.clusters().resting() >= self.huge.trials.max(1)
            && self.may_rest(w)
            && self.table.resident_singles() >= SINGLES * u64::from(self.reclaim.marks().high)
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
            let most = self.table.resident() / TRIALS / u64::from(UNIT);
            self.huge.trials = (self.huge.trials.max(1) * 2).min(most as u32);
        }
    }

    /// The unit of a cluster was touched and is mapped again.
    pub(super) fn pass_trial(&mut self, id: ClusterId) {
        if self.frames.end_rest(id).is_some() {
            self.huge.trials = 1;
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
            && !self.held
            && !self.is_draining()
            && !self.waiters.are_stalled()
            && w.excess() == 0
            && clusters.count(List::Empty) + clusters.count(List::Free) > 0
            && self.headroom(w) >= u64::from(self.reclaim.marks().reserve)
    }
}
