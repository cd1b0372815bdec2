//! The frames of units: the counts of a cluster, and when its pages become single pages.

use super::clusters::{ClusterId, Clusters, List, UNIT};
use super::{FrameDesc, Frames, NOTHING, State};
use crate::units::{Frame, Vpn};

impl Frames {
    /// The clusters, for a look.
    pub fn clusters(&self) -> &Clusters {
        &self.clusters
    }

    /// Take a cluster from a list; of units, the oldest one. [`Frames::settle`] puts it back unused.
    pub fn take_cluster(&mut self, list: List) -> Option<ClusterId> {
        let id = self.clusters.oldest(list)?;
        self.clusters.take_off(id);
        Some(id)
    }

    /// A taken cluster has a fresh huge page, and is free.
    pub fn fill_cluster(&mut self, id: ClusterId) {
        self.end_all(id, State::Free);
        self.clusters.get_mut(id).zeroed = true;
    }

    /// A taken cluster was repaired: it is empty, and can take a huge page.
    pub fn repair_cluster(&mut self, id: ClusterId) {
        self.clusters.get_mut(id).is_thp = true;
        self.end_all(id, State::Empty);
    }

    /// Whether the memory of a cluster is one huge page, as far as is known.
    pub fn set_thp(&mut self, id: ClusterId, is_thp: bool) {
        self.clusters.get_mut(id).is_thp = is_thp;
    }

    /// The memory of a taken cluster is not all zeros.
    pub fn set_not_zeroed(&mut self, id: ClusterId) {
        self.clusters.get_mut(id).zeroed = false;
    }

    /// A taken cluster gets the pages of `unit`. `ahead`: a stream reads it. `leaves`: its memory is to be free as soon
    /// as it is on an area.
    pub fn begin_unit(&mut self, id: ClusterId, unit: Vpn, ahead: bool, leaves: bool) {
        let cluster = self.clusters.get_mut(id);
        (cluster.unit, cluster.zeroed) = (Some(unit), false);
        (cluster.ahead, cluster.leaves) = (ahead, leaves);
    }

    /// A frame with memory that is not needed, beside frames of its cluster that hold pages. Each is named once.
    pub fn take_stray(&mut self) -> Option<Frame> {
        while let Some(frame) = self.strays.pop() {
            let cluster = self.clusters.of(frame).map(|id| self.clusters.get(id));
            let beside = cluster.is_some_and(|cluster| cluster.held > 0);
            if beside && self.get(frame).state == State::Free {
                return Some(frame);
            }
        }
        None
    }

    /// Count a frame in its cluster, if it is in one. Returns whether it is on lists itself.
    pub(super) fn count_in_cluster(&mut self, frame: Frame, n: i16) -> bool {
        let Some(id) = self.clusters.of(frame) else {
            return true;
        };
        let state = self.get(frame).state;
        if state == State::Empty {
            self.clusters.count_bare(n.into());
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
        let cluster = self.clusters.get_mut(id);
        (cluster.unit, cluster.zeroed) = (None, false);
        (cluster.ahead, cluster.leaves) = (false, false);
        self.settle(id);
    }

    /// The pages of a unit are single pages from now on.
    pub fn split_unit(&mut self, id: ClusterId) {
        if self.clusters.get(id).unit.is_none() {
            return;
        }
        self.clusters.take_off(id);
        for frame in self.clusters.frames(id) {
            self.leave(frame);
        }
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

    /// As [`Frames::split_unit`], for the unit of a frame.
    pub fn single_out(&mut self, frame: Frame) {
        if let Some(id) = self.clusters.of(frame) {
            self.split_unit(id);
        }
    }

    /// A cluster that holds no page any more can be used again, or must be repaired first.
    pub fn settle(&mut self, id: ClusterId) {
        let cluster = self.clusters.get(id);
        if cluster.held > 0 {
            self.clusters.take_off(id);
            return;
        }
        let list = match (cluster.is_thp, u32::from(cluster.free)) {
            (true, 0) => List::Empty,
            (true, UNIT) => List::Free,
            _ => List::Fragmented,
        };
        self.clusters.put(id, list);
    }
}
