//! The thread that serves a guest.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use foreswap_core::units::{PAGE_SIZE, PageRange, Slot, Vpn, len, overlap};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;

use super::areas::{Areas, Page, Reserved};
use super::lacking::{Content, Lacking};
use super::{Child, ENDS, LOOK};
use crate::ledger::{AreaId, AreaState};
use crate::pager::boot::bytes_of;
use crate::pager::lazy::{Heard, Notes as _};
use crate::pager::moves::Move;
use crate::sys::thread;
use crate::sys::uffd::{Outcome, Why};

/// The child of an announced fork makes itself known sooner.
const DOUBT: Duration = Duration::from_secs(2);
/// The most pages that one fault brings.
const AROUND: usize = 16;
/// The most pages of one read when all are brought.
const MOST: usize = 64;

/// The memory of a guest, and what the thread that serves it knows.
pub(in crate::pager) struct Guest {
    child: Child,
    lacking: Lacking,
    heard: Heard,
    areas: Option<Areas>,
    /// The connection to the supervisor, if there is one.
    supervisor: Option<Arc<OwnedFd>>,
    /// `None`: it lacks nothing that is in a slot.
    reserved: Option<Arc<Reserved>>,
    /// Pages charged for it.
    charged: u64,
    /// The content of its missing pages is not known.
    is_lost: bool,
    /// It may be the child of an announced fork until then, which would make itself known.
    in_doubt_until: Option<Instant>,
    /// Its children, while there is no thread for them.
    children: Vec<Guest>,
    buffer: Vec<Page>,
}

/// A change of the parent's memory whose thread may not have gone on yet.
pub(in crate::pager) enum Recent {
    /// Memory moved.
    Moved(Move),
    /// Memory with content was unmapped.
    Unmapped(PageRange),
}

/// The end of a guest, or of its memory.
struct Ended;

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `start` made the pointer from a box and gave it to this thread alone.
    let mut guest = unsafe { Box::from_raw(argument.cast::<Guest>()) };
    while guest.step().is_ok() {}
    guest.leave();
}

impl Guest {
    /// The child with the memory `child`, of which `regions` are registered, and which lacks `lacking`.
    /// Without `areas` it is not known what its missing pages hold.
    pub(super) fn new(
        child: Child,
        supervisor: Option<Arc<OwnedFd>>,
        regions: Vec<PageRange>,
        lacking: Lacking,
        areas: Option<Areas>,
        reserved: Option<Arc<Reserved>>,
    ) -> Self {
        Guest {
            child,
            supervisor,
            lacking,
            heard: Heard::of(regions),
            is_lost: areas.is_none(),
            areas,
            reserved,
            charged: 0,
            in_doubt_until: None,
            children: Vec::new(),
            buffer: vec![Page([0; PAGE_SIZE]); MOST],
        }
    }

    /// It may be the child of an announced fork. The supervisor does not keep its memory, or it could not register it.
    pub(super) fn is_in_doubt(&mut self) {
        self.in_doubt_until = Some(Instant::now() + DOUBT);
    }

    /// Serve it on a thread of its own. Without one, it is returned.
    pub(super) fn start(self) -> Option<Self> {
        let argument = Box::into_raw(Box::new(self)).cast::<c_void>();
        // SAFETY: `work` keeps to the rules for engine threads and gets its argument alone.
        let spawned = unsafe { thread::spawn(c"fs-guest", 128 << 10, true, work, argument) };
        spawned.is_err().then(|| {
            // SAFETY: the thread did not start, so the argument was not used.
            *unsafe { Box::from_raw(argument.cast::<Guest>()) }
        })
    }

    /// Serve what has arrived, and wait for more.
    fn step(&mut self) -> Result<(), Ended> {
        self.read();
        if let Some(until) = self.in_doubt_until {
            if self.lacking.is_announced {
                return Err(Ended);
            }
            if Instant::now() > until {
                self.in_doubt_until = None;
                if let Some(supervisor) = &self.supervisor {
                    self.child.is_kept_by(supervisor);
                }
            }
        }
        for write in core::mem::take(&mut self.heard.copies) {
            self.open(write.page)?;
        }
        for (address, ..) in core::mem::take(&mut self.heard.faults) {
            self.bring(Vpn::of(address), AROUND)?;
        }
        self.bring_what_must_come()?;
        let mut fds = [PollFd::new(&self.child.uffd, PollFlags::IN)];
        match poll(&mut fds, Some(&LOOK)) {
            Ok(0) => self.check(),
            _ => Ok(()),
        }
    }

    /// Read events. Children of the guest become guests.
    fn read(&mut self) {
        loop {
            self.heard.read(&self.child.uffd, &mut self.lacking);
            let less = core::mem::take(&mut self.lacking.discarded).min(self.charged);
            self.charged -= less;
            if let Some(reserved) = &self.reserved {
                reserved.ledger.uncharge(reserved.record, less);
                let put = core::mem::take(&mut self.lacking.put);
                put.into_iter().for_each(|slot| reserved.put(slot));
            }
            let Some(child) = self.heard.forked.pop() else {
                break;
            };
            self.take_guest(child);
        }
        let children = core::mem::take(&mut self.children).into_iter();
        self.children = children.filter_map(Guest::start).collect();
    }

    fn take_guest(&mut self, child: Child) {
        if let Some(supervisor) = &self.supervisor {
            child.is_kept_by(supervisor);
        }
        let areas = self.areas.as_ref().map(Areas::try_clone);
        let areas = areas.and_then(Result::ok);
        let pages = self.lacking.pages.clone();
        if let Some(reserved) = &self.reserved {
            for (_, content) in &pages {
                if let Content::Slot(slot) = content {
                    reserved.share(*slot);
                }
            }
        }
        let areas = areas.filter(|_| !self.is_lost);
        let regions = self.heard.regions.clone();
        let (supervisor, reserved) = (self.supervisor.clone(), self.reserved.clone());
        let lacking = Lacking::of(pages, self.lacking.files.clone());
        let guest = Guest::new(child, supervisor, regions, lacking, areas, reserved);
        self.children.push(guest);
    }

    /// The parent reports a move after the fork. If the old place is gone in the child, it was before.
    pub(super) fn parent_moved(&mut self, moved: &Move) {
        match self.child.uffd.is_registered(bytes_of(&moved.from).start) {
            Some(true) => {}
            Some(false) => self.moves(moved),
            // The child is changing its memory at this moment.
            None => self.is_lost = true,
        }
    }

    /// The parent reported these changes before the fork. If the old place of a move is there in the child, it was after.
    /// What it replaced is lost. Memory that was unmapped alone is not looked at: no child can know that it is there.
    pub(super) fn parent_had_changed(&mut self, recent: &[Recent]) {
        for change in recent.iter().rev() {
            let Recent::Moved(moved) = change else {
                continue;
            };
            let target = moved.target();
            let is_replaced = |other: &Recent| matches!(other, Recent::Unmapped(range) if len(&overlap(range, &target)) > 0);
            match self.child.uffd.is_registered(bytes_of(&moved.from).start) {
                Some(false) => {}
                Some(true) if !recent.iter().any(is_replaced) => self.moves(&moved.reversed()),
                Some(true) | None => self.is_lost = true,
            }
        }
    }

    fn moves(&mut self, moved: &Move) {
        self.lacking.moves_to(moved);
        let known = self.heard.regions.iter();
        self.heard.regions = known.flat_map(|known| moved.after(known)).collect();
    }

    /// A write to a page that was write-protected in the parent.
    fn open(&mut self, page: Vpn) -> Result<(), Ended> {
        let bytes = bytes_of(&(page..page.plus(1)));
        self.repeat(page, |guest| {
            let uffd = &guest.child.uffd;
            uffd.writeprotect(bytes.start, bytes.len(), false)
        })
    }

    /// Bring `page`, and what the guest lacks behind it, at most `most` pages in all.
    fn bring(&mut self, page: Vpn, most: usize) -> Result<(), Ended> {
        self.repeat(page, |guest| guest.try_to_bring(page, most))?;
        // It is there, or there is no place for it any more.
        self.settle(&(page..page.plus(1)));
        Ok(())
    }

    fn try_to_bring(&mut self, page: Vpn, most: usize) -> Outcome {
        let start = page.address() as usize;
        if self.is_lost {
            return self.child.uffd.poison(start, PAGE_SIZE);
        }
        let Some(at) = self.lacking.find(page) else {
            if let Some(slot) = self.lacking.file_page(page) {
                return self.bring_from_file(page, slot);
            }
            let brought = self.child.uffd.zeropage(start, PAGE_SIZE);
            self.charge(brought.is_ok().into());
            return brought;
        };
        let n = self.gather(at, self.lacking.run(at, most));
        if n == 0 {
            return self.child.uffd.poison(start, PAGE_SIZE);
        }
        let source = self.buffer.as_ptr().cast::<c_void>();
        // SAFETY: the buffer holds `n` pages; the destination is memory of another process.
        let brought = unsafe { self.child.uffd.copy(start, source, n * PAGE_SIZE) };
        let done = match &brought {
            Ok(()) => n as u64,
            Err(short) => (short.done / PAGE_SIZE) as u64,
        };
        self.settle(&(page..page.plus(done)));
        self.charge(done);
        brought
    }

    /// A page that the guest has discarded.
    fn bring_from_file(&mut self, page: Vpn, slot: Slot) -> Outcome {
        let (start, areas) = (page.address() as usize, self.areas.as_mut());
        if areas.map_or(0, |areas| areas.read(slot, &mut self.buffer[..1])) == 0 {
            return self.child.uffd.poison(start, PAGE_SIZE);
        }
        let source = self.buffer.as_ptr().cast::<c_void>();
        // SAFETY: the buffer holds the page; the destination is memory of another process.
        let brought = unsafe { self.child.uffd.copy(start, source, PAGE_SIZE) };
        self.charge(brought.is_ok().into());
        brought
    }

    /// Put the content of the entries from `at` on into the buffer. Returns for how many it is known.
    fn gather(&mut self, at: usize, most: usize) -> usize {
        let mut n = 0;
        while n < most {
            let left = &self.lacking.pages[at + n..at + most];
            let to = &mut self.buffer[n..most];
            match &left[0].1 {
                Content::Slot(first) => {
                    let follows = |(i, (_, content)): (u32, &(Vpn, Content))| {
                        let index = first.index + i;
                        matches!(content, Content::Slot(slot) if *slot == Slot { index, ..*first })
                    };
                    let run = (0..).zip(left).take_while(|entry| follows(*entry)).count();
                    let areas = self.areas.as_mut();
                    let got = areas.map_or(0, |areas| areas.read(*first, &mut to[..run]));
                    n += got;
                    if got < run {
                        break;
                    }
                    continue;
                }
                Content::Filled(word) => to[0].0.as_chunks_mut::<8>().0.fill(word.to_ne_bytes()),
                Content::Bytes(bytes) => to[0].0 = **bytes,
                Content::Nowhere | Content::Settled => break,
            }
            n += 1;
        }
        n
    }

    /// Repeat an operation on `page` until the memory is not changing. What it changed is known before the next try.
    fn repeat(&mut self, page: Vpn, act: impl Fn(&mut Self) -> Outcome) -> Result<(), Ended> {
        loop {
            let Err(short) = act(self) else {
                return Ok(());
            };
            match short.why {
                Why::Again => {
                    self.read();
                    rustix::thread::sched_yield();
                }
                Why::Gone => return Err(Ended),
                // The page is there, or the memory is not registered any more.
                _ => {
                    let _ = self.child.uffd.wake(page.address() as usize, PAGE_SIZE);
                    return Ok(());
                }
            }
        }
    }

    fn settle(&mut self, range: &PageRange) {
        self.lacking
            .span(range)
            .for_each(|at| self.lacking.settle(at));
    }

    fn charge(&mut self, n: u64) {
        if let Some(reserved) = &self.reserved {
            reserved.ledger.charge_anyway(reserved.record, n);
            self.charged += n;
        }
    }

    /// Bring what is on an area that is drained, and everything if the parent has ended.
    fn bring_what_must_come(&mut self) -> Result<(), Ended> {
        let Some(areas) = self.areas.as_ref().filter(|_| !self.is_lost) else {
            return Ok(());
        };
        let (ledger, ends) = (areas.ledger, ENDS.load(SeqCst));
        let is_drained = |area: AreaId| ledger.area_state(area) == AreaState::Draining;
        if !ends && !ledger.areas().any(is_drained) {
            return Ok(());
        }
        let mut at = 0;
        while at < self.lacking.pages.len() {
            let (page, content) = &self.lacking.pages[at];
            let must_come = match content {
                Content::Settled => false,
                Content::Slot(slot) => ends || is_drained(AreaId(slot.area)),
                _ => ends,
            };
            match must_come {
                true => self.bring(*page, MOST)?,
                false => at += 1,
            }
            if !self.heard.faults.is_empty() || !self.heard.copies.is_empty() {
                // Threads come first.
                return Ok(());
            }
        }
        // Memory may have moved meanwhile, to a place that was passed.
        let lacks = (0..self.lacking.pages.len()).any(|at| !self.lacking.is_settled(at));
        if ends && !lacks && self.children.is_empty() {
            Err(Ended)
        } else {
            Ok(())
        }
    }

    /// Whether the guest still has its memory.
    fn check(&self) -> Result<(), Ended> {
        let region = self.heard.regions.first().ok_or(Ended)?;
        match self.child.uffd.exists(region.start.address() as usize) {
            true => Ok(()),
            false => Err(Ended),
        }
    }

    /// The guest has ended, or has all its pages.
    fn leave(&mut self) {
        let Some(reserved) = &self.reserved else {
            return;
        };
        reserved.ledger.uncharge(reserved.record, self.charged);
        let left = 0..self.lacking.pages.len();
        left.for_each(|at| self.lacking.settle(at));
        let put = core::mem::take(&mut self.lacking.put);
        put.into_iter().for_each(|slot| reserved.put(slot));
    }
}
