//! The pages of the simulated programs: expected content, mapping, and kind of page table.

use std::collections::HashMap;

use foreswap_core::units::{PageRange, Vpn};

use crate::hash::Spread;
use crate::page_tables::Table;

const LEAF: u64 = 512;
const MAPPED: u64 = 1 << 63;

struct Leaf {
    words: [u64; LEAF as usize],
    table: Table,
}

/// A number per page, in leaves of 512.
#[derive(Default)]
pub struct Pages {
    leaves: Vec<Leaf>,
    by_number: HashMap<u64, u32, Spread>,
    /// The last leaf looked up.
    last: Option<(u64, u32)>,
}

impl Pages {
    fn leaf(&mut self, number: u64) -> &mut Leaf {
        let at = match self.last {
            Some((last, at)) if last == number => at,
            _ => {
                let at = *self.by_number.entry(number).or_insert_with(|| {
                    self.leaves.push(Leaf {
                        words: [0; LEAF as usize],
                        table: Table::None,
                    });
                    self.leaves.len() as u32 - 1
                });
                self.last = Some((number, at));
                at
            }
        };
        &mut self.leaves[at as usize]
    }

    fn word(&mut self, page: Vpn) -> &mut u64 {
        &mut self.leaf(page.0 / LEAF).words[(page.0 % LEAF) as usize]
    }

    /// The mapping of the leaf of `page`.
    pub fn table(&mut self, page: Vpn) -> Table {
        self.leaf(page.0 / LEAF).table
    }

    /// Changes it.
    pub fn set_table(&mut self, page: Vpn, table: Table) {
        self.leaf(page.0 / LEAF).table = table;
    }

    /// Whether all pages of the leaf of `page` are mapped.
    pub fn is_full(&mut self, page: Vpn) -> bool {
        let mut words = self.leaf(page.0 / LEAF).words.iter();
        words.all(|word| word & MAPPED != 0)
    }

    /// The content, if it is mapped.
    pub fn mapped(&mut self, page: Vpn) -> Option<u64> {
        let word = *self.word(page);
        (word & MAPPED != 0).then_some(word & !MAPPED)
    }

    /// The expected content; 0: zeros.
    pub fn content(&mut self, page: Vpn) -> u64 {
        *self.word(page) & !MAPPED
    }

    /// Map it; the content stays.
    pub fn map(&mut self, page: Vpn) {
        *self.word(page) |= MAPPED;
    }

    /// Unmap it; the content stays.
    pub fn unmap(&mut self, page: Vpn) {
        *self.word(page) &= !MAPPED;
    }

    /// A mapped page is written to.
    pub fn write(&mut self, page: Vpn, content: u64) {
        *self.word(page) = content & !MAPPED | MAPPED;
    }

    /// The existing leaves that overlap `range`, in order.
    fn known(&self, range: &PageRange) -> Vec<u64> {
        let numbers = range.start.0 / LEAF..range.end.0.div_ceil(LEAF);
        let few = numbers.end - numbers.start <= self.leaves.len() as u64;
        let mut known: Vec<u64> = if few {
            numbers
                .filter(|number| self.by_number.contains_key(number))
                .collect()
        } else {
            let all = self.by_number.keys().copied();
            all.filter(|number| numbers.contains(number)).collect()
        };
        known.sort_unstable();
        known
    }

    /// The touched and not discarded pages of `range`, in order of their leaves.
    fn used(&mut self, range: &PageRange) -> Vec<Vpn> {
        let mut used = Vec::new();
        for number in self.known(range) {
            let leaf = self.leaf(number);
            let pages = leaf
                .words
                .iter()
                .zip(number * LEAF..)
                .filter(|(word, _)| **word != 0);
            used.extend(
                pages
                    .map(|(_, page)| Vpn(page))
                    .filter(|page| range.contains(page)),
            );
        }
        used
    }

    /// Discards the content of `range`; the mapping stays. A part of a huge page splits it.
    pub fn discard(&mut self, range: &PageRange) {
        self.clear(range);
        for number in self.known(range) {
            let leaf = self.leaf(number);
            if leaf.table == Table::Huge {
                leaf.table = match holds(range, number) {
                    true => Table::None,
                    false => Table::Small,
                };
            }
        }
    }

    /// Unmaps `range`, with the page tables that it had for itself.
    pub fn unmap_range(&mut self, range: &PageRange) {
        self.discard(range);
        for number in self.known(range) {
            if holds(range, number) {
                self.leaf(number).table = Table::None;
            }
        }
    }

    fn clear(&mut self, range: &PageRange) {
        for page in self.used(range) {
            *self.word(page) = 0;
        }
    }

    /// Moves the pages of `from` to `to`. Huge pages stay whole if both places are aligned.
    pub fn rename(&mut self, from: &PageRange, to: Vpn) {
        let target = |page: Vpn| Vpn(page.0 - from.start.0 + to.0);
        let aligned = from.start.0 % LEAF == to.0 % LEAF;
        let known = self.known(from).into_iter();
        let huge: Vec<Vpn> = known
            .filter(|&number| aligned && holds(from, number))
            .map(|number| Vpn(number * LEAF))
            .filter(|&unit| self.table(unit) == Table::Huge)
            .collect();
        let moved: Vec<(Vpn, u64)> = self
            .used(from)
            .into_iter()
            .map(|page| (page, *self.word(page)))
            .collect();
        self.unmap_range(from);
        self.unmap_range(&(to..target(from.end)));
        for (page, word) in moved {
            *self.word(target(page)) = word;
            if word & MAPPED != 0 {
                self.set_table(target(page), Table::Small);
            }
        }
        for unit in huge {
            self.set_table(target(unit), Table::Huge);
        }
    }
}

/// Whether all of a leaf lies in `range`.
fn holds(range: &PageRange, number: u64) -> bool {
    range.start.0 <= number * LEAF && (number + 1) * LEAF <= range.end.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_move_and_are_forgotten() {
        let mut pages = Pages::default();
        for page in 500..530 {
            pages.write(Vpn(page), page);
        }
        pages.unmap(Vpn(510));
        pages.rename(&(Vpn(505)..Vpn(520)), Vpn(1 << 30));
        assert_eq!(pages.mapped(Vpn(505)), None);
        assert_eq!(pages.content(Vpn(505)), 0);
        assert_eq!(pages.mapped(Vpn(1 << 30)), Some(505));
        assert_eq!(
            (
                pages.mapped(Vpn((1 << 30) + 5)),
                pages.content(Vpn((1 << 30) + 5))
            ),
            (None, 510)
        );
        pages.discard(&(Vpn(0)..Vpn(u64::MAX)));
        assert_eq!(pages.content(Vpn(529)), 0);
    }

    #[test]
    fn huge_pages_end_with_a_part_of_them_and_move_to_aligned_places() {
        let mut pages = Pages::default();
        let fill = |pages: &mut Pages, unit: u64| {
            for page in unit * LEAF..(unit + 1) * LEAF {
                pages.write(Vpn(page), 7);
            }
            assert!(pages.is_full(Vpn(unit * LEAF)));
            pages.set_table(Vpn(unit * LEAF), Table::Huge);
        };
        let table = |pages: &mut Pages, unit: u64| pages.table(Vpn(unit * LEAF));
        for unit in 1..5 {
            fill(&mut pages, unit);
        }
        // Half of the first, the whole of the second.
        pages.discard(&(Vpn(LEAF + 256)..Vpn(3 * LEAF)));
        assert_eq!(table(&mut pages, 1), Table::Small);
        assert_eq!(table(&mut pages, 2), Table::None);
        pages.rename(&(Vpn(3 * LEAF)..Vpn(4 * LEAF)), Vpn(10 * LEAF));
        assert_eq!(table(&mut pages, 3), Table::None);
        assert_eq!(table(&mut pages, 10), Table::Huge);
        pages.rename(&(Vpn(4 * LEAF)..Vpn(5 * LEAF)), Vpn(20 * LEAF + 1));
        assert_eq!(table(&mut pages, 20), Table::Small);
        assert_eq!(table(&mut pages, 21), Table::Small);
        // A table of small pages stays when they are discarded, and goes with the mapping.
        pages.discard(&(Vpn(LEAF)..Vpn(2 * LEAF)));
        assert_eq!(table(&mut pages, 1), Table::Small);
        pages.unmap_range(&(Vpn(LEAF)..Vpn(2 * LEAF)));
        assert_eq!(table(&mut pages, 1), Table::None);
    }
}
