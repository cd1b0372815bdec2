//! Stack distances: the number of other pages touched since the last touch of a page.
//!
//! Mattson's LRU stack with a tree (Bennett and Kruskal, Olken). Each page has the number of its last touch. A bitmap
//! marks the numbers that are a page's last, and a Fenwick tree over the words of that bitmap counts those after a
//! number in O(log n). When the numbers run out they are renumbered: memory grows with the pages, not with the
//! touches.

use std::collections::HashMap;
use std::ops::Range;

use crate::hash::Spread;

/// A page of an address space, or of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Page {
    /// The owner: the caller numbers address spaces and files separately.
    pub owner: u32,
    /// Its number.
    pub number: u64,
}

type Places = HashMap<Page, u32, Spread>;

/// The least capacity of touch numbers.
const LEAST: usize = 1 << 12;

/// The pages in the order of their last touch.
pub struct Stack {
    places: Places,
    /// Bit `n`: touch `n` is the last one of its page.
    last: Vec<u64>,
    /// Fenwick tree over the bits of each word of `last`, from index 1.
    tree: Vec<u32>,
    next: u32,
}

impl Default for Stack {
    fn default() -> Self {
        let mut stack = Stack {
            places: Places::default(),
            last: Vec::new(),
            tree: Vec::new(),
            next: 0,
        };
        stack.renumber();
        stack
    }
}

impl Stack {
    /// Pages in the stack.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether `page` is in the stack.
    pub fn holds(&self, page: Page) -> bool {
        self.places.contains_key(&page)
    }

    /// Put `page` on top. Returns its old position: 1 for the top; `None` if it was absent.
    pub fn touch(&mut self, page: Page) -> Option<u64> {
        if self.next as usize == self.last.len() * 64 {
            self.renumber();
        }
        let next = self.next;
        let before = match self.places.entry(page) {
            std::collections::hash_map::Entry::Occupied(mut place) => {
                if *place.get() + 1 == next {
                    return Some(1);
                }
                Some(place.insert(next))
            }
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(next);
                None
            }
        };
        // The page itself is among those at or behind its old position.
        let depth = before.map(|place| {
            let depth = self.behind(place, self.places.len());
            self.clear(place);
            depth
        });
        self.set(next);
        self.next += 1;
        depth
    }

    /// Remove `page`. Returns its position: 1 for the top.
    pub fn take(&mut self, page: Page) -> Option<u64> {
        let place = self.places.remove(&page)?;
        let depth = self.behind(place, self.places.len() + 1);
        self.clear(place);
        Some(depth)
    }

    /// Remove all pages of `owner` in `range`.
    pub fn take_range(&mut self, owner: u32, range: Range<u64>) {
        if range.end - range.start <= self.places.len() as u64 {
            for number in range {
                self.take(Page { owner, number });
            }
            return;
        }
        let mut places = std::mem::take(&mut self.places);
        places.retain(|page, &mut place| {
            let stays = page.owner != owner || !range.contains(&page.number);
            if !stays {
                self.clear(place);
            }
            stays
        });
        self.places = places;
    }

    /// The pages of `owner` in `range` get new numbers, from `to` on; pages that had these are removed.
    pub fn rename(&mut self, owner: u32, range: Range<u64>, to: u64) {
        let inside = |page: &Page| page.owner == owner && range.contains(&page.number);
        let mut moved: Vec<(Page, u32)> = Vec::new();
        if range.end - range.start <= self.places.len() as u64 {
            for number in range.clone() {
                let page = Page { owner, number };
                moved.extend(self.places.remove(&page).map(|place| (page, place)));
            }
        } else {
            moved.extend(
                self.places
                    .iter()
                    .filter(|(page, _)| inside(page))
                    .map(|(p, n)| (*p, *n)),
            );
            self.places.retain(|page, _| !inside(page));
        }
        let length = range.end - range.start;
        self.take_range(owner, to..to + length);
        for (page, place) in moved {
            let number = page.number - range.start + to;
            self.places.insert(Page { owner, number }, place);
        }
    }

    /// Pages at or behind `place`, of `all` with a set bit.
    fn behind(&self, place: u32, all: usize) -> u64 {
        let (word, bit) = (place as usize / 64, place % 64);
        let below = self.last[word] & ((1 << bit) - 1);
        let mut before = u64::from(below.count_ones());
        let mut at = word;
        while at > 0 {
            before += u64::from(self.tree[at]);
            at &= at - 1;
        }
        all as u64 - before
    }

    fn set(&mut self, place: u32) {
        self.last[place as usize / 64] |= 1 << (place % 64);
        self.add(place, 1);
    }

    fn clear(&mut self, place: u32) {
        self.last[place as usize / 64] &= !(1 << (place % 64));
        self.add(place, u32::MAX);
    }

    fn add(&mut self, place: u32, n: u32) {
        let mut at = place as usize / 64 + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(n);
            at += at & at.wrapping_neg();
        }
    }

    /// Renumber the last touches from 0 on, in their order, with room for as many again.
    fn renumber(&mut self) {
        let mut before = Vec::with_capacity(self.last.len());
        let mut sum = 0u32;
        for word in &self.last {
            before.push(sum);
            sum += word.count_ones();
        }
        for place in self.places.values_mut() {
            let (word, bit) = (*place as usize / 64, *place % 64);
            let below = self.last[word] & ((1 << bit) - 1);
            *place = before[word] + below.count_ones();
        }
        let live = self.places.len();
        let words = (live * 2).max(LEAST).div_ceil(64);
        self.last.clear();
        self.last.resize(words, 0);
        for place in 0..live {
            self.last[place / 64] |= 1 << (place % 64);
        }
        self.tree.clear();
        self.tree.resize(words + 1, 0);
        for at in 1..=words {
            self.tree[at] = self.tree[at].wrapping_add(self.last[at - 1].count_ones());
            let parent = at + (at & at.wrapping_neg());
            if parent <= words {
                self.tree[parent] += self.tree[at];
            }
        }
        self.next = live as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::mix;

    fn page(number: u64) -> Page {
        Page {
            owner: (number % 3) as u32,
            number: number / 3,
        }
    }

    /// The stack as a list.
    #[derive(Default)]
    struct List(Vec<Page>);

    impl List {
        fn take(&mut self, page: Page) -> Option<u64> {
            let at = self.0.iter().position(|other| *other == page)?;
            self.0.remove(at);
            Some(at as u64 + 1)
        }

        fn touch(&mut self, page: Page) -> Option<u64> {
            let depth = self.take(page);
            self.0.insert(0, page);
            depth
        }
    }

    #[test]
    fn depths_are_those_of_a_list() {
        let (mut stack, mut list) = (Stack::default(), List::default());
        let mut state = 1u64;
        for n in 0..60_000u64 {
            state = mix(state.wrapping_add(n));
            // Some pages often, most rarely.
            let number = (state >> 20) % (1 + (state >> 50) % 400);
            let p = page(number);
            match state % 1000 {
                0 => {
                    let (first, count) = (p.number, (state >> 10) % 200);
                    stack.take_range(p.owner, first..first + count);
                    list.0.retain(|q| {
                        q.owner != p.owner || !(first..first + count).contains(&q.number)
                    });
                }
                1 => {
                    let (first, count, to) =
                        (p.number, 1 + (state >> 10) % 3, 1000 + (state >> 12) % 40);
                    stack.rename(p.owner, first..first + count, to);
                    list.0
                        .retain(|q| q.owner != p.owner || !(to..to + count).contains(&q.number));
                    for q in list.0.iter_mut().filter(|q| q.owner == p.owner) {
                        if (first..first + count).contains(&q.number) {
                            q.number = q.number - first + to;
                        }
                    }
                }
                2..50 => assert_eq!(stack.take(p), list.take(p)),
                _ => assert_eq!(stack.touch(p), list.touch(p), "touch {n}"),
            }
            assert_eq!(stack.len(), list.0.len());
        }
        assert!(stack.len() > 100);
    }
}
