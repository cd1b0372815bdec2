//! Bits for the 512 entries of a leaf: the sweep and swapoff find few used entries without a look at the others.

use core::ops::Range;

use crate::units::LEAF_PAGES;

const WORD: usize = u64::BITS as usize;

/// A set of numbers below 512.
#[derive(Clone, Copy, Default)]
pub(super) struct Bits([u64; LEAF_PAGES / WORD]);

impl Bits {
    /// `at` is in the set from now on, or is not.
    pub fn set(&mut self, at: usize, is: bool) {
        let bit = 1 << (at % WORD);
        match is {
            true => self.0[at / WORD] |= bit,
            false => self.0[at / WORD] &= !bit,
        }
    }

    /// Whether `at` is in the set.
    pub fn has(&self, at: usize) -> bool {
        self.0[at / WORD] >> (at % WORD) & 1 != 0
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0 == [0; LEAF_PAGES / WORD]
    }

    /// Numbers in the set.
    pub fn count(&self) -> u32 {
        self.0.iter().map(|word| word.count_ones()).sum()
    }

    /// The first number in the set from `at` on.
    fn next(&self, at: usize) -> Option<usize> {
        let mut word = at / WORD;
        let mut bits = self.0.get(word)? & u64::MAX << (at % WORD);
        while bits == 0 {
            word += 1;
            bits = *self.0.get(word)?;
        }
        Some(word * WORD + bits.trailing_zeros() as usize)
    }

    /// The numbers in the set that are in `range`, in order.
    pub fn within(self, range: Range<usize>) -> impl Iterator<Item = usize> {
        let mut from = range.start;
        core::iter::from_fn(move || {
            let at = self.next(from).filter(|&at| at < range.end)?;
            from = at + 1;
            Some(at)
        })
    }
}
