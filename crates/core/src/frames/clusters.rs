//! Frames that hold huge pages: clusters of 512, aligned to 2 MiB.
//!
//! A page table left by small pages splits a huge page that is moved there. Small and huge pages therefore never share
//! a place. Clusters are for *units* only: the 512 aligned pages of one leaf that are evicted and read together. If
//! small pages had to be taken from a cluster, or its memory is not one huge page, it is *fragmented*: its memory is
//! used up as it is, and the cluster is repaired when it is empty.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::units::{Frame, LEAF_PAGES, Vpn};

/// Pages of a unit.
pub const UNIT: u32 = LEAF_PAGES as u32;

/// Identifies a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClusterId(pub u32);

/// The list that a cluster is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum List {
    /// None: taken, in flight, or its frames are single pages.
    #[default]
    None,
    /// No memory; a huge page may be moved there.
    Empty,
    /// A huge page that is not needed.
    Free,
    /// A unit that is on an area as well.
    Clean,
    /// As [`List::Clean`]; a stream read it and has not used it yet.
    Ahead,
    /// A unit of which some pages must be written.
    Dirty,
    /// Its memory is not needed, but is not one whole huge page.
    Fragmented,
}

/// One cluster of frames.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster {
    /// The first page of the unit whose content its frames hold, in order, if they do.
    pub unit: Option<Vpn>,
    /// Its memory, if there is any, is one huge page, as far as is known.
    pub is_thp: bool,
    /// A stream read it, and is to use it.
    pub ahead: bool,
    /// Its memory is to be free as soon as it is on an area.
    pub leaves: bool,
    /// Its memory is all zeros.
    pub zeroed: bool,
    /// Its list.
    pub list: List,
    /// Frames that hold a page.
    pub held: u16,
    /// Of those, the ones in flight.
    pub busy: u16,
    /// Of those, the dirty ones.
    pub dirty: u16,
    /// Frames with memory that is not needed.
    pub free: u16,
    /// Number of its last entry on its list.
    arrival: u32,
}

/// All clusters.
#[derive(Default)]
pub struct Clusters {
    first: u32,
    all: Vec<Cluster>,
    empty: Vec<ClusterId>,
    free: Vec<ClusterId>,
    ragged: Vec<ClusterId>,
    clean: VecDeque<(ClusterId, u32)>,
    ahead: VecDeque<(ClusterId, u32)>,
    dirty: VecDeque<(ClusterId, u32)>,
    counts: [u32; 7],
    /// Frames without memory.
    bare: u32,
}

impl Clusters {
    /// `count` empty clusters, whose first frame is `first`.
    pub fn new(first: u32, count: u32) -> Self {
        let mut clusters = Clusters {
            first,
            all: alloc::vec![Cluster { is_thp: true, ..Cluster::default() }; count as usize],
            bare: count * UNIT,
            ..Clusters::default()
        };
        for id in (0..count).rev() {
            clusters.put(ClusterId(id), List::Empty);
        }
        clusters
    }

    /// The cluster of a frame.
    pub fn of(&self, frame: Frame) -> Option<ClusterId> {
        let at = frame.0.checked_sub(self.first)?;
        Some(ClusterId(at / UNIT))
    }

    /// Its first frame.
    pub fn first(&self, id: ClusterId) -> Frame {
        Frame(self.first + id.0 * UNIT)
    }

    /// Its frames.
    pub fn frames(&self, id: ClusterId) -> impl DoubleEndedIterator<Item = Frame> + use<> {
        let first = self.first(id);
        (0..UNIT).map(move |n| first.plus(n))
    }

    /// Its state.
    pub fn get(&self, id: ClusterId) -> &Cluster {
        &self.all[id.0 as usize]
    }

    /// Frames without memory.
    pub fn bare(&self) -> u32 {
        self.bare
    }

    /// No cluster has memory.
    pub fn are_bare(&self) -> bool {
        self.bare == self.number() * UNIT
    }

    /// `n` more frames are without memory.
    pub(super) fn count_bare(&mut self, n: i32) {
        self.bare = self.bare.wrapping_add_signed(n);
    }

    /// As [`Clusters::get`], to change anything but its list.
    pub(super) fn get_mut(&mut self, id: ClusterId) -> &mut Cluster {
        &mut self.all[id.0 as usize]
    }

    /// Whether a unit is being read or written.
    pub fn any_busy(&self) -> bool {
        self.all.iter().any(|cluster| cluster.busy > 0)
    }

    /// How many are on a list.
    pub fn count(&self, list: List) -> u32 {
        self.counts[list as usize]
    }

    /// How many there are.
    pub fn number(&self) -> u32 {
        self.all.len() as u32
    }

    /// Put a cluster on a list; it leaves its old one.
    pub(super) fn put(&mut self, id: ClusterId, list: List) {
        self.take_off(id);
        let cluster = &mut self.all[id.0 as usize];
        cluster.list = list;
        cluster.arrival = cluster.arrival.wrapping_add(1);
        let entry = (id, cluster.arrival);
        self.counts[list as usize] += u32::from(list != List::None);
        match list {
            List::None => {}
            List::Empty => self.empty.push(id),
            List::Free => self.free.push(id),
            List::Fragmented => self.ragged.push(id),
            List::Clean => self.clean.push_back(entry),
            List::Ahead => self.ahead.push_back(entry),
            List::Dirty => self.dirty.push_back(entry),
        }
    }

    /// Take a cluster off its list.
    pub(super) fn take_off(&mut self, id: ClusterId) {
        let cluster = &mut self.all[id.0 as usize];
        let list = core::mem::take(&mut cluster.list);
        if list == List::None {
            return;
        }
        cluster.arrival = cluster.arrival.wrapping_add(1);
        self.counts[list as usize] -= 1;
        let off = |ids: &mut Vec<ClusterId>| {
            if let Some(at) = ids.iter().rposition(|&other| other == id) {
                ids.remove(at);
            }
        };
        match list {
            List::None => {}
            List::Empty => off(&mut self.empty),
            List::Free => off(&mut self.free),
            List::Fragmented => off(&mut self.ragged),
            List::Clean => drop_stale(&mut self.clean, &self.all),
            List::Ahead => drop_stale(&mut self.ahead, &self.all),
            List::Dirty => drop_stale(&mut self.dirty, &self.all),
        }
    }

    /// The cluster that is to be taken next from a list: of units, the oldest one. It stays on its list.
    pub fn oldest(&self, list: List) -> Option<ClusterId> {
        let queue = match list {
            List::None => return None,
            List::Empty => return self.empty.last().copied(),
            List::Free => return self.free.last().copied(),
            List::Fragmented => return self.ragged.last().copied(),
            List::Clean => &self.clean,
            List::Ahead => &self.ahead,
            List::Dirty => &self.dirty,
        };
        queue.front().map(|&(id, _)| id)
    }

    /// The newest of the units that streams are to use.
    pub fn newest_ahead(&self) -> Option<ClusterId> {
        self.ahead.back().map(|&(id, _)| id)
    }
}

/// The first and the last entry of a queue are of clusters that are on it: entries of other arrivals go.
fn drop_stale(queue: &mut VecDeque<(ClusterId, u32)>, all: &[Cluster]) {
    let stale = |&(id, arrival): &(ClusterId, u32)| all[id.0 as usize].arrival != arrival;
    while queue.front().is_some_and(stale) {
        queue.pop_front();
    }
    while queue.back().is_some_and(stale) {
        queue.pop_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(clusters: &mut Clusters, list: List) -> Option<ClusterId> {
        let id = clusters.oldest(list)?;
        clusters.take_off(id);
        Some(id)
    }

    #[test]
    fn clusters_stand_on_one_list_and_units_leave_in_order() {
        let mut clusters = Clusters::new(1024, 4);
        assert_eq!(clusters.of(Frame(1023)), None);
        assert_eq!(clusters.of(Frame(1024 + 513)), Some(ClusterId(1)));
        assert_eq!(clusters.frames(ClusterId(1)).next(), Some(Frame(1536)));
        let ids: Vec<_> = core::iter::from_fn(|| take(&mut clusters, List::Empty)).collect();
        assert_eq!(ids, [0, 1, 2, 3].map(ClusterId));
        for &id in &ids {
            clusters.put(id, List::Clean);
        }
        clusters.put(ids[0], List::Dirty);
        assert_eq!(clusters.count(List::Clean), 3);
        assert_eq!(take(&mut clusters, List::Clean), Some(ids[1]));
        clusters.put(ids[1], List::Clean);
        assert_eq!(clusters.oldest(List::Clean), Some(ids[2]));
        clusters.take_off(ids[2]);
        assert_eq!(take(&mut clusters, List::Clean), Some(ids[3]));
        assert_eq!(take(&mut clusters, List::Clean), Some(ids[1]));
        assert_eq!(take(&mut clusters, List::Clean), None);
        assert_eq!(take(&mut clusters, List::Dirty), Some(ids[0]));
        assert_eq!(clusters.count(List::Dirty), 0);
    }
}
