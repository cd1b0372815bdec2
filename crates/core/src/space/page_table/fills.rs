//! Words of same-filled pages.
//!
//! A same-filled page needs no slot: its entry names the word. A program has few such words at a time, and entries are
//! numbers of a short list. If the list is full of words in use, the page is evicted as any other. A word that no page
//! has any more leaves the list only when another word needs its place.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Words that are known at a time.
const MOST: usize = 4096;

/// A word that fills a page, by its number in the page table that gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fill(pub(super) u32);

struct Word {
    word: u64,
    /// Pages that it fills.
    pages: u64,
    /// It is in `idle`.
    idle: bool,
}

/// The words that fill the pages of one table.
#[derive(Default)]
pub(super) struct Fills {
    words: Vec<Word>,
    known: BTreeMap<u64, u32>,
    /// Words that may have no page: they had none when they were added or at some time since.
    idle: Vec<u32>,
}

impl Fills {
    /// The number of `word`, for an entry that is set before the next call.
    pub fn of(&mut self, word: u64) -> Option<Fill> {
        if let Some(&number) = self.known.get(&word) {
            return Some(Fill(number));
        }
        let new = Word {
            word,
            pages: 0,
            idle: true,
        };
        let number = if self.words.len() < MOST {
            self.words.push(new);
            self.words.len() as u32 - 1
        } else {
            let number = self.unused()?;
            let old = core::mem::replace(&mut self.words[number as usize], new);
            self.known.remove(&old.word);
            number
        };
        self.idle.push(number);
        self.known.insert(word, number);
        Some(Fill(number))
    }

    fn unused(&mut self) -> Option<u32> {
        while let Some(number) = self.idle.pop() {
            let word = &mut self.words[number as usize];
            word.idle = false;
            if word.pages == 0 {
                return Some(number);
            }
        }
        None
    }

    /// The word of that number.
    pub fn word(&self, fill: Fill) -> u64 {
        self.words[fill.0 as usize].word
    }

    pub fn came(&mut self, fill: Fill) {
        self.words[fill.0 as usize].pages += 1;
    }

    pub fn left(&mut self, fill: Fill) {
        let word = &mut self.words[fill.0 as usize];
        word.pages -= 1;
        if word.pages == 0 && !core::mem::replace(&mut word.idle, true) {
            self.idle.push(fill.0);
        }
    }

    /// Pages that all words fill.
    pub fn pages(&self) -> u64 {
        self.words.iter().map(|word| word.pages).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_known_as_long_as_they_fill_pages() {
        let mut fills = Fills::default();
        for word in 1..=MOST as u64 {
            let fill = fills.of(word).expect("room");
            fills.came(fill);
            fills.came(fill);
            assert_eq!((fills.of(word), fills.word(fill)), (Some(fill), word));
        }
        assert_eq!(fills.of(7_000_000), None, "all are in use");
        let five = fills.of(5).expect("known");
        fills.left(five);
        assert_eq!(fills.of(7_000_000), None, "a page has it still");
        fills.left(five);
        // An entry that moves leaves before it comes.
        fills.came(five);
        assert_eq!(fills.word(five), 5);
        assert_eq!(fills.of(7_000_000), None);
        fills.left(five);
        let new = fills.of(7_000_000).expect("room");
        fills.came(new);
        assert_eq!(fills.word(new), 7_000_000);
        assert_eq!(fills.of(5), None, "its place is another's");
        assert_eq!(fills.pages(), 2 * MOST as u64 - 1);
    }

    /// A huge page may have been evicted whose pages were all discarded meanwhile.
    #[test]
    fn a_word_that_no_page_ever_had_keeps_no_place() {
        let mut fills = Fills::default();
        for word in 1..=3 * MOST as u64 {
            assert!(fills.of(word).is_some(), "{word}");
        }
    }
}
