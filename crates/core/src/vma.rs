//! The managed regions of the address space, and what is known of each one's access pattern.
//!
//! A region is what foreswap adopted of the program's VMAs. Neighbours merge, so that a heap that
//! grows in steps stays one region and keeps its history; a cut leaves the history with both parts.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::first_touch::Streams;
use crate::readahead::History;
use crate::stats::Ahead;
use crate::units::{PageRange, Vpn, len, overlap};

/// One managed region.
#[derive(Clone, Debug)]
pub struct Vma {
    /// Its pages.
    pub range: PageRange,
    /// What swap readahead knows of it.
    pub history: History,
    /// Runs of first touches in it.
    pub streams: Streams,
    /// Pages that readahead brought.
    pub ahead: Ahead,
    /// How far touches are found near each other, from 0 to [`LOCAL`].
    pub local: u8,
}

/// The highest [`Vma::local`].
pub const LOCAL: u8 = 64;

impl Vma {
    fn new(range: PageRange) -> Self {
        Vma {
            range,
            history: History::default(),
            streams: Streams::default(),
            ahead: Ahead::default(),
            local: 0,
        }
    }

    /// A touch was foreseen, or not.
    pub fn was_foreseen(&mut self, foreseen: bool) {
        self.local = if foreseen {
            (self.local + 1).min(LOCAL)
        } else {
            self.local.saturating_sub(1)
        };
    }
}

/// All managed regions, by their first page.
#[derive(Default)]
pub struct Vmas {
    by_start: BTreeMap<Vpn, Vma>,
}

impl Vmas {
    /// The region that holds `page`.
    pub fn find(&self, page: Vpn) -> Option<&Vma> {
        let (_, vma) = self.by_start.range(..=page).next_back()?;
        (page < vma.range.end).then_some(vma)
    }

    /// As [`Vmas::find`].
    pub fn find_mut(&mut self, page: Vpn) -> Option<&mut Vma> {
        let (_, vma) = self.by_start.range_mut(..=page).next_back()?;
        (page < vma.range.end).then_some(vma)
    }

    /// All regions in order of address.
    pub fn iter(&self) -> impl Iterator<Item = &Vma> {
        self.by_start.values()
    }

    /// Managed pages.
    pub fn pages(&self) -> u64 {
        self.iter().map(|vma| len(&vma.range)).sum()
    }

    /// Add `range`; what of it is managed already stays as it is. Touching regions become one.
    pub fn insert(&mut self, range: PageRange) {
        if len(&range) == 0 {
            return;
        }
        let mut gaps = Vec::new();
        let mut at = range.start;
        for vma in self.overlapping(&range) {
            if vma.start > at {
                gaps.push(at..vma.start);
            }
            at = at.max(vma.end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        for gap in gaps {
            self.insert_gap(gap);
        }
    }

    fn insert_gap(&mut self, gap: PageRange) {
        let mut vma = match self.by_start.range(..gap.start).next_back() {
            Some((&key, before)) if before.range.end == gap.start => {
                let mut vma = before.clone();
                self.by_start.remove(&key);
                vma.range.end = gap.end;
                vma
            }
            _ => Vma::new(gap.clone()),
        };
        if let Some(after) = self.by_start.remove(&gap.end) {
            vma.range.end = after.range.end;
            vma.ahead.add(&after.ahead);
        }
        self.by_start.insert(vma.range.start, vma);
    }

    /// The parts of regions that lie in `range`.
    pub fn overlapping(&self, range: &PageRange) -> Vec<PageRange> {
        let first = self
            .find(range.start)
            .map_or(range.start, |vma| vma.range.start);
        self.by_start
            .range(first..range.end)
            .map(|(_, vma)| overlap(&vma.range, range))
            .filter(|part| len(part) > 0)
            .collect()
    }

    /// Remove `range` from all regions.
    pub fn remove(&mut self, range: &PageRange) {
        for part in self.overlapping(range) {
            let Some(mut vma) = self.find(part.start).cloned() else {
                continue;
            };
            self.by_start.remove(&vma.range.start);
            for rest in [vma.range.start..part.start, part.end..vma.range.end] {
                if len(&rest) > 0 {
                    self.by_start.insert(
                        rest.start,
                        Vma {
                            range: rest,
                            ..vma.clone()
                        },
                    );
                    // Counted once: with the first part.
                    vma.ahead = Ahead::default();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(vmas: &Vmas) -> Vec<(u64, u64)> {
        vmas.iter()
            .map(|vma| (vma.range.start.0, vma.range.end.0))
            .collect()
    }

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    #[test]
    fn neighbours_merge_and_cuts_split() {
        let mut vmas = Vmas::default();
        vmas.insert(range(10, 20));
        vmas.insert(range(30, 40));
        vmas.insert(range(15, 30));
        assert_eq!(ranges(&vmas), [(10, 40)]);
        vmas.remove(&range(12, 14));
        vmas.remove(&range(38, 50));
        assert_eq!(ranges(&vmas), [(10, 12), (14, 38)]);
        vmas.insert(range(0, 100));
        assert_eq!(ranges(&vmas), [(0, 100)]);
        assert!(vmas.find(Vpn(100)).is_none());
        assert_eq!(vmas.pages(), 100);
    }

    #[test]
    fn overlapping_is_clipped() {
        let mut vmas = Vmas::default();
        vmas.insert(range(10, 20));
        vmas.insert(range(30, 40));
        assert_eq!(
            vmas.overlapping(&range(15, 35)),
            [range(15, 20), range(30, 35)]
        );
        assert!(vmas.overlapping(&range(20, 30)).is_empty());
    }
}
