//! The word of a slot: the place of its page's bytes.
//!
//! One 64-bit word, which changes atomically: the position of the bytes, their length, their form, and a generation,
//! which every change raises. A reader that finds the word unchanged after copying the bytes knows that they are the
//! slot's. Of several processes that replace a word by compare-and-exchange, one succeeds.

use super::layout::{CHUNK_BYTES, UNIT};

const LENGTH_AT: u32 = 32;
const FORM_AT: u32 = 45;
const GENERATION_AT: u32 = 47;

/// The form of the stored bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// The slot is empty.
    Nothing,
    /// By the area's method.
    Compressed,
    /// Uncompressed.
    Whole,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

impl Word {
    pub(super) fn form(self) -> Form {
        match self.0 >> FORM_AT & 3 {
            1 => Form::Compressed,
            2 => Form::Whole,
            _ => Form::Nothing,
        }
    }

    pub(super) fn is_empty(self) -> bool {
        self.form() == Form::Nothing
    }

    /// First byte, from the start of the chunks.
    pub(super) fn offset(self) -> u64 {
        u64::from(self.0 as u32) * UNIT
    }

    pub(super) fn chunk(self) -> u32 {
        (self.offset() / CHUNK_BYTES) as u32
    }

    /// The number of bytes.
    pub(super) fn length(self) -> usize {
        (self.0 >> LENGTH_AT) as usize & 0x1fff
    }

    /// Units of the bytes.
    pub(super) fn units(self) -> u32 {
        units(self.length())
    }

    /// The next word of the slot.
    pub(super) fn next(self, form: Form, offset: u64, length: usize) -> Self {
        let form = match form {
            Form::Nothing => 0,
            Form::Compressed => 1,
            Form::Whole => 2,
        };
        let generation = (self.0 >> GENERATION_AT).wrapping_add(1);
        let length = (length as u64) << LENGTH_AT;
        Word((generation << GENERATION_AT) | (form << FORM_AT) | length | (offset / UNIT))
    }

    /// The word of the emptied slot.
    pub(super) fn emptied(self) -> Self {
        self.next(Form::Nothing, 0, 0)
    }
}

/// Units of this number of bytes.
pub(super) fn units(bytes: usize) -> u32 {
    (bytes as u64).div_ceil(UNIT) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_what_was_put_into_it() {
        let mut word = Word(0);
        assert!(word.is_empty());
        for n in 0..70_000u64 {
            let (offset, length) = ((n * 7919 % (1 << 32)) * UNIT, 1 + (n % 4096) as usize);
            let form = [Form::Compressed, Form::Whole][n as usize % 2];
            let next = word.next(form, offset, length);
            assert_eq!(
                (next.form(), next.offset(), next.length()),
                (form, offset, length)
            );
            assert_eq!(u64::from(next.chunk()), offset / CHUNK_BYTES);
            assert_ne!(
                next,
                word.next(form, offset, length).next(form, offset, length)
            );
            assert!(next.emptied().is_empty());
            word = next;
        }
    }
}
