//! The pages of the simulated programs: what each must read as, and whether it is mapped.

use std::collections::HashMap;

use foreswap_core::units::{PageRange, Vpn};

use crate::hash::Spread;

const LEAF: u64 = 512;
const MAPPED: u64 = 1 << 63;

/// A number for each page, in leaves of 512.
#[derive(Default)]
pub struct Pages {
    leaves: Vec<[u64; LEAF as usize]>,
    by_number: HashMap<u64, u32, Spread>,
    /// The leaf that was looked at last.
    last: Option<(u64, u32)>,
}

impl Pages {
    fn leaf(&mut self, number: u64) -> &mut [u64; LEAF as usize] {
        let at = match self.last {
            Some((last, at)) if last == number => at,
            _ => {
                let at = *self.by_number.entry(number).or_insert_with(|| {
                    self.leaves.push([0; LEAF as usize]);
                    self.leaves.len() as u32 - 1
                });
                self.last = Some((number, at));
                at
            }
        };
        &mut self.leaves[at as usize]
    }

    fn word(&mut self, page: Vpn) -> &mut u64 {
        &mut self.leaf(page.0 / LEAF)[(page.0 % LEAF) as usize]
    }

    /// The content, if it is mapped.
    pub fn mapped(&mut self, page: Vpn) -> Option<u64> {
        let word = *self.word(page);
        (word & MAPPED != 0).then_some(word & !MAPPED)
    }

    /// What it must read as; 0: zeros.
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

    /// The pages of `range` that have been touched and not forgotten since, in order of their leaves.
    fn used(&mut self, range: &PageRange) -> Vec<Vpn> {
        let mut numbers: Vec<u64> =
            if (range.end.0 - range.start.0) / LEAF < self.leaves.len() as u64 {
                (range.start.0 / LEAF..=(range.end.0 - 1) / LEAF)
                    .filter(|number| self.by_number.contains_key(number))
                    .collect()
            } else {
                self.by_number.keys().copied().collect()
            };
        numbers.sort_unstable();
        let mut used = Vec::new();
        for number in numbers {
            let leaf = self.leaf(number);
            let pages = leaf
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

    /// The content of `range` is gone.
    pub fn forget(&mut self, range: &PageRange) {
        for page in self.used(range) {
            *self.word(page) = 0;
        }
    }

    /// The pages of `from` are at `to` from now on.
    pub fn rename(&mut self, from: &PageRange, to: Vpn) {
        let moved: Vec<(Vpn, u64)> = self
            .used(from)
            .into_iter()
            .map(|page| (page, std::mem::take(self.word(page))))
            .collect();
        self.forget(&(to..to.plus(from.end.0 - from.start.0)));
        for (page, word) in moved {
            *self.word(Vpn(page.0 - from.start.0 + to.0)) = word;
        }
    }
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
        pages.forget(&(Vpn(0)..Vpn(u64::MAX)));
        assert_eq!(pages.content(Vpn(529)), 0);
    }
}
