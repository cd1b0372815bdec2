//! The reference for the shipped allocator: one lock, taken for each slot.
//!
//! Slots are bits. It takes the first free one from the position of the last, like a swap allocator that has neither
//! clusters nor batches (seed 002). It keeps no owner and no use count of a slot, and therefore does less work than an
//! allocator for several processes must.

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::append;

/// An area under one lock.
pub struct Locked(Mutex<Bits>);

struct Bits {
    /// A bit for each slot that is in use.
    words: Vec<u64>,
    /// The word where the last free slot was found.
    at: usize,
    used: u64,
}

impl Bits {
    fn take(&mut self) -> Option<u32> {
        let from_here = (self.at..self.words.len()).chain(0..self.at);
        let mut with_room = from_here.filter(|&at| self.words[at] != u64::MAX);
        let at = with_room.next()?;
        let bit = self.words[at].trailing_ones();
        self.words[at] |= 1 << bit;
        self.at = at;
        self.used += 1;
        Some(at as u32 * u64::BITS + bit)
    }

    fn put(&mut self, slot: u32) {
        let bit = 1 << (slot % u64::BITS);
        let word = &mut self.words[(slot / u64::BITS) as usize];
        self.used -= u64::from(*word & bit != 0);
        *word &= !bit;
    }
}

impl Locked {
    /// An area of `slots` slots, a multiple of 512, in which another process holds every second slot of each cluster of
    /// `fragmented`.
    pub fn new(slots: u32, fragmented: &[u32]) -> Self {
        let mut bits = Bits {
            words: vec![0; (slots / u64::BITS) as usize],
            at: 0,
            used: 0,
        };
        for slot in fragmented.iter().flat_map(|&cluster| super::held(cluster)) {
            bits.words[(slot / u64::BITS) as usize] |= 1 << (slot % u64::BITS);
            bits.used += 1;
        }
        Self(Mutex::new(bits))
    }

    fn lock(&self) -> MutexGuard<'_, Bits> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl super::Area for Locked {
    type Task<'a> = Taker<'a>;

    fn tasks(&self, count: usize) -> Vec<Taker<'_>> {
        (0..count).map(|_| Taker(self)).collect()
    }

    fn used(&self) -> u64 {
        self.lock().used
    }
}

/// One of the tasks that take slots.
pub struct Taker<'a>(&'a Locked);

impl super::Task for Taker<'_> {
    fn take(&mut self, request: u32, taken: &mut Vec<Range<u32>>) -> u32 {
        let mut got = 0;
        while got < request {
            let Some(slot) = self.0.lock().take() else {
                break;
            };
            append(taken, slot..slot + 1);
            got += 1;
        }
        got
    }

    fn put(&mut self, slots: Range<u32>) {
        for slot in slots {
            self.0.lock().put(slot);
        }
    }

    fn end(&mut self) {}
}
