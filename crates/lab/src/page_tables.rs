//! The page tables of the simulated machines, as far as they decide whether a huge page stays whole.
//!
//! A kernel moves a huge page whole if source and destination are aligned and the destination never had small pages.
//! Otherwise it splits it. The page table of the small pages then obstructs the next huge page, until it is removed.

use foreswap_core::units::{Frame, LEAF_PAGES, Vpn};

/// Pages of a huge page.
pub const HUGE: u32 = LEAF_PAGES as u32;

/// The mapping of 512 aligned pages, or of the frames of a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Table {
    /// Nothing.
    #[default]
    None,
    /// A table of small pages, however few are present.
    Small,
    /// One huge page.
    Huge,
}

/// The mappings of the clusters of frames, which follow the frames for single pages.
#[derive(Clone, Debug)]
pub struct Clusters {
    singles: u32,
    behind: Vec<Table>,
}

impl Clusters {
    /// `count` clusters after `singles` frames for single pages.
    pub fn new(singles: u32, count: u32) -> Self {
        Clusters {
            singles,
            behind: vec![Table::None; count as usize],
        }
    }

    /// All frames, those for single pages included.
    pub fn frames(&self) -> usize {
        self.singles as usize + self.behind.len() * LEAF_PAGES
    }

    fn number(&self, frame: Frame) -> Option<usize> {
        let at = frame.0.checked_sub(self.singles)?;
        Some((at / HUGE) as usize)
    }

    /// The mapping of a frame's cluster; a frame for a single page is in a table of small pages.
    pub fn get(&self, frame: Frame) -> Table {
        let behind = self.number(frame).and_then(|at| self.behind.get(at));
        behind.copied().unwrap_or(Table::Small)
    }

    /// Changes it; no effect for a frame for a single page.
    pub fn set(&mut self, frame: Frame, table: Table) {
        if let Some(at) = self.number(frame)
            && let Some(behind) = self.behind.get_mut(at)
        {
            *behind = table;
        }
    }

    /// Whether `n` frames from `frame` on are a cluster.
    pub fn are_one(&self, frame: Frame, n: u32) -> bool {
        let at = frame.0.checked_sub(self.singles);
        n == HUGE && at.is_some_and(|at| at.is_multiple_of(HUGE))
    }

    /// Whether `n` pages of a program and `n` frames can be moved as one huge page, given the mappings at the source
    /// and the destination.
    pub fn go_whole(&self, page: Vpn, frame: Frame, n: u32, from: Table, to: Table) -> bool {
        let aligned = page.0.is_multiple_of(HUGE.into()) && self.are_one(frame, n);
        aligned && (from, to) == (Table::Huge, Table::None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_aligned_and_in_nobodys_way_moves_whole() {
        let mut clusters = Clusters::new(1024, 2);
        assert_eq!(clusters.frames(), 2048);
        clusters.set(Frame(1024 + 600), Table::Huge);
        clusters.set(Frame(5), Table::Huge);
        let all = [5, 1024, 1536].map(|n| clusters.get(Frame(n)));
        assert_eq!(all, [Table::Small, Table::None, Table::Huge]);
        let (huge, none) = (Table::Huge, Table::None);
        let goes = |page: u64, frame: u32, n: u32, to: Table| {
            clusters.go_whole(Vpn(page), Frame(frame), n, huge, to)
        };
        assert!(goes(512, 1536, 512, none));
        assert!(!goes(513, 1536, 512, none));
        assert!(!goes(512, 1537, 512, none));
        assert!(!goes(512, 512, 512, none));
        assert!(!goes(512, 1536, 511, none));
        assert!(!goes(512, 1536, 512, Table::Small));
        assert!(!clusters.go_whole(Vpn(0), Frame(1024), 512, Table::Small, none));
    }
}
