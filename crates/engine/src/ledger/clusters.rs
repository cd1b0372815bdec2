//! The clusters of an area: which process fills which.
//!
//! A cluster has at most one owner, the only process that takes free slots of it. A process takes a whole cluster at a
//! time, so that what it writes lies together and no two processes meet at a slot.

use std::ops::Range;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::layout::CLUSTER_SLOTS;
use super::mapping::Ledger;
use super::slots::number;
use super::tables::AreaTables;
use super::{AreaId, ClusterIndex, ProcId};

/// Clusters that were claimed before and have at most this many slots in use are refilled before the area grows.
/// Their free slots lie in runs of about eight, which take hardly more writes than an empty cluster.
const SPARSE: u32 = CLUSTER_SLOTS / 8;

impl AreaTables {
    /// Slots of a cluster that are in use.
    fn used_of(&self, cluster: u32) -> u32 {
        number(self.words32(self.used, self.clusters)[cluster as usize].load(Relaxed))
    }

    fn owner_of(&self, cluster: u32) -> &AtomicU32 {
        &self.words32(self.owners, self.clusters)[cluster as usize]
    }
}

impl Ledger {
    /// Takes an unowned cluster with free slots; other processes may use the rest of its slots. `None`: the area is
    /// full.
    ///
    /// Clusters that were claimed before come first, if they are empty or nearly. The first write to a place makes
    /// the file system, and often the layer below, allocate it, which is half as fast as the next write, and the file
    /// would take disk space from others. Random evictions leave clusters that are hardly ever empty: with this rule
    /// the file grows to less than three times the pages on it, instead of seven.
    pub fn claim_cluster(&self, area: AreaId, process: ProcId) -> Option<ClusterIndex> {
        let at = self.tables(area)?;
        let (again, never) = self.clusters_in_order(area, at);
        let mut sparse = None;
        for cluster in again.clone() {
            let used = at.used_of(cluster);
            if used == 0 && self.own(area, at, process, cluster) {
                return Some(ClusterIndex(cluster));
            }
            if used <= SPARSE && sparse.is_none() && at.owner_of(cluster).load(Relaxed) == 0 {
                sparse = Some(cluster);
            }
        }
        let empty = never.filter(|&cluster| at.used_of(cluster) == 0);
        let mut wanted = sparse.into_iter().chain(empty).chain(again);
        wanted
            .find(|&cluster| {
                at.used_of(cluster) < CLUSTER_SLOTS && self.own(area, at, process, cluster)
            })
            .map(ClusterIndex)
    }

    /// Takes an unowned, empty cluster; clusters that were claimed before come first. No other process can use its
    /// slots while it is owned.
    pub fn claim_empty_cluster(&self, area: AreaId, process: ProcId) -> Option<ClusterIndex> {
        let at = self.tables(area)?;
        let (again, never) = self.clusters_in_order(area, at);
        let mut all = again
            .chain(never)
            .filter(|&cluster| at.used_of(cluster) == 0);
        all.find(|&cluster| {
            if !self.own(area, at, process, cluster) {
                return false;
            }
            // Since the look, another process may have owned, filled and released it.
            let is_empty = at.used_of(cluster) == 0;
            if !is_empty {
                self.release_cluster(area, process, ClusterIndex(cluster));
            }
            is_empty
        })
        .map(ClusterIndex)
    }

    /// The clusters of an area: those claimed before, from the search position on, then the others.
    fn clusters_in_order(
        &self,
        area: AreaId,
        at: &AreaTables,
    ) -> (impl Iterator<Item = u32> + Clone, Range<u32>) {
        let words = &self.header().area[usize::from(area.0)];
        let reached = words.reached.load(Relaxed).min(at.clusters);
        let start = words.cursor.load(Relaxed).min(reached);
        ((start..reached).chain(0..start), reached..at.clusters)
    }

    /// Makes `process` the owner of a cluster that has none.
    fn own(&self, area: AreaId, at: &AreaTables, process: ProcId, cluster: u32) -> bool {
        let owner = at.owner_of(cluster);
        let own = process.index() as u32 + 1;
        let is_ours =
            owner.load(Relaxed) == 0 && owner.compare_exchange(0, own, SeqCst, Relaxed).is_ok();
        if is_ours {
            let words = &self.header().area[usize::from(area.0)];
            words.cursor.store(cluster + 1, Relaxed);
            words.reached.fetch_max(cluster + 1, Relaxed);
        }
        is_ours
    }

    /// Releases a cluster; its used slots stay used, its free slots become available to all. False if the process
    /// does not own it.
    pub fn release_cluster(&self, area: AreaId, process: ProcId, cluster: ClusterIndex) -> bool {
        let Some(at) = self.tables(area) else {
            return false;
        };
        let Some(owner) = at.words32(at.owners, at.clusters).get(cluster.0 as usize) else {
            return false;
        };
        owner
            .compare_exchange(process.index() as u32 + 1, 0, SeqCst, Relaxed)
            .is_ok()
    }
}
