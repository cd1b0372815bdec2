//! The seals of encrypted areas, beside the digests of their slots, and the numbers of pages that are encrypted.
//!
//! A number is the nonce of one page, and must never be given out twice under the key of a run. All processes therefore
//! take them from one counter in the ledger. They stay taken whatever becomes of the write or of its process: a page that
//! is written again, to the same slot or another, has another number.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_store::seal::{Seal, Seals};

use super::tables::AreaTables;
use super::{AreaId, Ledger, SlotIndex};

/// Words of a seal: the number, and the tag.
pub(super) const SEAL_WORDS: u64 = 3;

impl Ledger {
    /// `pages` consecutive numbers that no process of the run was given before: the first.
    pub fn seal_numbers(&self, pages: u64) -> u64 {
        // 0 is the number of no page.
        self.header().sealed.fetch_add(pages, Relaxed) + 1
    }

    /// The seal of the page in a slot; not one that opens anything if there is no such slot.
    pub fn seal(&self, area: AreaId, slot: SlotIndex) -> Seal {
        let Some(at) = self.sealed(area, slot) else {
            return Seal::default();
        };
        let words = at.words64(at.seals, u64::from(slot.0) * SEAL_WORDS, SEAL_WORDS);
        let [number, low, high] = [0, 1, 2].map(|word| words[word].load(Relaxed));
        let mut tag = [0; 16];
        tag[..8].copy_from_slice(&low.to_ne_bytes());
        tag[8..].copy_from_slice(&high.to_ne_bytes());
        Seal { number, tag }
    }

    /// Sets the seal of the page in a slot; by the process that fills it, before any process can read it.
    pub fn set_seal(&self, area: AreaId, slot: SlotIndex, seal: Seal) {
        let Some(at) = self.sealed(area, slot) else {
            return;
        };
        let words = at.words64(at.seals, u64::from(slot.0) * SEAL_WORDS, SEAL_WORDS);
        let [low, high] = [0, 8].map(|byte| {
            let half = core::array::from_fn(|at| seal.tag[byte + at]);
            u64::from_ne_bytes(half)
        });
        for (word, value) in words.iter().zip([seal.number, low, high]) {
            word.store(value, Relaxed);
        }
    }

    fn sealed(&self, area: AreaId, slot: SlotIndex) -> Option<&AreaTables> {
        self.tables(area).filter(|at| slot.0 < at.slots)
    }
}

/// The seals of one area.
pub struct AreaSeals {
    /// The run's ledger.
    pub ledger: &'static Ledger,
    /// The area.
    pub area: AreaId,
}

impl Seals for AreaSeals {
    fn numbers(&self, pages: u64) -> u64 {
        self.ledger.seal_numbers(pages)
    }

    fn get(&self, slot: u32) -> Seal {
        self.ledger.seal(self.area, SlotIndex(slot))
    }

    fn set(&self, slot: u32, seal: Seal) {
        self.ledger.set_seal(self.area, SlotIndex(slot), seal);
    }
}
