//! What a fork child needs to know of its parent's managed memory.
//!
//! The parent's engine writes it before the fork on a sheet of its own; the child finds it at the
//! same address in its copy of the parent's memory, whatever the parent's engine was doing at the
//! instant of the fork. Entries only gain their "came back" mark after that, before the page is
//! mapped, so that the child can tell a page that came back from one that was never there.

use core::ptr::NonNull;
use core::sync::atomic::{Ordering::SeqCst, fence};

use foreswap_core::Hint;
use foreswap_core::units::{PageRange, Slot, Vpn};
use rustix::io::Errno;

use crate::ledger::ProcId;
use crate::sys::own_memory::{self, Kind};

const CAME_BACK: u64 = 1 << 63;
const FORGOTTEN: u64 = 1 << 62;
/// Where the hint of a region is in its first word.
const HINT: u32 = 62;

#[repr(C)]
struct Header {
    parent: u32,
    child: u32,
    regions: u64,
    pages: u64,
    /// Resident pages that were charged to the child.
    charged: u64,
    /// Not zero: memory moved after the snapshot was taken, so that it is not whole.
    spoilt: u64,
}

/// What happened to a page between the snapshot and the fork.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing: its content is in its slot.
    OnArea,
    /// It was mapped again, or was about to be.
    CameBack,
    /// The program gave it back; it may have touched it again since.
    Forgotten,
}

/// Memory for snapshots, used again from fork to fork.
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

/// A snapshot in memory that fork copies. Two words for each region (first page with the hint above
/// it, one past the last), then two for each page (number, packed slot with the mark).
pub struct Snapshot {
    start: NonNull<u64>,
    words: usize,
    sheet: Option<Sheet>,
}

const HEADER_WORDS: usize = size_of::<Header>() / 8;

impl Snapshot {
    /// Write one, on `old` if it fits.
    pub fn write(
        old: Option<Sheet>,
        parent: ProcId,
        child: ProcId,
        regions: &[(PageRange, Hint)],
        pages: &[(Vpn, Slot)],
        charged: u64,
    ) -> Result<Self, Errno> {
        let words = HEADER_WORDS + 2 * (regions.len() + pages.len());
        let sheet = Sheet::of(words, old)?;
        let start = sheet.start;
        let mut snapshot = Snapshot {
            start,
            words,
            sheet: Some(sheet),
        };
        let header = Header {
            parent: parent.index() as u32,
            child: child.index() as u32,
            regions: regions.len() as u64,
            pages: pages.len() as u64,
            charged,
            spoilt: 0,
        };
        // SAFETY: the sheet is large enough and aligned for the header, and ours alone.
        unsafe { start.cast::<Header>().write(header) };
        let body = &mut snapshot.words_mut()[HEADER_WORDS..];
        let hint = |&hint: &Hint| (hint as u64) << HINT;
        let region_words = regions.iter().map(|(r, h)| [r.start.0 | hint(h), r.end.0]);
        let page_words = pages.iter().map(|(page, slot)| [page.0, slot.pack()]);
        for (to, from) in body.chunks_exact_mut(2).zip(region_words.chain(page_words)) {
            to.copy_from_slice(&from);
        }
        Ok(snapshot)
    }

    /// Find the parent's snapshot in a child.
    ///
    /// # Safety
    /// `address` is what [`Snapshot::address`] gave in the parent, and the memory is still mapped.
    pub unsafe fn find(address: usize) -> Option<Self> {
        let start = NonNull::new(address as *mut u64)?;
        // SAFETY: by contract a header is there.
        let header = unsafe { start.cast::<Header>().as_ref() };
        let words = HEADER_WORDS + 2 * (header.regions + header.pages) as usize;
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

    /// Where it is.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// The parent's record.
    pub fn parent(&self) -> Option<ProcId> {
        ProcId::new(self.header().parent)
    }

    /// The record that was reserved for the child.
    pub fn child(&self) -> ProcId {
        // It came from a `ProcId` in `write`.
        ProcId::new(self.header().child).unwrap_or_else(|| unreachable!("not a record's number"))
    }

    /// Resident pages that were charged to the child beforehand.
    pub fn charged(&self) -> u64 {
        self.header().charged
    }

    /// The regions, with how the program said it will use each.
    pub fn regions(&self) -> impl Iterator<Item = (PageRange, Hint)> + '_ {
        let n = self.header().regions as usize;
        let hint = |word: u64| match word >> HINT {
            1 => Hint::Sequential,
            2 => Hint::Random,
            _ => Hint::Normal,
        };
        self.words()[HEADER_WORDS..]
            .chunks_exact(2)
            .take(n)
            .map(move |w| (Vpn(w[0] & ((1 << HINT) - 1))..Vpn(w[1]), hint(w[0])))
    }

    /// The pages that were not mapped: number, slot, and what happened to it since.
    pub fn pages(&self) -> impl Iterator<Item = (Vpn, Slot, Fate)> + '_ {
        let skip = HEADER_WORDS + 2 * self.header().regions as usize;
        let fate = |word: u64| match (word & CAME_BACK != 0, word & FORGOTTEN != 0) {
            (_, true) => Fate::Forgotten,
            (true, false) => Fate::CameBack,
            (false, false) => Fate::OnArea,
        };
        let pages = self.words()[skip..].chunks_exact(2);
        pages.map(move |w| (Vpn(w[0]), Slot::unpack(w[1]), fate(w[1])))
    }

    /// Whether memory moved since, so that the child would miss some.
    pub fn is_spoilt(&self) -> bool {
        self.header().spoilt != 0
    }

    /// Managed memory moved to another address.
    pub fn spoil(&mut self) {
        // SAFETY: every snapshot begins with its header, which only the pager changes.
        unsafe { (&raw mut (*self.start.cast::<Header>().as_ptr()).spoilt).write_volatile(1) };
        fence(SeqCst);
    }

    /// `page` is about to be mapped again.
    pub fn returns(&mut self, page: Vpn) {
        self.mark(&(page..page.plus(1)), CAME_BACK);
    }

    /// The program gave the content of `range` back.
    pub fn forget(&mut self, range: &PageRange) {
        self.mark(range, FORGOTTEN);
    }

    fn mark(&mut self, range: &PageRange, mark: u64) {
        let skip = HEADER_WORDS + 2 * self.header().regions as usize;
        let pages = self.words_mut()[skip..].as_chunks_mut::<2>().0;
        let first = pages.partition_point(|w| w[0] < range.start.0);
        for entry in pages[first..].iter_mut().take_while(|w| w[0] < range.end.0) {
            let word = &mut entry[1];
            // A fork may copy this memory at any instant, so the word is written whole.
            // SAFETY: a plain word of ours.
            unsafe { core::ptr::from_mut(word).write_volatile(*word | mark) };
        }
        // The mark must be there before what it announces.
        fence(SeqCst);
    }

    /// Give the memory back; the sheet serves the next fork.
    pub fn free(self) -> Option<Sheet> {
        let sheet = self.sheet?;
        // SAFETY: nobody reads the sheet any more; its pages are dropped.
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
