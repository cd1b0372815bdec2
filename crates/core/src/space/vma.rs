//! The managed regions of the address space, and the access pattern of each.
//!
//! A region is a part of the program's VMAs that foreswap adopted. Neighbours merge: a heap that grows in steps stays
//! one region and keeps its history. A cut leaves the history with both parts.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::fault::first_touch::Streams;
use crate::readahead::{Hint, History, Policy};
use crate::stats::Ahead;
use crate::units::{PageRange, Slot, Vpn, len, overlap};

/// One managed region.
#[derive(Clone, Debug)]
pub struct Vma {
    /// Its pages.
    pub range: PageRange,
    /// The program's hint about its use.
    pub hint: Hint,
    /// Swap readahead's history of it.
    pub(crate) history: History,
    /// Runs of first touches in it.
    pub(crate) streams: Streams,
    /// Pages that readahead read.
    pub ahead: Ahead,
    /// How often touches are near each other, from 0 to 64.
    local: u8,
    /// It is memory of a file, for example of a tmpfs.
    file: bool,
    /// It maps a file: the page of the file that its first page has.
    backing: Option<Slot>,
}

/// The highest `Vma::local`.
const LOCAL: u8 = 64;
/// A huge page that is missed or filled in order adds this to `Vma::local`; two are enough.
const UNIT_MISSED: u8 = 8;
const UNIT_FILLED: u8 = LOCAL / 4 + 1;

impl Vma {
    fn new(range: PageRange) -> Self {
        Vma {
            range,
            hint: Hint::default(),
            history: History::default(),
            streams: Streams::default(),
            ahead: Ahead::default(),
            local: 0,
            file: false,
            backing: None,
        }
    }

    /// The page of the mapped file that its first page has; `None` if it maps no file.
    pub fn backing(&self) -> Option<Slot> {
        self.backing
    }

    /// The page of the mapped file that is at `page`.
    pub fn place_of(&self, page: Vpn) -> Option<Slot> {
        let first = self.backing?;
        let n = page.0.checked_sub(self.range.start.0)?;
        (page < self.range.end).then(|| first.plus(n as u32))
    }

    /// Its readahead policy. The kernel reads ahead by slot, not by address, in memory of files.
    pub fn policy(&self, policy: Policy) -> Policy {
        match policy {
            Policy::Vma(max) if self.file => Policy::Cluster(max),
            _ => policy,
        }
    }

    /// Its touches are near each other, mostly.
    pub(crate) fn is_local(&self) -> bool {
        self.local > LOCAL / 2
    }

    /// A touch was foreseen, or not.
    pub fn was_foreseen(&mut self, foreseen: bool) {
        self.local = if foreseen {
            (self.local + 1).min(LOCAL)
        } else {
            self.local.saturating_sub(1)
        };
    }

    /// A huge page was reached in order, and one fault maps all of it: it is `filled`, or read.
    pub fn took_unit(&mut self, filled: bool) {
        let more = if filled { UNIT_FILLED } else { UNIT_MISSED };
        self.local = (self.local + more).min(LOCAL);
    }
}

/// All managed regions, by their first page.
#[derive(Default)]
pub struct Vmas {
    by_start: BTreeMap<Vpn, Vma>,
    /// Some region has mapped a file. Most programs map none, and pay no look for it.
    maps_files: bool,
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

    /// Add `range`; managed parts of it stay as they are. Regions that touch and have the same hint are merged.
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
        self.by_start.insert(gap.start, Vma::new(gap.clone()));
        self.join(gap.start);
        self.join(gap.end);
    }

    /// Merge the regions that meet at `page`, if they are alike. The history of the first one stays.
    fn join(&mut self, page: Vpn) {
        let (Some(before), Some(after)) = (
            page.0.checked_sub(1).and_then(|last| self.find(Vpn(last))),
            self.by_start.get(&page),
        ) else {
            return;
        };
        let follows = match before.backing {
            // A region that ends with the last page of the numbers has no next one.
            Some(first) => {
                let next = u64::from(first.index) + len(&before.range);
                after
                    .backing
                    .is_some_and(|slot| u64::from(slot.index) == next)
            }
            None => after.backing.is_none(),
        };
        let alike = before.hint == after.hint && before.file == after.file && follows;
        if before.range.end != page || !alike {
            return;
        }
        let key = before.range.start;
        if let Some(after) = self.by_start.remove(&page)
            && let Some(vma) = self.by_start.get_mut(&key)
        {
            vma.range.end = after.range.end;
            vma.ahead.add(&after.ahead);
        }
    }

    /// Split the region that has `page` in the middle. Both parts keep the history.
    fn cut(&mut self, page: Vpn) {
        let Some(vma) = self.find_mut(page).filter(|vma| vma.range.start < page) else {
            return;
        };
        let rest = Vma {
            range: page..vma.range.end,
            // Counted once: with the first part.
            ahead: Ahead::default(),
            backing: vma.place_of(page),
            ..vma.clone()
        };
        vma.range.end = page;
        self.by_start.insert(page, rest);
    }

    /// The program gives a hint about `range`.
    pub fn set_hint(&mut self, range: &PageRange, hint: Hint) {
        self.change(range, |vma| vma.hint = hint);
    }

    /// `range` is memory of a file.
    pub fn set_file(&mut self, range: &PageRange) {
        self.change(range, |vma| vma.file = true);
    }

    /// `range` maps a file, whose page `first` is at its start; `None`: no file any more.
    pub fn set_backing(&mut self, range: &PageRange, first: Option<Slot>) {
        self.maps_files |= first.is_some();
        if !self.maps_files {
            return;
        }
        self.change(range, |vma| {
            let at = (vma.range.start.0 - range.start.0) as u32;
            vma.backing = first.map(|first| first.plus(at));
        });
    }

    /// Whether any region has ever mapped a file.
    pub fn maps_files(&self) -> bool {
        self.maps_files
    }

    /// The page of the mapped file that is at `page`.
    pub fn place_of(&self, page: Vpn) -> Option<Slot> {
        match self.maps_files {
            true => self.find(page)?.place_of(page),
            false => None,
        }
    }

    /// Change the parts of regions that lie in `range`.
    fn change(&mut self, range: &PageRange, change: impl Fn(&mut Vma)) {
        for part in self.overlapping(range) {
            self.cut(part.start);
            self.cut(part.end);
            if let Some(vma) = self.by_start.get_mut(&part.start) {
                change(vma);
            }
            self.join(part.end);
            self.join(part.start);
        }
    }

    /// Some region is memory of a file.
    pub fn has_file(&self) -> bool {
        self.iter().any(|vma| vma.file)
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
            self.cut(part.start);
            self.cut(part.end);
            self.by_start.remove(&part.start);
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
    fn memory_of_a_file_stays_apart() {
        let mut vmas = Vmas::default();
        vmas.insert(range(0, 100));
        vmas.set_file(&range(20, 30));
        vmas.insert(range(100, 200));
        assert_eq!(ranges(&vmas), [(0, 20), (20, 30), (30, 200)]);
        let policy = |page, policy| vmas.find(Vpn(page)).map(|vma| vma.policy(policy));
        assert_eq!(policy(20, Policy::Vma(8)), Some(Policy::Cluster(8)));
        assert_eq!(policy(30, Policy::Vma(8)), Some(Policy::Vma(8)));
        assert_eq!(policy(20, Policy::Streams(9)), Some(Policy::Streams(9)));
        vmas.set_file(&range(0, 20));
        assert_eq!(ranges(&vmas), [(0, 30), (30, 200)]);
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
    fn hints_split_regions_and_only_equal_ones_merge() {
        let mut vmas = Vmas::default();
        let hints = |vmas: &Vmas| -> Vec<_> {
            let each = |vma: &Vma| (vma.range.start.0, vma.range.end.0, vma.hint);
            vmas.iter().map(each).collect()
        };
        use Hint::{Normal, Random, Sequential};
        vmas.insert(range(10, 40));
        vmas.set_hint(&range(0, 20), Random);
        vmas.set_hint(&range(30, 50), Sequential);
        let all = [(10, 20, Random), (20, 30, Normal), (30, 40, Sequential)];
        assert_eq!(hints(&vmas), all);
        // The ranges beside them have no hint.
        vmas.insert(range(5, 45));
        assert_eq!(hints(&vmas).len(), 5);
        assert_eq!(hints(&vmas)[1..4], all);
        vmas.remove(&range(12, 14));
        assert_eq!(hints(&vmas)[1..3], [(10, 12, Random), (14, 20, Random)]);
        vmas.insert(range(12, 14));
        assert_eq!(hints(&vmas)[2], (12, 14, Normal));
        vmas.set_hint(&range(0, 100), Normal);
        assert_eq!(hints(&vmas), [(5, 45, Normal)]);
    }

    #[test]
    fn parts_of_a_mapped_file_know_their_place_in_it() {
        let mut vmas = Vmas::default();
        vmas.insert(range(0, 100));
        vmas.set_backing(&range(20, 60), Some(Slot::of_file(1000)));
        assert_eq!(ranges(&vmas), [(0, 20), (20, 60), (60, 100)]);
        let place = |vmas: &Vmas, page| vmas.find(Vpn(page))?.place_of(Vpn(page));
        let index = |vmas: &Vmas, page| place(vmas, page).map(|slot| slot.index);
        assert_eq!(index(&vmas, 19), None);
        assert_eq!(index(&vmas, 20), Some(1000));
        vmas.set_hint(&range(30, 40), Hint::Random);
        assert_eq!(index(&vmas, 39), Some(1019));
        vmas.set_hint(&range(30, 40), Hint::Normal);
        assert_eq!(ranges(&vmas), [(0, 20), (20, 60), (60, 100)]);
        vmas.remove(&range(25, 26));
        assert_eq!(index(&vmas, 26), Some(1006));
        // Another part of the file, and another file, beside it.
        vmas.insert(range(25, 26));
        vmas.set_backing(&range(25, 26), Some(Slot::of_file(1004)));
        assert_eq!(ranges(&vmas)[1..4], [(20, 25), (25, 26), (26, 60)]);
        vmas.set_backing(&range(25, 26), Some(Slot::of_file(1005)));
        assert_eq!(ranges(&vmas), [(0, 20), (20, 60), (60, 100)]);
        vmas.set_backing(&range(0, 100), None);
        assert_eq!(ranges(&vmas), [(0, 100)]);
    }

    #[test]
    fn cutting_and_joining_again_does_not_multiply_the_counts() {
        let mut vmas = Vmas::default();
        vmas.insert(range(0, 40));
        let vma = vmas.find_mut(Vpn(0)).unwrap();
        (vma.ahead.pages, vma.ahead.used) = (10, 9);
        for _ in 0..100 {
            vmas.remove(&range(10, 20));
            vmas.insert(range(10, 20));
        }
        let vma = vmas.find(Vpn(0)).unwrap();
        assert_eq!(vma.range, range(0, 40));
        assert_eq!((vma.ahead.pages, vma.ahead.used), (10, 9));
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
