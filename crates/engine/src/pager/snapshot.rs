//! The snapshot of the parent's managed memory for a fork child.
//!
//! The parent's engine writes it before the fork to a sheet of its own. The child finds it at the same address in its
//! copy of the parent's memory, in whatever state the parent's engine was at the instant of the fork. After it is
//! written, the parent only adds to it: to a page, a mark of its fate (that it came back, before it is mapped); to
//! the list of moves, memory that another thread moved.
//!
//! Regions and pages keep the addresses of the time of the snapshot. A mark on a page that has moved since goes to
//! its old entry, and the child applies all moves at once. A move that is not in the child's copy had not returned in
//! the parent: no thread of the child knows the new place, and at the old place the memory is absent.

use core::ptr::NonNull;
use core::sync::atomic::{Ordering::SeqCst, fence};
use std::collections::BTreeMap;

use foreswap_core::units::{PageRange, Slot, Vpn, without};
use foreswap_core::{Hint, Stored, Vma};
use rustix::io::Errno;

use super::moves::Move;
use crate::ledger::ProcId;
use crate::sys::own_memory::{self, Kind};

const CAME_BACK: u64 = 1 << 63;
const FORGOTTEN: u64 = 1 << 62;
/// The page has no slot: the low bits are the number of its filling word.
const FILLED: u64 = 1 << 61;
/// In the second word of a page of a region that maps no file.
const NO_FILE: u64 = 0;
/// The position of a region's hint in its first word.
const HINT: u32 = 62;

#[repr(C)]
struct Header {
    parent: u32,
    child: u32,
    regions: u64,
    pages: u64,
    /// Filling words.
    fills: u64,
    /// Not zero: memory moved and there was no room to note it; the snapshot is incomplete.
    spoilt: u64,
    /// Moves since the snapshot was taken.
    moves: u64,
}

/// The fate of a page between the snapshot and the fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing: its content is in its slot or word.
    Stored,
    /// It was mapped again, or about to be.
    CameBack,
    /// The program discarded it, and may have touched it since.
    Forgotten,
}

/// A managed region.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Region {
    /// Its pages.
    pub range: PageRange,
    /// The program's hint for it.
    pub hint: Hint,
    /// The page of a file that its first page maps.
    pub first: Option<Slot>,
}

impl Region {
    /// A region of the core.
    pub fn of(vma: &Vma) -> Self {
        Region {
            range: vma.range.clone(),
            hint: vma.hint,
            first: vma.backing(),
        }
    }

    /// The parts of it that are not in `range`.
    pub fn without(&self, range: &PageRange) -> impl Iterator<Item = Region> {
        let parts = without(&self.range, range).collect::<Vec<_>>().into_iter();
        let whole = self.clone();
        parts.map(move |part| {
            let at = part.start.0 - whole.range.start.0;
            Region {
                range: part,
                hint: whole.hint,
                first: whole.first.map(|first| first.plus(at as u32)),
            }
        })
    }

    /// The page of a file that is mapped at `page`.
    pub fn file_page(&self, page: Vpn) -> Option<Slot> {
        let first = self.first.filter(|_| self.range.contains(&page))?;
        Some(first.plus((page.0 - self.range.start.0) as u32))
    }

    /// Its parts after a move.
    pub fn after(&self, moved: &Move) -> impl Iterator<Item = Region> {
        let parts = moved.after(&self.range).map(|part| {
            let target = moved.target();
            let was = match target.contains(&part.start) {
                true => moved.from.start.plus(part.start.0 - target.start.0),
                false => part.start,
            };
            let at = was.0 - self.range.start.0;
            Region {
                range: part,
                hint: self.hint,
                first: self.first.map(|first| first.plus(at as u32)),
            }
        });
        parts.collect::<Vec<_>>().into_iter()
    }
}

/// Memory for snapshots, reused from fork to fork.
#[derive(Clone, Copy)]
pub struct Sheet {
    start: NonNull<u64>,
    words: usize,
}

impl Sheet {
    /// A sheet of at least `words` words: `old` if it is large enough.
    fn of(words: usize, old: Option<Sheet>) -> Result<Self, Errno> {
        if let Some(sheet) = old.filter(|sheet| sheet.words >= words) {
            return Ok(sheet);
        }
        let words = words.next_power_of_two();
        let start = own_memory::map((words * 8).next_multiple_of(4096), Kind::Other)?.cast();
        if let Some(Sheet { start, words }) = old {
            // SAFETY: it was mapped here, and the snapshot that was on it is gone.
            unsafe { own_memory::unmap(start.cast(), (words * 8).next_multiple_of(4096)) }?;
        }
        Ok(Sheet { start, words })
    }
}

/// A snapshot in memory that fork copies. Layout: room for the moves, three words each (first page, one past the
/// last, new first page); three words per region (first page with the hint above
/// it, one past the last, packed page of a file plus 1); two words per
/// page (number; packed slot or number of a word, with the marks); the filling words.
pub struct Snapshot {
    start: NonNull<u64>,
    words: usize,
    sheet: Option<Sheet>,
}

const HEADER_WORDS: usize = size_of::<Header>() / 8;
/// The most moves of one snapshot: a thread makes a few thousand a second, a fork takes milliseconds.
const MOST_MOVES: usize = 1024;
const MOVE_WORDS: usize = 3;
const REGION_WORDS: usize = 3;
/// Start of the regions.
const BODY: usize = HEADER_WORDS + MOST_MOVES * MOVE_WORDS;

impl Snapshot {
    /// Write one, on `old` if it fits.
    pub fn write(
        old: Option<Sheet>,
        parent: ProcId,
        child: Option<ProcId>,
        regions: &[Region],
        pages: &[(Vpn, Stored)],
    ) -> Result<Self, Errno> {
        let mut fills = BTreeMap::new();
        for (_, stored) in pages {
            if let Stored::Filled(word) = stored {
                let next = fills.len() as u64;
                fills.entry(*word).or_insert(next);
            }
        }
        let region_words = REGION_WORDS * regions.len();
        let entries = BODY + region_words + 2 * pages.len();
        let words = entries + fills.len();
        let sheet = Sheet::of(words, old)?;
        let start = sheet.start;
        let mut snapshot = Snapshot {
            start,
            words,
            sheet: Some(sheet),
        };
        let header = Header {
            parent: parent.index() as u32,
            child: child.map_or(u32::MAX, |child| child.index() as u32),
            regions: regions.len() as u64,
            pages: pages.len() as u64,
            fills: fills.len() as u64,
            spoilt: 0,
            moves: 0,
        };
        // SAFETY: the sheet is large enough and aligned for the header, and ours alone.
        unsafe { start.cast::<Header>().write(header) };
        let (body, filling) = snapshot.words_mut()[BODY..].split_at_mut(entries - BODY);
        for (word, number) in &fills {
            filling[*number as usize] = *word;
        }
        let (of_regions, of_pages) = body.split_at_mut(region_words);
        for (to, region) in of_regions
            .as_chunks_mut::<REGION_WORDS>()
            .0
            .iter_mut()
            .zip(regions)
        {
            let Region { range, hint, first } = region;
            let first = first.map_or(NO_FILE, |first| first.pack() + 1);
            *to = [range.start.0 | (*hint as u64) << HINT, range.end.0, first];
        }
        let stored = |stored: &Stored| match stored {
            Stored::In(slot) => slot.pack(),
            Stored::Filled(word) => FILLED | fills[word],
        };
        let page_words = pages.iter().map(|(page, at)| [page.0, stored(at)]);
        for (to, from) in of_pages.as_chunks_mut::<2>().0.iter_mut().zip(page_words) {
            *to = from;
        }
        Ok(snapshot)
    }

    /// Find the parent's snapshot in a child.
    ///
    /// # Safety
    /// `address` is the result of [`Snapshot::address`] in the parent, and the memory is still mapped.
    pub unsafe fn find(address: usize) -> Option<Self> {
        let start = NonNull::new(address as *mut u64)?;
        // SAFETY: by contract a header is there.
        let header = unsafe { start.cast::<Header>().as_ref() };
        let regions = REGION_WORDS as u64 * header.regions;
        let words = BODY + (regions + 2 * header.pages + header.fills) as usize;
        Some(Snapshot {
            start,
            words,
            sheet: None,
        })
    }

    fn header(&self) -> &Header {
        // SAFETY: every snapshot begins with its header.
        unsafe { self.start.cast::<Header>().as_ref() }
    }

    fn words(&self) -> &[u64] {
        // SAFETY: as many words were written, and a sheet is unmapped only when a larger one takes its place.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }

    fn words_mut(&mut self) -> &mut [u64] {
        // SAFETY: as for `words`; a sheet is zeroed, and only the pager has it.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.words) }
    }

    /// Its address.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The parent's record.
    pub fn parent(&self) -> Option<ProcId> {
        ProcId::new(self.header().parent)
    }

    /// The record reserved for the child, if it needs one from the start.
    pub fn child(&self) -> Option<ProcId> {
        ProcId::new(self.header().child)
    }

    /// The process was managed: the snapshot has regions.
    pub fn has_regions(&self) -> bool {
        self.header().regions > 0
    }

    /// Whether the child needs an engine for a page: some were unmapped, or are of files.
    pub fn has_pages(&self) -> bool {
        self.header().pages > 0 || self.regions().iter().any(|region| region.first.is_some())
    }

    /// The number of noted moves.
    pub fn moved(&self) -> u64 {
        self.header().moves
    }

    /// Whether there is room for more moves.
    pub fn has_room_for_moves(&self) -> bool {
        (self.header().moves as usize) < MOST_MOVES
    }

    /// The pages of `runs` that were unmapped at the snapshot and are unchanged since. Both are in order of address;
    /// nothing must have moved.
    pub fn stored_in(&self, runs: &[PageRange]) -> Vec<Vpn> {
        let words = &self.words()[self.first_page()..][..self.page_words()];
        let mut pages = words.as_chunks::<2>().0;
        let mut found = Vec::new();
        for run in runs {
            pages = &pages[pages.partition_point(|w| w[0] < run.start.0)..];
            let within = pages.iter().take_while(|w| w[0] < run.end.0);
            let untold = within.filter(|w| w[1] & (CAME_BACK | FORGOTTEN) == 0);
            found.extend(untold.map(|w| Vpn(w[0])));
        }
        found
    }

    /// The regions after all noted moves.
    pub fn regions(&self) -> Vec<Region> {
        let n = self.header().regions as usize;
        let hint = |word: u64| match word >> HINT {
            1 => Hint::Sequential,
            2 => Hint::Random,
            _ => Hint::Normal,
        };
        let words = self.words()[BODY..].as_chunks::<REGION_WORDS>().0;
        let region = |w: &[u64; REGION_WORDS]| Region {
            range: Vpn(w[0] & ((1 << HINT) - 1))..Vpn(w[1]),
            hint: hint(w[0]),
            first: (w[2] != NO_FILE).then(|| Slot::unpack(w[2] - 1)),
        };
        let mut regions: Vec<_> = words[..n].iter().map(region).collect();
        for moved in self.moves() {
            regions = regions
                .iter()
                .flat_map(|region| region.after(&moved))
                .collect();
        }
        regions
    }

    /// The pages that were unmapped: number after all noted moves, place of the content, and fate since.
    pub fn pages(&self) -> impl Iterator<Item = (Vpn, Stored, Fate)> + '_ {
        let fate = |word: u64| match (word & CAME_BACK != 0, word & FORGOTTEN != 0) {
            (_, true) => Fate::Forgotten,
            (true, false) => Fate::CameBack,
            (false, false) => Fate::Stored,
        };
        let moves: Vec<_> = self.moves().collect();
        let (pages, fills) = self.words()[self.first_page()..].split_at(self.page_words());
        pages.chunks_exact(2).map(move |w| {
            let page = Vpn(w[0]);
            let stored = match w[1] & FILLED != 0 {
                true => Stored::Filled(fills[w[1] as u32 as usize]),
                false => Stored::In(Slot::unpack(w[1])),
            };
            let now = moves.iter().try_fold(page, |page, moved| {
                let part = moved.after(&(page..page.plus(1))).next();
                part.map(|part| part.start)
            });
            match now {
                Some(now) => (now, stored, fate(w[1])),
                // Overwritten by memory that moved there.
                None => (page, stored, Fate::Forgotten),
            }
        })
    }

    fn first_page(&self) -> usize {
        BODY + REGION_WORDS * self.header().regions as usize
    }

    /// Words of the pages.
    fn page_words(&self) -> usize {
        2 * self.header().pages as usize
    }

    /// The noted moves, in order.
    fn moves(&self) -> impl DoubleEndedIterator<Item = Move> + '_ {
        let words = &self.words()[HEADER_WORDS..BODY];
        let noted = words.as_chunks::<MOVE_WORDS>().0.iter();
        noted
            .take(self.header().moves as usize)
            .map(|&[start, end, to]| Move {
                from: Vpn(start)..Vpn(end),
                to: Vpn(to),
            })
    }

    /// Whether a move could not be noted, and the child would lack it.
    pub fn is_spoilt(&self) -> bool {
        self.header().spoilt != 0
    }

    /// Managed memory moved to another address, and the memory there is gone.
    pub fn moves_to(&mut self, moved: &Move) {
        self.forget(&moved.target());
        let noted = self.header().moves as usize;
        let room = self.words_mut()[HEADER_WORDS..BODY].as_chunks_mut::<MOVE_WORDS>();
        let Some(entry) = room.0.get_mut(noted) else {
            // SAFETY: every snapshot begins with its header, which only the pager changes.
            unsafe { (&raw mut (*self.start.cast::<Header>().as_ptr()).spoilt).write_volatile(1) };
            return fence(SeqCst);
        };
        *entry = [moved.from.start.0, moved.from.end.0, moved.to.0];
        // The entry must be complete before it counts: a fork may copy this memory at any instant.
        fence(SeqCst);
        let noted = noted as u64 + 1;
        // SAFETY: every snapshot begins with its header, which only the pager changes.
        unsafe { (&raw mut (*self.start.cast::<Header>().as_ptr()).moves).write_volatile(noted) };
        fence(SeqCst);
    }

    /// `page` is about to be mapped again.
    pub fn returns(&mut self, page: Vpn) {
        self.mark(&(page..page.plus(1)), CAME_BACK);
    }

    /// The program discarded the content of `range`.
    pub fn forget(&mut self, range: &PageRange) {
        self.mark(range, FORGOTTEN);
    }

    /// Mark the pages that are now in `range`.
    fn mark(&mut self, range: &PageRange, mark: u64) {
        let mut then = vec![range.clone()];
        for moved in self.moves().rev() {
            then = then.iter().flat_map(|r| moved.before(r)).collect();
        }
        let (first_page, words) = (self.first_page(), self.page_words());
        let pages = &mut self.words_mut()[first_page..][..words];
        let pages = pages.as_chunks_mut::<2>().0;
        for range in then {
            let first = pages.partition_point(|w| w[0] < range.start.0);
            for entry in pages[first..].iter_mut().take_while(|w| w[0] < range.end.0) {
                let word = &mut entry[1];
                // A fork may copy this memory at any instant, so the word is written whole.
                // SAFETY: a plain word of ours.
                unsafe { core::ptr::from_mut(word).write_volatile(*word | mark) };
            }
        }
        // The mark must precede the change that it announces.
        fence(SeqCst);
    }

    /// Free the memory; the sheet serves the next fork.
    pub fn free(self) -> Option<Sheet> {
        let sheet = self.sheet?;
        // SAFETY: the sheet is not read any more; its pages are dropped.
        let _ = unsafe {
            rustix::mm::madvise(
                sheet.start.as_ptr().cast(),
                sheet.words * 8,
                rustix::mm::Advice::LinuxDontNeed,
            )
        };
        Some(sheet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        Vpn(start)..Vpn(end)
    }

    fn slot(index: u32) -> Slot {
        Slot { area: 1, index }
    }

    /// Pages 100 to 109 in slots of the same numbers, less 100, in a region from 100 to 200.
    fn snapshot() -> Snapshot {
        let [parent, child] = [1, 2].map(|n| ProcId::new(n).expect("a record"));
        let pages: Vec<_> = (0..10)
            .map(|n| (Vpn(100 + u64::from(n)), Stored::In(slot(n))))
            .collect();
        let regions = [range(100, 200)];
        let regions = regions.map(|range| Region {
            range,
            hint: Hint::Random,
            first: Some(Slot::of_file(1000)),
        });
        Snapshot::write(None, parent, Some(child), &regions, &pages).expect("memory")
    }

    fn moves(snapshot: &mut Snapshot, from: PageRange, to: u64) {
        let to = Vpn(to);
        snapshot.moves_to(&Move { from, to });
    }

    /// The pages that a child would find in its copy.
    fn found(snapshot: &Snapshot) -> Vec<(u64, u32, Fate)> {
        // SAFETY: it is there.
        let copy = unsafe { Snapshot::find(snapshot.address()) }.expect("a snapshot");
        let pages = copy.pages();
        pages
            .map(|(page, stored, fate)| match stored {
                Stored::In(slot) => (page.0, slot.index, fate),
                Stored::Filled(_) => panic!("{page:?} is in a slot"),
            })
            .collect()
    }

    #[test]
    fn pages_and_regions_follow_every_move() {
        let mut s = snapshot();
        moves(&mut s, range(102, 104), 500);
        moves(&mut s, range(501, 502), 300);
        let pages: Vec<_> = found(&s).iter().map(|&(page, ..)| page).collect();
        assert_eq!(pages, [100, 101, 500, 300, 104, 105, 106, 107, 108, 109]);
        let regions = s.regions();
        assert!(regions.iter().all(|region| region.hint == Hint::Random));
        let mut regions: Vec<_> = regions
            .into_iter()
            .map(|region| (region.range, region.first.map(|first| first.index)))
            .collect();
        regions.sort_by_key(|(range, _)| range.start);
        let expected = [
            (range(100, 102), Some(1000)),
            (range(104, 200), Some(1004)),
            (range(300, 301), Some(1003)),
            (range(500, 501), Some(1002)),
        ];
        assert_eq!(regions, expected);
    }

    #[test]
    fn marks_find_pages_where_they_are() {
        let mut s = snapshot();
        s.returns(Vpn(102));
        moves(&mut s, range(102, 106), 500);
        // The unmap event of the old place, which follows a move, does not concern the moved memory.
        s.forget(&range(102, 106));
        s.returns(Vpn(501));
        s.forget(&range(502, 503));
        s.forget(&range(109, 110));
        use Fate::{CameBack, Forgotten, Stored};
        let fates: Vec<_> = found(&s).iter().map(|&(.., fate)| fate).collect();
        let expected = [
            Stored, Stored, CameBack, CameBack, Forgotten, Stored, Stored, Stored, Stored,
            Forgotten,
        ];
        assert_eq!(fates, expected);
    }

    #[test]
    fn an_overwritten_range_is_forgotten_and_the_moved_one_is_not() {
        let mut s = snapshot();
        moves(&mut s, range(100, 102), 108);
        moves(&mut s, range(108, 109), 100);
        let left: Vec<_> = found(&s)
            .into_iter()
            .filter(|&(.., fate)| fate == Fate::Stored)
            .collect();
        let untouched = (102..108).map(|n: u32| (u64::from(n), n - 100, Fate::Stored));
        let moved = [(100, 0, Fate::Stored), (109, 1, Fate::Stored)];
        let expected: Vec<_> = moved.into_iter().chain(untouched).collect();
        assert_eq!(left, expected);
    }

    #[test]
    fn words_that_fill_pages_come_along() {
        let parent = ProcId::new(1).expect("a record");
        let words = [u64::MAX, 7, u64::MAX, FILLED | CAME_BACK];
        let mut pages: Vec<_> = (10..)
            .zip(words)
            .map(|(page, word)| (Vpn(page), Stored::Filled(word)))
            .collect();
        pages.insert(2, (Vpn(12), Stored::In(slot(5))));
        (pages[3].0, pages[4].0) = (Vpn(13), Vpn(14));
        let regions = [Region {
            range: range(0, 100),
            hint: Hint::Normal,
            first: None,
        }];
        let mut s = Snapshot::write(None, parent, None, &regions, &pages).expect("memory");
        // None of these is a page.
        s.forget(&range(u64::MAX - 1, u64::MAX));
        s.forget(&range(7, 8));
        s.returns(Vpn(11));
        moves(&mut s, range(13, 14), 50);
        // SAFETY: it is there.
        let copy = unsafe { Snapshot::find(s.address()) }.expect("a snapshot");
        let found: Vec<_> = copy.pages().collect();
        (pages[1].0, pages[3].0) = (Vpn(11), Vpn(50));
        let fates = [
            Fate::Stored,
            Fate::CameBack,
            Fate::Stored,
            Fate::Stored,
            Fate::Stored,
        ];
        let expected: Vec<_> = pages
            .iter()
            .zip(fates)
            .map(|(&(page, at), fate)| (page, at, fate))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn without_room_it_is_spoilt() {
        let mut s = snapshot();
        for n in 0..MOST_MOVES as u64 {
            moves(&mut s, range(1000 + n, 1001 + n), 5000);
        }
        assert!(!s.is_spoilt());
        moves(&mut s, range(100, 101), 5000);
        assert!(s.is_spoilt());
    }
}
