//! First in, first out, in parts: the order in which policies other than the clock evict.
//!
//! A rank holds the number of a part and a class. A part is an age group: a new one begins when a further 64th of the mapped
//! pages was mapped. A sweep counts the pages that it leaves, by class and age. The next sweep evicts each page that would
//! have been in the oldest eighth then. The order within that eighth is that of addresses, so that neighbours go together.

use super::policy::Rank;

/// The two lists of a policy. What they mean is the policy's affair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Class {
    First,
    Second,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Config {
    /// The part of mapped memory whose pages have the same age.
    parts: u64,
    /// The part of the pages of a class that a sweep evicts, or more.
    quota: u64,
    /// A sweep that evicts less than this part of mapped memory was fruitless.
    fruit: u64,
}

const CONFIG: Config = Config {
    parts: 64,
    quota: 8,
    fruit: 64,
};

/// Ages that are told apart, in parts: four times the memory. Older pages are equal.
const AGES: usize = 256;
/// A rank has the class in bit 1 and the part from bit 2 on. Bit 0 tells it from 0.
const PART_AT: u32 = 2;
const PARTS: u16 = 1 << (16 - PART_AT);

/// Pages of one class that the sweep has left in this pass, by age.
struct Left {
    by_age: [u64; AGES],
    /// The part of the pages that go in this pass; older ones go as well.
    goes: Option<u16>,
}

impl Left {
    fn pages(&self) -> u64 {
        self.by_age.iter().sum()
    }
}

/// How widely a pass looks for victims, as passes before it were fruitless.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Debug)]
pub(super) enum Search {
    /// As the policy prefers.
    Normal,
    /// The oldest pages of both classes.
    Wide,
    /// All pages.
    All,
}

/// The order of all mapped pages.
pub(super) struct Order {
    config: Config,
    /// The part to which pages are mapped now, and how many were.
    newest: u16,
    mapped: u64,
    left: [Left; 2],
    search: Search,
}

impl Default for Order {
    fn default() -> Self {
        let none = || Left {
            by_age: [0; AGES],
            goes: None,
        };
        Order {
            config: CONFIG,
            newest: 0,
            mapped: 0,
            left: [none(), none()],
            search: Search::Normal,
        }
    }
}

/// The class of a page.
pub(super) const fn class(rank: Rank) -> Class {
    match rank >> 1 & 1 {
        0 => Class::First,
        _ => Class::Second,
    }
}

impl Order {
    /// The rank of a page that is the newest of its class but for `back` parts.
    pub fn rank(&self, class: Class, back: u16) -> Rank {
        (self.newest.wrapping_sub(back) % PARTS) << PART_AT | (class as Rank) << 1 | 1
    }

    /// A page was mapped.
    pub fn on_mapped(&mut self, resident: u64) {
        self.mapped += 1;
        if self.mapped * self.config.parts > resident {
            (self.newest, self.mapped) = ((self.newest + 1) % PARTS, 0);
        }
    }

    fn age(&self, part: u16) -> usize {
        usize::from(self.newest.wrapping_sub(part) % PARTS).min(AGES - 1)
    }

    /// Whether the page goes in this pass, if pages of its class do.
    pub fn is_oldest(&self, rank: Rank) -> bool {
        let goes = self.left[class(rank) as usize].goes;
        goes.is_some_and(|goes| self.age(rank >> PART_AT) >= self.age(goes))
    }

    /// How widely this pass looks for victims.
    pub fn search(&self) -> Search {
        self.search
    }

    /// A page, or a huge page of so many pages, stays with this rank. Returns the rank.
    pub fn keep(&mut self, rank: Rank, pages: u32) -> Rank {
        let age = self.age(rank >> PART_AT);
        self.left[class(rank) as usize].by_age[age] += u64::from(pages);
        rank
    }

    /// A pass begins, and the one before evicted so many pages. Returns the pages of each class. `joint`: the classes are
    /// of one order.
    pub fn begin_pass(&mut self, evicted: u64, resident: u64, joint: bool) -> [u64; 2] {
        self.search = match self.search {
            _ if evicted * self.config.fruit >= resident => Search::Normal,
            Search::Normal => Search::Wide,
            Search::Wide | Search::All => Search::All,
        };
        let pages = [self.left[0].pages(), self.left[1].pages()];
        let goes = match joint {
            true => [self.part_before(&[0, 1], self.config.quota); 2],
            false => [0, 1].map(|class| self.part_before(&[class], self.config.quota)),
        };
        for (left, goes) in self.left.iter_mut().zip(goes) {
            *left = Left {
                by_age: [0; AGES],
                goes,
            };
        }
        pages
    }

    /// How many parts ago half of the pages came that the sweep has left in this pass.
    pub fn middle(&self) -> u16 {
        let middle = self.part_before(&[0, 1], 2);
        middle.map_or(0, |part| self.age(part) as u16)
    }

    /// The newest part such that 1/`quota` of the pages of these classes are of it or older. `None`: there is no page.
    fn part_before(&self, classes: &[usize], quota: u64) -> Option<u16> {
        let pages: u64 = classes.iter().map(|&class| self.left[class].pages()).sum();
        let mut older = 0;
        let age = (0..AGES).rev().find(|&age| {
            older += classes
                .iter()
                .map(|&class| self.left[class].by_age[age])
                .sum::<u64>();
            older > 0 && older * quota >= pages
        })?;
        Some(self.newest.wrapping_sub(age as u16) % PARTS)
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Maps so many pages, and returns their ranks.
    fn map(order: &mut Order, pages: usize) -> Vec<Rank> {
        let mut one = || {
            let rank = order.rank(Class::First, 0);
            order.on_mapped(640);
            rank
        };
        (0..pages).map(|_| one()).collect()
    }

    fn pass(order: &mut Order, ranks: &mut Vec<Rank>) -> Vec<Rank> {
        order.begin_pass(640, 640, false);
        let (gone, left) = ranks.iter().partition(|&&rank| order.is_oldest(rank));
        *ranks = left;
        for &rank in ranks.iter() {
            order.keep(rank, 1);
        }
        gone
    }

    #[test]
    fn what_came_first_goes_first_also_when_the_parts_wrap() {
        let mut order = Order {
            newest: PARTS - 20,
            ..Order::default()
        };
        let mut ranks = map(&mut order, 640);
        let all = ranks.clone();
        assert!(pass(&mut order, &mut ranks).is_empty(), "nothing is known");
        let mut gone = Vec::new();
        while !ranks.is_empty() {
            let some = pass(&mut order, &mut ranks);
            assert!(some.len() >= ranks.len() / 8 && some.len() <= ranks.len() / 4 + 40);
            gone.extend(some);
        }
        assert_eq!(gone, all);
    }

    #[test]
    fn a_fruitless_pass_widens_the_search() {
        let mut order = Order::default();
        for search in [Search::Wide, Search::All, Search::All] {
            order.begin_pass(9, 640, false);
            assert_eq!(order.search(), search);
        }
        order.begin_pass(10, 640, false);
        assert_eq!(order.search(), Search::Normal);
    }
}
