//! The expected value of each word of a region, so that every read can be verified.
//!
//! A word's value is its *base* (its own index, or pseudo-random) plus its *generation*, the number of times it was
//! overwritten, in the bits from 40 up. The generation detects a stale page: the content from before its last write.
//! Pseudo-random bases are a page of random words, exclusive-ored with a key drawn from the page number. They do not
//! compress, within a page or across pages, and cost no more than the index.

use crate::args::Fill;

/// Eight-byte words in a page.
pub const WORDS: usize = 512;
/// Where the generation begins within a word.
pub const GENERATION: u32 = 40;

/// The rule by which a task's words are made.
#[derive(Debug, Clone)]
pub struct Words {
    /// Exclusive-ored into each word; zeros when words are their index.
    template: Box<[u64; WORDS]>,
    /// `None` when words are their index.
    key: Option<u64>,
}

/// The values of one page: word `i` holds `(template[i] ^ key) + offset + i * step`.
#[derive(Debug, Clone, Copy)]
pub struct PageWords<'a> {
    template: &'a [u64; WORDS],
    key: u64,
    offset: u64,
    step: u64,
}

impl Words {
    /// The words of task number `task`.
    pub fn new(fill: Fill, seed: u64, task: u32) -> Self {
        let key = match fill {
            Fill::Index => None,
            Fill::Random | Fill::Compressible => Some(mix(seed ^ mix(u64::from(task) + 1))),
        };
        let mut template = Box::new([0; WORDS]);
        if let Some(key) = key {
            for (i, word) in template.iter_mut().enumerate() {
                *word = mix(key.wrapping_add(i as u64));
            }
        }
        if fill == Fill::Compressible {
            repeat(&mut template);
        }
        Self { template, key }
    }

    /// The values of page `page` in its `generation`.
    #[inline(always)]
    pub fn page(&self, page: u64, generation: u32) -> PageWords<'_> {
        let risen = u64::from(generation) << GENERATION;
        match self.key {
            None => PageWords {
                template: &self.template,
                key: 0,
                offset: (page * WORDS as u64).wrapping_add(risen),
                step: 1,
            },
            Some(key) => PageWords {
                template: &self.template,
                key: mix(key ^ page),
                offset: risen,
                step: 0,
            },
        }
    }
}

/// About one word in eight is new; the others repeat phrases of one to eight earlier words.
fn repeat(words: &mut [u64; WORDS]) {
    let mut draw = Draw::new(0, 0);
    let mut at = 8;
    while at < WORDS {
        if draw.below(8) < 3 {
            at += 1;
            continue;
        }
        let back = 1 + draw.below(at.min(400) as u64) as usize;
        let end = WORDS.min(at + 1 + draw.below(8) as usize);
        for i in at..end {
            words[i] = words[i - back];
        }
        at = end;
    }
}

impl PageWords<'_> {
    /// The value of word `i` of this page.
    #[inline(always)]
    pub fn at(&self, i: usize) -> u64 {
        (self.template[i] ^ self.key)
            .wrapping_add(self.offset)
            .wrapping_add(self.step * i as u64)
    }
}

/// The finisher of splitmix64: every bit of the result depends on every bit of the input.
#[inline(always)]
pub fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A small generator for places and sizes; the same seed gives the same walk.
#[derive(Debug, Clone)]
pub struct Draw(u64);

impl Draw {
    /// A generator of its own for each `stream` of a seed.
    pub fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(0x5eed))))
    }

    /// A number below `bound`, uniform to within `bound` / 2^64.
    #[inline(always)]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mix(self.0)) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn index_words_are_their_index() {
        let words = Words::new(Fill::Index, 1, 0);
        assert_eq!(words.page(0, 0).at(0), 0);
        assert_eq!(words.page(3, 0).at(5), 3 * 512 + 5);
        assert_eq!(words.page(3, 2).at(5), (2 << GENERATION) + 3 * 512 + 5);
    }

    #[test]
    fn random_words_differ_by_page_task_seed_and_generation() {
        let of = |seed, task, page, generation| {
            Words::new(Fill::Random, seed, task)
                .page(page, generation)
                .at(7)
        };
        let all = [
            of(1, 0, 0, 0),
            of(2, 0, 0, 0),
            of(1, 1, 0, 0),
            of(1, 0, 1, 0),
            of(1, 0, 0, 1),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[i + 1..].iter().all(|b| a != b), "{all:x?}");
        }
        assert_eq!(of(1, 0, 9, 3), of(1, 0, 9, 3));
    }

    #[test]
    fn compressible_words_repeat_within_their_page_and_in_no_other() {
        let words = Words::new(Fill::Compressible, 1, 0);
        let of = |page, generation| {
            let words = words.page(page, generation);
            let all: Vec<u64> = (0..WORDS).map(|i| words.at(i)).collect();
            let different: std::collections::HashSet<u64> = all.iter().copied().collect();
            (all, different.len())
        };
        let (first, different) = of(1, 0);
        assert!((40..120).contains(&different), "{different} of {WORDS}");
        let (second, _) = of(2, 0);
        assert!(first.iter().all(|word| !second.contains(word)));
        assert_eq!(of(1, 3).1, different);
    }

    #[test]
    fn draws_stay_below_their_bound_and_spread() {
        let mut draw = Draw::new(1, 0);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            counts[draw.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|n| (850..1150).contains(n)), "{counts:?}");
    }
}
