//! The frames of units: the counts of a cluster, and when its pages become single pages.

use super::clusters::{ClusterId, List, UNIT};
use super::{FrameDesc, Frames, NOTHING, State};
use crate::units::{Frame, Vpn};

impl Frames {
    /// Count a frame in its cluster, if it is in one. Returns whether it is on lists itself.
    pub(super) fn count_in_cluster(&mut self, frame: Frame, n: i16) -> bool {
        let Some(id) = self.clusters.of(frame) else {
            return true;
        };
        let state = self.get(frame).state;
        if state == State::Empty {
            self.clusters.bare = self.clusters.bare.wrapping_add_signed(n.into());
        }
        let cluster = self.clusters.get_mut(id);
        let add = |count: &mut u16| *count = count.wrapping_add_signed(n);
        match state {
            State::Empty => {}
            State::Free => add(&mut cluster.free),
            State::Reading | State::Writing => add(&mut cluster.busy),
            State::Dirty => add(&mut cluster.dirty),
            State::Clean => {}
        }
        if !matches!(state, State::Empty | State::Free) {
            add(&mut cluster.held);
        }
        cluster.unit.is_none()
    }

    /// The unit that a frame belongs to.
    pub fn unit_of(&self, frame: Frame) -> Option<(ClusterId, Vpn)> {
        let id = self.clusters.of(frame)?;
        Some((id, self.clusters.get(id).unit?))
    }

    /// Put the cluster of an intact unit on the list that its frames' states require.
    pub fn file(&mut self, id: ClusterId) {
        let cluster = self.clusters.get(id);
        let list = if cluster.busy > 0 || cluster.unit.is_none() {
            List::None
        } else if cluster.dirty > 0 {
            List::Dirty
        } else if cluster.ahead {
            List::Ahead
        } else {
            List::Clean
        };
        self.clusters.put(id, list);
    }

    /// All frames of a cluster, taken or a unit, get the same state: [`State::Empty`] or [`State::Free`].
    pub fn end_all(&mut self, id: ClusterId, state: State) {
        for frame in self.clusters.frames(id) {
            self.leave(frame);
            *self.get_mut(frame) = FrameDesc { state, ..NOTHING };
            self.enter(frame);
        }
        self.clusters.end_rest(id);
        let cluster = self.clusters.get_mut(id);
        (cluster.unit, cluster.zeroed) = (None, false);
        (cluster.ahead, cluster.leaves) = (false, false);
        self.settle(id);
    }

    /// The pages of a unit are single pages from now on.
    pub fn disband(&mut self, id: ClusterId) {
        if self.clusters.get(id).unit.is_none() {
            return;
        }
        self.clusters.take_off(id);
        for frame in self.clusters.frames(id) {
            self.leave(frame);
        }
        self.clusters.end_rest(id);
        let cluster = self.clusters.get_mut(id);
        (cluster.unit, cluster.ahead) = (None, false);
        let leaves = core::mem::take(&mut cluster.leaves);
        for frame in self.clusters.frames(id) {
            let desc = self.get_mut(frame);
            desc.leaves |= leaves;
            if desc.wanted && matches!(desc.state, State::Clean | State::Dirty) {
                self.orphans.push(frame);
            }
            self.enter(frame);
        }
    }

    /// As [`Frames::disband`], for the unit of a frame.
    pub fn single_out(&mut self, frame: Frame) {
        if let Some(id) = self.clusters.of(frame) {
            self.disband(id);
        }
    }

    /// A cluster that holds no page any more can be used again, or must be repaired first.
    pub fn settle(&mut self, id: ClusterId) {
        let cluster = self.clusters.get(id);
        if cluster.held > 0 {
            self.clusters.take_off(id);
            return;
        }
        let list = match (cluster.whole, u32::from(cluster.free)) {
            (true, 0) => List::Empty,
            (true, UNIT) => List::Free,
            _ => List::Fragmented,
        };
        self.clusters.put(id, list);
    }
}
