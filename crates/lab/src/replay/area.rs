//! The swap area of the simulated machine: as large as needed; only used parts cost memory.

use std::collections::BTreeSet;

use foreswap_core::units::{LEAF_PAGES, Slot};

/// Slots of the area (256 GiB).
pub const SLOTS: u32 = 1 << 26;
const CLUSTERS: u32 = SLOTS / LEAF_PAGES as u32;

#[derive(Clone)]
struct Cluster {
    used: u32,
    counts: [u8; LEAF_PAGES],
    digests: [u64; LEAF_PAGES],
    contents: [u64; LEAF_PAGES],
}

/// The slots.
#[derive(Default)]
pub struct Area {
    clusters: Vec<Cluster>,
    /// Used clusters that are empty now, and clusters with free slots, all unclaimed.
    empty: BTreeSet<u32>,
    partly: BTreeSet<u32>,
    claimed: BTreeSet<u32>,
    /// Slots in use.
    pub used: u64,
}

impl Area {
    fn cluster(&mut self, slot: Slot) -> (&mut Cluster, usize) {
        let cluster = slot.cluster() as usize;
        (
            &mut self.clusters[cluster],
            slot.index as usize % LEAF_PAGES,
        )
    }

    fn at(&self, slot: Slot) -> Option<(&Cluster, usize)> {
        let cluster = self.clusters.get(slot.cluster() as usize)?;
        Some((cluster, slot.index as usize % LEAF_PAGES))
    }

    /// An empty cluster if there is one, else one with a free slot.
    pub fn claim(&mut self) -> Option<u32> {
        self.claim_empty().or_else(|| {
            let cluster = self.partly.pop_first()?;
            self.claimed.insert(cluster);
            Some(cluster)
        })
    }

    /// An empty cluster.
    pub fn claim_empty(&mut self) -> Option<u32> {
        let cluster = self.empty.pop_first().or_else(|| {
            let next = self.clusters.len() as u32;
            (next < CLUSTERS).then(|| {
                self.clusters.push(Cluster {
                    used: 0,
                    counts: [0; LEAF_PAGES],
                    digests: [0; LEAF_PAGES],
                    contents: [0; LEAF_PAGES],
                });
                next
            })
        })?;
        self.claimed.insert(cluster);
        Some(cluster)
    }

    /// `cluster` is unclaimed from now on.
    pub fn release(&mut self, cluster: u32) {
        self.claimed.remove(&cluster);
        self.sort_in(cluster);
    }

    /// An unclaimed cluster has changed.
    fn sort_in(&mut self, cluster: u32) {
        self.empty.remove(&cluster);
        self.partly.remove(&cluster);
        match self.cluster_used(cluster) {
            0 => self.empty.insert(cluster),
            used if used < LEAF_PAGES as u32 => self.partly.insert(cluster),
            _ => false,
        };
    }

    fn cluster_used(&self, cluster: u32) -> u32 {
        self.clusters.get(cluster as usize).map_or(0, |c| c.used)
    }

    /// Use count of a slot.
    pub fn count(&self, slot: Slot) -> u32 {
        self.at(slot)
            .map_or(0, |(cluster, at)| cluster.counts[at].into())
    }

    /// Take a free slot.
    pub fn get(&mut self, slot: Slot) {
        let (cluster, at) = self.cluster(slot);
        cluster.counts[at] = 1;
        cluster.used += 1;
        self.used += 1;
    }

    /// Drop the reference.
    pub fn put(&mut self, slot: Slot) {
        let (cluster, at) = self.cluster(slot);
        if cluster.counts[at] == 0 {
            return;
        }
        cluster.counts[at] = 0;
        cluster.used -= 1;
        self.used -= 1;
        let number = slot.cluster();
        if !self.claimed.contains(&number) {
            self.sort_in(number);
        }
    }

    /// The core's digest of the slot.
    pub fn digest(&self, slot: Slot) -> u64 {
        self.at(slot).map_or(0, |(cluster, at)| cluster.digests[at])
    }

    /// Sets it.
    pub fn set_digest(&mut self, slot: Slot, digest: u64) {
        let (cluster, at) = self.cluster(slot);
        cluster.digests[at] = digest;
    }

    /// The content written there.
    pub fn content(&self, slot: Slot) -> u64 {
        self.at(slot)
            .map_or(0, |(cluster, at)| cluster.contents[at])
    }

    /// Sets it.
    pub fn set_content(&mut self, slot: Slot, content: u64) {
        let (cluster, at) = self.cluster(slot);
        cluster.contents[at] = content;
    }
}
