//! A set of records in shared memory: scans visit its members, not every record.
//!
//! Insertion and removal of one record are atomic. Who reads the set together with other words of a record decides by
//! those words; the set only says which records to look at.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

use super::ProcId;
use super::layout::MAX_PROCESSES;

/// A bit per record.
#[repr(C)]
pub(super) struct ProcessSet {
    words: [AtomicU64; MAX_PROCESSES / 64],
}

impl ProcessSet {
    pub(super) fn insert(&self, process: ProcId) {
        self.word(process).fetch_or(bit(process), SeqCst);
    }

    pub(super) fn remove(&self, process: ProcId) {
        self.word(process).fetch_and(!bit(process), SeqCst);
    }

    /// The members, in order.
    pub(super) fn members(&self) -> impl Iterator<Item = ProcId> {
        (0..).zip(&self.words).flat_map(|(group, word)| {
            let bits = super::part::bits(word.load(SeqCst));
            bits.filter_map(move |bit| ProcId::new(group * 64 + bit))
        })
    }

    fn word(&self, process: ProcId) -> &AtomicU64 {
        &self.words[process.index() / 64]
    }
}

fn bit(process: ProcId) -> u64 {
    1 << (process.index() % 64)
}
