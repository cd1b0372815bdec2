//! Which mapped pages another process may share since a fork.

use super::{LEAF, Leaf, PageTable, split};
use crate::units::{PageRange, Vpn};

impl PageTable {
    /// The process forks: all mapped pages are shared.
    pub fn share_all(&mut self) {
        self.shared = self.resident;
        for (_, leaf) in self.leaves.range_mut(0..u64::MAX) {
            leaf.shared = leaf.mapped;
        }
    }

    /// Another process may share `page`, which is mapped.
    pub fn share(&mut self, page: Vpn) {
        let (key, index) = split(page);
        if let Some(leaf) = self.leaves.get_mut(key)
            && leaf.mapped.has(index)
        {
            self.shared += u64::from(!leaf.shared.has(index));
            leaf.shared.set(index, true);
        }
    }

    /// No other process shares the pages of `range` any more. Returns how many were shared.
    pub fn unshare(&mut self, range: &PageRange) -> u64 {
        if self.shared == 0 {
            return 0;
        }
        let mut pages = 0;
        let (first, last) = (range.start.0 / LEAF, range.end.0.div_ceil(LEAF));
        for (key, leaf) in self.leaves.range_mut(first..last.max(first)) {
            let from = range.start.0.saturating_sub(key * LEAF) as usize;
            let to = (range.end.0 - key * LEAF).min(LEAF) as usize;
            for i in leaf.shared.within(from..to) {
                leaf.shared.set(i, false);
                pages += 1;
            }
        }
        self.shared -= pages;
        pages
    }

    /// Pages of `range` that another process may share.
    pub fn shared_in(&self, range: &PageRange) -> u64 {
        if self.shared == 0 {
            return 0;
        }
        let (first, last) = (range.start.0 / LEAF, range.end.0.div_ceil(LEAF));
        let leaves = self.leaves.range(first..last.max(first));
        let of = |(key, leaf): (u64, &Leaf)| {
            let from = range.start.0.saturating_sub(key * LEAF) as usize;
            let to = (range.end.0 - key * LEAF).min(LEAF) as usize;
            leaf.shared.within(from..to).count() as u64
        };
        leaves.map(of).sum()
    }

    /// Whether another process may share `page`.
    pub fn is_shared(&self, page: Vpn) -> bool {
        let (key, index) = split(page);
        self.shared > 0
            && self
                .leaves
                .get(key)
                .is_some_and(|leaf| leaf.shared.has(index))
    }

    /// Mapped pages that another process may share.
    pub fn shared(&self) -> u64 {
        self.shared
    }
}
