//! The swap maps: the owner of each cluster, and the number and identity of the processes that use a slot.
//!
//! A slot's use count is the number of processes whose reference bit for it is set. It is kept beside the bits, and a
//! put sees at once whether the slot is free. Each operation has this order: write the intent (slots of one cluster)
//! into the acting process' record, change the slots' counts, change the bits, change the cluster's count for slots
//! that became used or free, clear the intent.
//!
//! If the process dies in between, the supervisor recounts: it reads the count (with its version), checks that no
//! living process has an intent on the same slot, counts the bits, and replaces the count only if it has not changed
//! since. Counts change before bits: an operation that the check missed has changed the version, or has not touched a
//! bit yet. A cluster's count changes after the slots' counts on which it is based. There the check comes last: it
//! sees any operation whose effect was counted, or the version has changed.
//!
//! A process runs one slot operation at a time (its pager's); different processes run concurrently.

use std::ops::Range;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::CLUSTER_SLOTS;
use super::mapping::Ledger;
use super::tables::AreaTables;
use super::{AreaId, ClusterIndex, ProcId, SlotIndex};

/// Clusters that were claimed before and have at most this many slots in use are refilled before the area grows.
/// Their free slots lie in runs of about eight, which take hardly more writes than an empty cluster.
const SPARSE: u32 = CLUSTER_SLOTS / 8;

/// Words of a cluster's slot mask.
const CLUSTER_WORDS: usize = CLUSTER_SLOTS as usize / 64;

/// The result of giving a slot back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// No process uses it any more: its cluster's owner may fill it again.
    Freed,
    /// Other processes still use it.
    StillUsed,
    /// The process held no reference; nothing was changed.
    NotHeld,
}

const INTENT: u64 = 1 << 63;

/// Consecutive slots of one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    area: AreaId,
    first: SlotIndex,
    /// 1 to 512.
    count: u32,
}

impl Run {
    fn one(area: AreaId, slot: SlotIndex) -> Self {
        let (first, count) = (slot, 1);
        Self { area, first, count }
    }

    fn slots(self) -> impl Iterator<Item = SlotIndex> {
        (self.first.0..self.first.0 + self.count).map(SlotIndex)
    }

    fn cluster(self) -> ClusterIndex {
        self.first.cluster()
    }

    fn has(self, area: AreaId, slot: SlotIndex) -> bool {
        let within = slot.0.checked_sub(self.first.0);
        area == self.area && within.is_some_and(|within| within < self.count)
    }

    /// The word of an intent on these slots.
    fn intent(self) -> u64 {
        let more = u64::from(self.count - 1);
        INTENT | more << 40 | u64::from(self.area.0) << 32 | u64::from(self.first.0)
    }

    fn of_intent(word: u64) -> Option<Self> {
        (word & INTENT != 0).then_some(Self {
            area: AreaId((word >> 32) as u8),
            first: SlotIndex(word as u32),
            count: ((word >> 40) as u32 & (CLUSTER_SLOTS - 1)) + 1,
        })
    }

    /// The words of a bitmap that cover the run: the index of each, and a bit for each of the run's slots in it.
    fn words(self) -> impl Iterator<Item = (usize, u64)> {
        let (start, end) = (self.first.0, self.first.0 + self.count);
        (start / 64..end.div_ceil(64)).map(move |word| {
            let from = start.saturating_sub(word * 64);
            let to = (end - word * 64).min(64);
            (word as usize, u64::MAX >> (64 - (to - from)) << from)
        })
    }
}

/// The count: 16 bits below a version of 16 bits. They have room for all processes.
fn number(word: u32) -> u32 {
    word & 0xffff
}

fn with_number(word: u32, number: u32) -> u32 {
    (word & 0xffff_0000).wrapping_add(0x1_0000) | (number & 0xffff)
}

/// Adds to a versioned count, whose 16 bits have room for `more`; returns the count before.
fn add(word: &AtomicU32, more: u32) -> u32 {
    number(word.fetch_add(0x1_0000 + more, SeqCst))
}

/// Subtracts one from a versioned count; returns the count before.
fn take_off(word: &AtomicU32) -> u32 {
    let change = |now: u32| Some(with_number(now, number(now).saturating_sub(1)));
    number(word.fetch_update(SeqCst, SeqCst, change).unwrap_or(0))
}

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
    /// The slots of an area; 0 if there is no such area.
    pub fn area_slots(&self, area: AreaId) -> u32 {
        self.tables(area).map_or(0, |at| at.slots)
    }

    /// Slots in use, summed over the clusters: for messages and occasional decisions, not per fault.
    pub fn area_used(&self, area: AreaId) -> u64 {
        let Some(at) = self.tables(area) else {
            return 0;
        };
        let used = at.words32(at.used, at.clusters);
        used.iter()
            .map(|word| u64::from(number(word.load(Relaxed))))
            .sum()
    }

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

    /// Slots in use in a cluster, by any process.
    pub fn cluster_used(&self, area: AreaId, cluster: ClusterIndex) -> u32 {
        let Some(at) = self.tables(area) else {
            return 0;
        };
        let used = at.words32(at.used, at.clusters);
        used.get(cluster.0 as usize)
            .map_or(0, |word| number(word.load(SeqCst)).min(CLUSTER_SLOTS))
    }

    /// Takes a reference for `process`: either the first (a free slot of a cluster it owns) or one more on a slot
    /// that another process is known to hold. False, and nothing changed, if it holds one already or there is no such
    /// slot.
    pub fn slot_get(&self, process: ProcId, area: AreaId, slot: SlotIndex) -> bool {
        let taken = self.reference(process, process, Run::one(area, slot));
        taken.is_some()
    }

    /// As [`Ledger::slot_get`], for `count` slots of one cluster from `first` on in one step. Returns how many of
    /// them were free. `None`, and nothing changed, also if they are in more than one cluster.
    pub fn slots_get(
        &self,
        process: ProcId,
        area: AreaId,
        first: SlotIndex,
        count: u32,
    ) -> Option<u32> {
        let in_cluster = first.0 % CLUSTER_SLOTS;
        if count == 0 || count > CLUSTER_SLOTS - in_cluster {
            return None;
        }
        self.reference(process, process, Run { area, first, count })
    }

    /// Takes a reference on a slot that `parent` holds, for its coming `child`. False if the child has it already, or
    /// the parent does not.
    pub fn share(&self, parent: ProcId, child: ProcId, area: AreaId, slot: SlotIndex) -> bool {
        let taken = || self.reference(parent, child, Run::one(area, slot));
        self.slot_held(parent, area, slot) && taken().is_some()
    }

    /// Takes references. Returns how many of the slots were free; `None`, and nothing changed, if `process` holds one
    /// already or there are no such slots.
    fn reference(&self, by: ProcId, process: ProcId, run: Run) -> Option<u32> {
        // Areas consist of whole clusters: the area has all slots of the run if it has the first.
        let tables = self.tables(run.area);
        let at = tables.filter(|at| run.first.0 < at.slots)?;
        let references = self.references(at, process);
        let is_held = |(word, bits): (usize, u64)| references[word].load(SeqCst) & bits != 0;
        if run.words().any(is_held) {
            return None;
        }
        let cluster = run.cluster().0 as usize;
        let acting = self.record(by);
        acting.intent.store(run.intent(), SeqCst);
        // Before the slots' bits, for a clean-up that relies on it.
        let (touched, bit) = (
            &self.touched(at, process)[cluster / 64],
            1 << (cluster % 64),
        );
        if touched.load(SeqCst) & bit == 0 {
            touched.fetch_or(bit, SeqCst);
        }
        let uses = at.words32(at.uses, at.slots);
        let uses = &uses[run.first.0 as usize..][..run.count as usize];
        let were_free = uses.iter().filter(|word| add(word, 1) == 0).count() as u32;
        for (word, bits) in run.words() {
            references[word].fetch_or(bits, SeqCst);
        }
        if were_free > 0 {
            add(&at.words32(at.used, at.clusters)[cluster], were_free);
        }
        acting.intent.store(0, SeqCst);
        Some(were_free)
    }

    /// Gives the reference of `process` back.
    pub fn slot_put(&self, process: ProcId, area: AreaId, slot: SlotIndex) -> Put {
        let Some(at) = self.tables(area).filter(|at| slot.0 < at.slots) else {
            return Put::NotHeld;
        };
        if !self.slot_held(process, area, slot) {
            return Put::NotHeld;
        }
        let acting = self.record(process);
        acting.intent.store(Run::one(area, slot).intent(), SeqCst);
        let before = take_off(&at.words32(at.uses, at.slots)[slot.0 as usize]);
        self.references(at, process)[slot.0 as usize / 64].fetch_and(!(1 << (slot.0 % 64)), SeqCst);
        if before == 1 {
            take_off(&at.words32(at.used, at.clusters)[slot.cluster().0 as usize]);
        }
        acting.intent.store(0, SeqCst);
        if before <= 1 {
            self.free_bytes(area, slot);
            Put::Freed
        } else {
            Put::StillUsed
        }
    }

    /// Processes that use a slot.
    pub fn slot_count(&self, area: AreaId, slot: SlotIndex) -> u32 {
        self.uses(area)
            .get(slot.0 as usize)
            .map_or(0, |word| number(word.load(SeqCst)))
    }

    /// Whether `process` holds a reference on a slot.
    pub fn slot_held(&self, process: ProcId, area: AreaId, slot: SlotIndex) -> bool {
        let Some(at) = self.tables(area).filter(|at| slot.0 < at.slots) else {
            return false;
        };
        let word = &self.references(at, process)[slot.0 as usize / 64];
        word.load(SeqCst) & 1 << (slot.0 % 64) != 0
    }

    /// Calls `each` with every slot that `process` holds in an area, in order.
    pub fn slots_held(&self, process: ProcId, area: AreaId, mut each: impl FnMut(SlotIndex)) {
        let Some(at) = self.tables(area) else {
            return;
        };
        let references = self.references(at, process);
        for (group, touched) in self.touched(at, process).iter().enumerate() {
            for cluster in bits(touched.load(SeqCst)) {
                let first = (group * 64 + cluster as usize) * CLUSTER_WORDS;
                let words = references.iter().enumerate().skip(first);
                for (at, word) in words.take(CLUSTER_WORDS) {
                    for bit in bits(word.load(SeqCst)) {
                        each(SlotIndex(at as u32 * 64 + bit));
                    }
                }
            }
        }
    }

    /// How many slots of an area `process` holds.
    pub fn slots_held_count(&self, process: ProcId, area: AreaId) -> u64 {
        let mut count = 0;
        self.slots_held(process, area, |_| count += 1);
        count
    }

    /// The checksum of the page in a slot.
    pub fn digest(&self, area: AreaId, slot: SlotIndex) -> u64 {
        let Some(at) = self.tables(area).filter(|at| slot.0 < at.slots) else {
            return 0;
        };
        at.words64(at.digests, u64::from(slot.0), 1)[0].load(Relaxed)
    }

    /// Sets the checksum of the page in a slot; by the process that fills it, before any process can read it.
    pub fn set_digest(&self, area: AreaId, slot: SlotIndex, digest: u64) {
        if let Some(at) = self.tables(area).filter(|at| slot.0 < at.slots) {
            at.words64(at.digests, u64::from(slot.0), 1)[0].store(digest, Relaxed);
        }
    }

    fn uses(&self, area: AreaId) -> &[AtomicU32] {
        self.tables(area)
            .map_or(&[], |at| at.words32(at.uses, at.slots))
    }

    fn touched<'a>(&self, at: &'a AreaTables, process: ProcId) -> &'a [AtomicU64] {
        let skip = process.index() as u64 * at.touched_words;
        at.words64(at.touched, skip, at.touched_words)
    }

    fn references<'a>(&self, at: &'a AreaTables, process: ProcId) -> &'a [AtomicU64] {
        let skip = process.index() as u64 * at.reference_words;
        at.words64(at.references, skip, at.reference_words)
    }

    /// Completes the slot operation of a dead process. False if a living process was in the way.
    pub(super) fn settle_slots(&self, process: ProcId) -> bool {
        let record = self.record(process);
        if let Some(run) = Run::of_intent(record.intent.load(SeqCst)) {
            // Clear its own references there first: a reference that it was giving back would be counted again,
            // although the slot is free and another process may be about to take it.
            if let Some(at) = self.tables(run.area) {
                let references = self.references(at, process);
                for (word, bits) in run.words() {
                    references[word].fetch_and(!bits, SeqCst);
                }
            }
            let done = (0..1000).any(|_| {
                let done = run.slots().all(|slot| self.recount_slot(run.area, slot))
                    && self.recount_cluster(run.area, run.cluster());
                if !done {
                    rustix::thread::sched_yield();
                }
                done
            });
            if !done {
                return false;
            }
            for slot in run.slots() {
                self.free_bytes(run.area, slot);
            }
            record.intent.store(0, SeqCst);
        }
        true
    }

    fn living_intent(&self, concerned: impl Fn(Run) -> bool) -> bool {
        self.records_in_use().any(|other| {
            let run = Run::of_intent(self.record(other).intent.load(SeqCst));
            self.may_act(other) && run.is_some_and(&concerned)
        })
    }

    fn recount_slot(&self, area: AreaId, slot: SlotIndex) -> bool {
        let uses = self.uses(area);
        let Some(word) = uses.get(slot.0 as usize) else {
            return true;
        };
        let before = word.load(SeqCst);
        if self.living_intent(|run| run.has(area, slot)) {
            return false;
        }
        let holders = self
            .records_in_use()
            .filter(|&p| self.slot_held(p, area, slot))
            .count();
        word.compare_exchange(before, with_number(before, holders as u32), SeqCst, SeqCst)
            .is_ok()
    }

    fn recount_cluster(&self, area: AreaId, cluster: ClusterIndex) -> bool {
        let Some(at) = self.tables(area) else {
            return true;
        };
        let Some(word) = at.words32(at.used, at.clusters).get(cluster.0 as usize) else {
            return true;
        };
        let before = word.load(SeqCst);
        let uses = &at.words32(at.uses, at.slots)[cluster.first_slot().0 as usize..];
        let uses = uses.iter().take(CLUSTER_SLOTS as usize);
        let used = uses.filter(|word| number(word.load(SeqCst)) > 0).count() as u32;
        if self.living_intent(|run| (run.area, run.cluster()) == (area, cluster)) {
            return false;
        }
        word.compare_exchange(before, with_number(before, used), SeqCst, SeqCst)
            .is_ok()
    }

    /// Drops every reference and cluster of a dead process.
    pub(super) fn drop_holdings(&self, process: ProcId) {
        for area in self.areas() {
            let Some(at) = self.tables(area) else {
                continue;
            };
            self.slots_held(process, area, |slot| {
                self.slot_put(process, area, slot);
            });
            for word in self.touched(at, process) {
                word.store(0, Relaxed);
            }
            let skip = process.index() as u64 * at.reference_words * 8;
            at.punch(at.references + skip, at.reference_words);
            for owner in at.words32(at.owners, at.clusters) {
                let _ = owner.compare_exchange(process.index() as u32 + 1, 0, SeqCst, Relaxed);
            }
        }
    }
}

/// The positions of the set bits.
pub(super) fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros())?;
        word &= word - 1;
        Some(bit)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    #[test]
    fn an_intent_names_its_slots() {
        let last = AreaId(7);
        for (area, first, count) in [(0, 0, 1), (7, 0xfff_fe00, 512), (3, 512 * 9 + 511, 1)] {
            let (area, first) = (AreaId(area), SlotIndex(first));
            let run = Run { area, first, count };
            assert_eq!(Run::of_intent(run.intent()), Some(run));
            assert_eq!(run.slots().count(), count as usize);
            assert!(run.slots().all(|slot| run.has(area, slot)));
            let after = SlotIndex(first.0 + count);
            assert!(!run.has(area, after) && !run.has(AreaId(last.0 - area.0), first));
        }
        assert_eq!(Run::of_intent(0), None);
    }

    /// Its process was killed between the count and the bit.
    #[test]
    fn a_slot_that_was_being_given_back_is_not_counted_again() {
        let ledger = Ledger::create(&spec(100, &[CLUSTER_SLOTS])).expect("a ledger");
        let process = ledger.reserve(None).expect("a record");
        assert!(ledger.connect(process, 1));
        let (area, slot) = (AreaId(0), SlotIndex(7));
        assert!(ledger.slot_get(process, area, slot));
        let intent = &ledger.record(process).intent;
        intent.store(Run::one(area, slot).intent(), SeqCst);
        let at = ledger.tables(area).expect("its tables");
        assert_eq!(take_off(&at.words32(at.uses, at.slots)[7]), 1);
        ledger.mark_dead(process);
        assert!(ledger.settle_slots(process));
        assert_eq!(ledger.slot_count(area, slot), 0);
        assert!(!ledger.slot_held(process, area, slot));
        assert_eq!(ledger.cluster_used(area, ClusterIndex(0)), 0);
    }

    #[test]
    fn a_run_lies_in_the_words_of_its_slots() {
        for first in 0..CLUSTER_SLOTS {
            for count in 1..=CLUSTER_SLOTS - first {
                let (area, first) = (AreaId(0), SlotIndex(first));
                let run = Run { area, first, count };
                let positions = run.words().flat_map(|(word, set)| {
                    bits(set).map(move |bit| SlotIndex(word as u32 * 64 + bit))
                });
                assert!(positions.eq(run.slots()), "{run:?}");
            }
        }
    }
}
