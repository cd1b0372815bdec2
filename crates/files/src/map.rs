//! The pages of a file, found without a lock.
//!
//! Leaves of 512 entries (2 MiB of the file) in segments of 1, 2, 4, ... leaves: a look-up is two loads of addresses
//! that do not change and one of the entry. Nothing moves or is freed while the file is open, so a reader needs no
//! protection. The price is 8 bytes for each page of the file's parts that were ever in memory: 0.2 % of them.

use std::sync::OnceLock;

use foreswap_core::readahead::file::FilePage;

use crate::entry::Entry;

const LEAF: u64 = 512;
const SEGMENTS: usize = 32;
/// Pages that a map can hold: 8 PiB.
pub const MOST_PAGES: u64 = ((1 << SEGMENTS) - 1) * LEAF;

type Leaf = Box<[Entry]>;
type Segment = Box<[OnceLock<Leaf>]>;

/// The entries of a file.
#[derive(Debug, Default)]
pub struct Map {
    segments: [OnceLock<Segment>; SEGMENTS],
}

fn place(page: FilePage) -> (usize, usize, usize) {
    let leaf = page.0 / LEAF + 1;
    let segment = leaf.ilog2();
    let in_segment = leaf - (1 << segment);
    (
        segment as usize,
        in_segment as usize,
        (page.0 % LEAF) as usize,
    )
}

impl Map {
    /// The entry of a page; `None` if no page near it was ever in memory.
    #[inline]
    pub fn get(&self, page: FilePage) -> Option<&Entry> {
        let (segment, leaf, at) = place(page);
        self.segments.get(segment)?.get()?.get(leaf)?.get()?.get(at)
    }

    /// The entry of a page, made if there is none. The page is below [`MOST_PAGES`].
    pub fn entry(&self, page: FilePage) -> &Entry {
        let (segment, leaf, at) = place(page);
        let leaves = || (0..1u64 << segment).map(|_| OnceLock::new()).collect();
        let entries = || (0..LEAF).map(|_| Entry::default()).collect();
        let segment = self.segments[segment].get_or_init(leaves);
        &segment[leaf].get_or_init(entries)[at]
    }

    /// The entries that exist, from a page on, in order.
    pub fn from(&self, first: FilePage) -> impl Iterator<Item = (FilePage, &Entry)> {
        let segments = self.segments.iter().enumerate();
        let leaves = segments.flat_map(|(segment, leaves)| {
            let first = (1u64 << segment) - 1;
            (first..).zip(leaves.get().into_iter().flatten())
        });
        let entries = leaves.flat_map(|(leaf, entries)| {
            let entries = entries.get().into_iter().flatten();
            (leaf * LEAF..).map(FilePage).zip(entries)
        });
        entries.filter(move |(page, _)| *page >= first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_has_an_entry_of_its_own() {
        let map = Map::default();
        let pages = [0, 511, 512, 1535, 1536, 1 << 20, (1 << 28) + 3];
        assert!(pages.iter().all(|&page| map.get(FilePage(page)).is_none()));
        let at = |page| std::ptr::from_ref(map.entry(FilePage(page)));
        let places = std::collections::HashSet::from(pages.map(at));
        assert_eq!(places.len(), pages.len());
        for page in pages {
            let found = map.get(FilePage(page)).map(std::ptr::from_ref);
            assert_eq!(found, Some(at(page)));
        }
        let from = |first: u64| map.from(FilePage(first)).map(|(page, _)| page.0).next();
        assert_eq!(
            (from(0), from(513), from(5000)),
            (Some(0), Some(513), Some(1 << 20))
        );
    }

    #[test]
    fn the_last_page_has_a_place() {
        let (segment, leaf, at) = place(FilePage(MOST_PAGES - 1));
        assert_eq!((segment, at), (SEGMENTS - 1, 511));
        assert_eq!(leaf, (1 << (SEGMENTS - 1)) - 1);
        assert_eq!(place(FilePage(MOST_PAGES)).0, SEGMENTS);
    }
}
