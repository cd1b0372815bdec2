//! The swap maps: the number and identity of the processes that use a slot. `clusters` has the owners of clusters.
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

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::layout::CLUSTER_SLOTS;
use super::mapping::Ledger;
use super::part::{Part, Parts, bits};
use super::tables::AreaTables;
use super::{AreaId, ClusterIndex, ProcId, SlotIndex};

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

/// The count: 16 bits below a version of 16 bits. They have room for all processes.
pub(super) fn number(word: u32) -> u32 {
    word & 0xffff
}

fn with_number(word: u32, number: u32) -> u32 {
    (word & 0xffff_0000).wrapping_add(0x1_0000) | (number & 0xffff)
}

/// Adds to a versioned count, whose 16 bits have room for `more`; returns the count before.
fn add(word: &AtomicU32, more: u32) -> u32 {
    number(word.fetch_add(0x1_0000 + more, SeqCst))
}

/// Subtracts from a versioned count; returns the count before.
fn take_off(word: &AtomicU32, less: u32) -> u32 {
    let change = |now: u32| Some(with_number(now, number(now).saturating_sub(less)));
    number(word.fetch_update(SeqCst, SeqCst, change).unwrap_or(0))
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
        let taken = self.reference(process, process, &Part::one(area, slot));
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
        self.reference(process, process, &Part::run(area, first, count)?)
    }

    /// Takes references on slots that `parent` holds, for its coming `child`, in one step for each cluster. A slot is
    /// left out if the child has it already, or the parent does not. Returns the number of references taken.
    pub fn share(
        &self,
        parent: ProcId,
        child: ProcId,
        slots: impl Iterator<Item = (AreaId, SlotIndex)>,
    ) -> u32 {
        let mut parts = Parts::default();
        for (area, slot) in slots {
            if slot.0 < self.area_slots(area) {
                parts.add(area, slot);
            }
        }
        let take = |wanted: &Part| {
            let at = self.tables(wanted.area)?;
            let (held, has) = (self.references(at, parent), self.references(at, child));
            let part =
                wanted.map(|word, bits| bits & held[word].load(SeqCst) & !has[word].load(SeqCst));
            self.reference(parent, child, &part)?;
            Some(part.count())
        };
        parts.iter().filter_map(take).sum()
    }

    /// Takes references. Returns how many of the slots were free; `None`, and nothing changed, if `process` holds one
    /// already or there are no such slots.
    fn reference(&self, by: ProcId, process: ProcId, part: &Part) -> Option<u32> {
        // Areas consist of whole clusters.
        let tables = self.tables(part.area);
        let at = tables.filter(|at| part.cluster.0 < at.clusters)?;
        let references = self.references(at, process);
        let held = part.map(|word, bits| bits & references[word].load(SeqCst));
        if held.count() > 0 {
            return None;
        }
        let cluster = part.cluster.0 as usize;
        let acting = self.record(by);
        acting.intent.store(part.intent(), SeqCst);
        // Before the slots' bits, for a clean-up that relies on it.
        let (touched, bit) = (
            &self.touched(at, process)[cluster / 64],
            1 << (cluster % 64),
        );
        if touched.load(SeqCst) & bit == 0 {
            touched.fetch_or(bit, SeqCst);
        }
        let uses = at.words32(at.uses, at.slots);
        let was_free = |slot: &SlotIndex| add(&uses[slot.0 as usize], 1) == 0;
        let were_free = part.slots().filter(was_free).count() as u32;
        part.map(|word, bits| references[word].fetch_or(bits, SeqCst));
        if were_free > 0 {
            add(&at.words32(at.used, at.clusters)[cluster], were_free);
        }
        acting.intent.store(0, SeqCst);
        Some(were_free)
    }

    /// Gives the reference of `process` back.
    pub fn slot_put(&self, process: ProcId, area: AreaId, slot: SlotIndex) -> Put {
        if !self.slot_held(process, area, slot) {
            return Put::NotHeld;
        }
        match self.give_back(process, &Part::one(area, slot)) {
            0 => Put::StillUsed,
            _ => Put::Freed,
        }
    }

    /// Gives the references of `process` on all slots of `part` back, which it holds. Returns how many slots no
    /// process uses any more.
    fn give_back(&self, process: ProcId, part: &Part) -> u32 {
        let Some(at) = self.tables(part.area) else {
            return 0;
        };
        let (acting, references) = (self.record(process), self.references(at, process));
        acting.intent.store(part.intent(), SeqCst);
        let uses = at.words32(at.uses, at.slots);
        let cluster = part.cluster.0 as usize;
        let freed = part.map(|word, held| {
            let is_freed = |bit: &u32| take_off(&uses[word * 64 + *bit as usize], 1) <= 1;
            bits(held)
                .filter(is_freed)
                .fold(0, |set, bit| set | 1 << bit)
        });
        part.map(|word, bits| references[word].fetch_and(!bits, SeqCst));
        let count = freed.count();
        if count > 0 {
            take_off(&at.words32(at.used, at.clusters)[cluster], count);
        }
        acting.intent.store(0, SeqCst);
        if self.is_ram(part.area) {
            freed
                .slots()
                .for_each(|slot| self.free_bytes(part.area, slot));
        }
        count
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

    /// The slots that `process` holds in an area, in order.
    pub fn slots_held(&self, process: ProcId, area: AreaId) -> impl Iterator<Item = SlotIndex> {
        self.parts_held(process, area).flat_map(|part| part.slots())
    }

    /// The slots that `process` holds in an area, by cluster.
    fn parts_held(&self, process: ProcId, area: AreaId) -> impl Iterator<Item = Part> {
        let at = self.tables(area).into_iter();
        at.flat_map(move |at| {
            let references = self.references(at, process);
            let touched = (0..).zip(self.touched(at, process));
            touched
                .flat_map(|(group, word)| bits(word.load(SeqCst)).map(move |bit| group * 64 + bit))
                .map(move |cluster| {
                    let all = Part::all(area, ClusterIndex(cluster));
                    all.map(|word, _| references[word].load(SeqCst))
                })
        })
    }

    /// How many slots of an area `process` holds.
    pub fn slots_held_count(&self, process: ProcId, area: AreaId) -> u64 {
        let parts = self.parts_held(process, area);
        parts.map(|part| u64::from(part.count())).sum()
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
        if let Some(part) = Part::of_intent(record.intent.load(SeqCst)) {
            // Clear its own references there first: a reference that it was giving back would be counted again,
            // although the slot is free and another process may be about to take it.
            if let Some(at) = self.tables(part.area) {
                let references = self.references(at, process);
                part.map(|word, bits| references[word].fetch_and(!bits, SeqCst));
            }
            let done = (0..1000).any(|_| {
                let done = part.slots().all(|slot| self.recount_slot(part.area, slot))
                    && self.recount_cluster(part.area, part.cluster);
                if !done {
                    rustix::thread::sched_yield();
                }
                done
            });
            if !done {
                return false;
            }
            for slot in part.slots() {
                self.free_bytes(part.area, slot);
            }
            record.intent.store(0, SeqCst);
        }
        true
    }

    fn living_intent(&self, concerned: impl Fn(Part) -> bool) -> bool {
        self.records_in_use().any(|other| {
            let part = Part::of_intent(self.record(other).intent.load(SeqCst));
            self.may_act(other) && part.is_some_and(&concerned)
        })
    }

    fn recount_slot(&self, area: AreaId, slot: SlotIndex) -> bool {
        let uses = self.uses(area);
        let Some(word) = uses.get(slot.0 as usize) else {
            return true;
        };
        let before = word.load(SeqCst);
        if self.living_intent(|part| part.has(area, slot)) {
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
        if self.living_intent(|part| (part.area, part.cluster) == (area, cluster)) {
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
            for part in self.parts_held(process, area) {
                self.give_back(process, &part);
            }
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

#[cfg(test)]
mod tests {
    use super::super::tests::spec;
    use super::*;

    /// Its process was killed between the count and the bit.
    #[test]
    fn a_slot_that_was_being_given_back_is_not_counted_again() {
        let ledger = Ledger::create(&spec(100, &[CLUSTER_SLOTS])).expect("a ledger");
        let process = ledger.reserve(None).expect("a record");
        assert!(ledger.connect(process, 1));
        let (area, slot) = (AreaId(0), SlotIndex(7));
        assert!(ledger.slot_get(process, area, slot));
        let intent = &ledger.record(process).intent;
        intent.store(Part::one(area, slot).intent(), SeqCst);
        let at = ledger.tables(area).expect("its tables");
        assert_eq!(take_off(&at.words32(at.uses, at.slots)[7], 1), 1);
        ledger.mark_dead(process);
        assert!(ledger.settle_slots(process));
        assert_eq!(ledger.slot_count(area, slot), 0);
        assert!(!ledger.slot_held(process, area, slot));
        assert_eq!(ledger.cluster_used(area, ClusterIndex(0)), 0);
    }
}
