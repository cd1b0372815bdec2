//! The pages that a guest lacks, and where the content of each is.

use foreswap_core::units::{PAGE_SIZE, PageRange, Slot, Vpn, len};

use super::mark;
use crate::pager::lazy::Notes;
use crate::pager::moves::Move;
use crate::pager::snapshot::Region;

/// The content of a page that a guest lacks.
#[derive(Clone, Debug)]
pub(super) enum Content {
    /// In a slot, to which the guest's record has a reference.
    Slot(Slot),
    /// This word fills it.
    Filled(u64),
    /// These bytes.
    Bytes(Box<[u8; PAGE_SIZE]>),
    /// Lost.
    Nowhere,
    /// The guest has the page, or has discarded it.
    Settled,
}

/// The pages that a guest lacks, in order of address.
#[derive(Default)]
pub(super) struct Lacking {
    pub(super) pages: Vec<(Vpn, Content)>,
    /// Regions that map files: what is discarded there is the file's again.
    pub(super) files: Vec<Region>,
    /// References that are no longer needed.
    pub(super) put: Vec<Slot>,
    /// Discarded pages since the last look.
    pub(super) discarded: u64,
    /// It is the child of an announced fork: the mark was discarded.
    pub(super) is_announced: bool,
}

impl Lacking {
    /// `pages` are in order of address.
    pub(super) fn of(pages: Vec<(Vpn, Content)>, files: Vec<Region>) -> Self {
        Lacking {
            pages,
            files,
            ..Lacking::default()
        }
    }

    pub(super) fn span(&self, range: &PageRange) -> std::ops::Range<usize> {
        let at = |page: Vpn| self.pages.partition_point(|(known, _)| *known < page);
        at(range.start)..at(range.end)
    }

    pub(super) fn find(&self, page: Vpn) -> Option<usize> {
        let at = self.pages.binary_search_by_key(&page, |(known, _)| *known);
        at.ok().filter(|&at| !self.is_settled(at))
    }

    /// The page of a file that is mapped at `page`.
    pub(super) fn file_page(&self, page: Vpn) -> Option<Slot> {
        self.files.iter().find_map(|region| region.file_page(page))
    }

    pub(super) fn is_settled(&self, at: usize) -> bool {
        matches!(self.pages[at].1, Content::Settled)
    }

    pub(super) fn settle(&mut self, at: usize) {
        let content = core::mem::replace(&mut self.pages[at].1, Content::Settled);
        if let Content::Slot(slot) = content {
            self.put.push(slot);
        }
    }

    /// The entry `at` and those of the pages behind it without a gap, at most `most`, that can be copied together.
    pub(super) fn run(&self, at: usize, most: usize) -> usize {
        let first = self.pages[at].0;
        let behind = self.pages[at..].iter().take(most).enumerate();
        let fits = |(n, (page, content)): &(usize, &(Vpn, Content))| {
            let is_copied = !matches!(content, Content::Settled | Content::Nowhere);
            *page == first.plus(*n as u64) && is_copied
        };
        behind.take_while(fits).count()
    }
}

impl Notes for Lacking {
    fn forget(&mut self, range: &PageRange) {
        if range.contains(&mark::page()) {
            self.is_announced = true;
            return;
        }
        self.discarded += len(range);
        self.span(range).for_each(|at| self.settle(at));
    }

    fn unmap(&mut self, range: &PageRange) {
        self.forget(range);
        let files = self.files.iter().flat_map(|region| region.without(range));
        self.files = files.collect();
    }

    fn moves_to(&mut self, moved: &Move) {
        let files = self.files.iter().flat_map(|region| region.after(moved));
        self.files = files.collect();
        self.span(&moved.target()).for_each(|at| self.settle(at));
        let span = self.span(&moved.from);
        let mut moving: Vec<_> = self.pages.drain(span).collect();
        for (page, _) in &mut moving {
            *page = moved.to.plus(page.0 - moved.from.start.0);
        }
        let target = self.span(&moved.target());
        self.pages.splice(target, moving);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot(index: u32) -> Content {
        Content::Slot(Slot { area: 0, index })
    }

    fn lacking(pages: impl IntoIterator<Item = u64>) -> Lacking {
        let entry = |page: u64| (Vpn(page), slot(page as u32));
        Lacking::of(pages.into_iter().map(entry).collect(), Vec::new())
    }

    fn place_of(lacking: &Lacking, page: u64) -> Option<u32> {
        match lacking.pages[lacking.find(Vpn(page))?].1 {
            Content::Slot(slot) => Some(slot.index),
            _ => None,
        }
    }

    #[test]
    fn what_is_discarded_is_not_found_and_its_slots_are_put() {
        let mut pages = lacking(10..20);
        pages.forget(&(Vpn(12)..Vpn(14)));
        assert_eq!(
            (place_of(&pages, 11), place_of(&pages, 12)),
            (Some(11), None)
        );
        assert_eq!(pages.put.len(), 2);
        pages.forget(&(Vpn(12)..Vpn(15)));
        assert_eq!(pages.put.len(), 3, "no slot twice");
    }

    #[test]
    fn content_moves_over_other_content_and_stays_in_order() {
        let mut pages = lacking((10..14).chain(20..24));
        let moved = Move {
            from: Vpn(20)..Vpn(22),
            to: Vpn(11),
        };
        pages.moves_to(&moved);
        let places = [10, 11, 12, 13, 20, 21, 22].map(|page| place_of(&pages, page));
        let expected = [10, 20, 21, 13].map(Some);
        assert_eq!(places[..4], expected);
        assert_eq!(places[4..], [None, None, Some(22)]);
        assert!(pages.pages.is_sorted_by_key(|(page, _)| *page));
        let mut put = pages.put.clone();
        put.sort_unstable();
        assert_eq!(
            put.iter().map(|slot| slot.index).collect::<Vec<_>>(),
            [11, 12]
        );
        pages.moves_to(&moved.reversed());
        assert_eq!(
            (place_of(&pages, 20), place_of(&pages, 11)),
            (Some(20), None)
        );
    }

    #[test]
    fn what_is_discarded_is_the_files_again() {
        let mut pages = lacking([]);
        pages.files = vec![Region {
            range: Vpn(100)..Vpn(200),
            hint: foreswap_core::Hint::Normal,
            first: Some(Slot::of_file(1000)),
        }];
        let found = |pages: &Lacking, page| pages.file_page(Vpn(page)).map(|slot| slot.index);
        pages.forget(&(Vpn(110)..Vpn(120)));
        assert_eq!(found(&pages, 115), Some(1015));
        pages.unmap(&(Vpn(110)..Vpn(120)));
        pages.moves_to(&Move {
            from: Vpn(150)..Vpn(160),
            to: Vpn(115),
        });
        let there =
            [109, 110, 114, 115, 124, 125, 150, 160, 199, 200].map(|page| found(&pages, page));
        let expected = [
            Some(1009),
            None,
            None,
            Some(1050),
            Some(1059),
            Some(1025),
            None,
            Some(1060),
            Some(1099),
            None,
        ];
        assert_eq!(there, expected);
    }

    #[test]
    fn a_run_ends_at_a_gap_at_what_is_lost_and_at_what_is_there() {
        let mut pages = lacking((10..14).chain(15..20));
        assert_eq!(pages.run(0, 16), 4);
        assert_eq!(pages.run(0, 2), 2);
        pages.pages[2].1 = Content::Nowhere;
        assert_eq!(pages.run(0, 16), 2);
        pages.settle(1);
        assert_eq!(pages.run(0, 16), 1);
        assert_eq!(pages.run(4, 16), 5);
    }
}
