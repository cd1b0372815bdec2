//! The memory manager of one process, and what happens to its address space.
//!
//! [`Mm`] owns the page table, the regions, the frames and the slots. A driver tells it what
//! happens (a fault, a discard, a completed I/O) and lets it work in between ([`Mm::run`]); it acts
//! through [`World`]. The life of a page is spread over the modules by idea: `fault` brings pages,
//! `reclaim` moves them out, `io` submits and completes, `snapshot` holds still for a fork. This
//! one keeps the books when the program maps, discards, moves and unmaps.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crate::fault::grace::RecentFaults;
use crate::fault::unaccounted::Discarded;
use crate::frames::{Frames, State};
use crate::huge::{Huge, Thp};
use crate::io::scheduler::{self, IoScheduler};
use crate::readahead::byte_stride::ByteStrides;
use crate::readahead::streams::Streams;
use crate::readahead::{Policy, Shared};
use crate::reclaim::{Unsharing, Watermarks};
use crate::space::advice::{Advised, Hint};
use crate::space::page_table::{Entry, PageTable, Resident};
use crate::space::vma::Vmas;
use crate::stats::Stats;
use crate::swap::owners::Owners;
use crate::swap::slots::Slots;
use crate::swap::swapoff::{Drain, Swapoff};
use crate::swap::write_back::WriteBack;
use crate::units::{Frame, Nanos, PageRange, Slot, Vpn, len};
use crate::world::{Limit, SwapMap, World};

/// What is chosen at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Frames of the arena.
    pub frames: u32,
    /// I/Os that the store takes at a time.
    pub depth: u32,
    /// Swap readahead.
    pub readahead: Policy,
    /// How long a fault waits for memory when no page can be freed.
    pub full_timeout: Nanos,
    /// Largest batch of a first touch, in pages.
    pub first_touch: u32,
    /// How an area is emptied.
    pub swapoff: Swapoff,
    /// When memory is managed in huge pages.
    pub thp: Thp,
    /// Clusters of 512 frames for huge pages; the number of the other frames is a multiple of 512 then.
    pub clusters: u32,
}

/// Frames that are put to use however low the limit is set.
const LEAST_FRAMES: u64 = 512;

/// A fault that has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub page: Vpn,
    /// Where in the page, in bytes.
    pub offset: u16,
    pub since: Nanos,
    /// Since when it waits for memory, if it does.
    pub stalled: Option<Nanos>,
}

impl Pending {
    /// A fault of `page` that came at `since`.
    pub fn of(page: Vpn, since: Nanos) -> Self {
        Pending {
            page,
            offset: 0,
            since,
            stalled: None,
        }
    }

    pub fn address(&self) -> u64 {
        self.page.address() + u64::from(self.offset)
    }
}

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The page is there and the thread goes on.
    Served,
    /// The thread waits: for an I/O, for memory, or for an event to be drained.
    Waits,
    /// The page is in no managed region.
    Unmanaged,
}

/// The memory manager of one process.
pub struct Mm {
    pub(crate) config: Config,
    pub(crate) table: PageTable,
    pub(crate) vmas: Vmas,
    pub(crate) frames: Frames,
    pub(crate) slots: Slots,
    pub(crate) owners: Owners,
    /// Whose page is in a slot must be known.
    pub(crate) by_slot: bool,
    /// What readahead remembers of all regions together.
    pub(crate) shared: Shared,
    /// Requests to the swap areas.
    pub(crate) io: IoScheduler,
    pub(crate) marks: Watermarks,
    /// Counters since the start.
    pub stats: Stats,
    /// Where the clock hand of reclaim stands.
    pub(crate) hand: Vpn,
    /// Background reclaim is awake.
    pub(crate) awake: bool,
    /// Pages moved out so far.
    pub(crate) evictions: u64,
    /// Pages of a fork that are being copied.
    pub(crate) unsharing: Unsharing,
    /// No slot was free at the last try.
    pub(crate) areas_full: bool,
    /// Faults that found the address space changing.
    pub(crate) retry: Vec<Pending>,
    /// Faults that found no memory, in order.
    pub(crate) stalled: VecDeque<Pending>,
    /// Pages that were mapped for threads a moment ago.
    pub(crate) recent_faults: RecentFaults,
    /// What the kernel may still take away.
    pub(crate) discarded: Discarded,
    /// Until then the limit yields at once, as nothing could be moved out lately.
    pub(crate) passing_until: Nanos,
    /// A fork is being held: nothing is moved out.
    pub(crate) held: bool,
    pub(crate) victims: Vec<Vpn>,
    pub(crate) streams: Streams,
    pub(crate) byte_strides: ByteStrides,
    pub(crate) huge: Huge,
    /// Room for lists that are made anew each time.
    pub(crate) batch: Vec<(Slot, Frame)>,
    pub(crate) homeless: Vec<Frame>,
    pub(crate) wants: Vec<(u64, Vpn, Slot)>,
    pub(crate) maps: Vec<(Vpn, Frame)>,
    pub(crate) advised: Advised,
    /// The area that is being emptied.
    pub(crate) drain: Drain,
    /// How cold pages leave an area that compresses.
    pub(crate) back: WriteBack,
    /// Slots that failed: they keep their reference, so that nobody uses them again.
    pub(crate) bad: Vec<Slot>,
    #[cfg(feature = "planted")]
    pub(crate) planted: Option<crate::planted::Bug>,
}

impl Mm {
    /// A memory manager that manages nothing yet.
    pub fn new(config: Config, limit: u64) -> Self {
        let marks = Watermarks::new(limit, config.frames);
        let window = match config.readahead {
            Policy::Streams(max) => max,
            Policy::None | Policy::Vma(_) | Policy::Cluster(_) | Policy::Trend(_) => 0,
        };
        Mm {
            config,
            table: PageTable::default(),
            vmas: Vmas::default(),
            frames: Frames::new(config.frames, config.clusters),
            slots: Slots::default(),
            owners: Owners::default(),
            by_slot: config.readahead.goes_by_slot(),
            shared: Shared::default(),
            io: IoScheduler::new(scheduler::Config::new(config.depth)),
            streams: Streams::new(window),
            byte_strides: ByteStrides::new(window),
            huge: Huge::default(),
            marks,
            stats: Stats::default(),
            hand: Vpn(0),
            awake: false,
            evictions: 0,
            unsharing: Unsharing::default(),
            areas_full: false,
            retry: Vec::new(),
            stalled: VecDeque::new(),
            recent_faults: RecentFaults::default(),
            discarded: Discarded::default(),
            passing_until: 0,
            held: false,
            victims: Vec::new(),
            batch: Vec::new(),
            homeless: Vec::new(),
            wants: Vec::new(),
            maps: Vec::new(),
            advised: Advised::default(),
            drain: Drain::default(),
            back: WriteBack::default(),
            bad: Vec::new(),
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// What memory this process can count on has changed: the limit, or its share of it.
    pub fn on_limit(&mut self, pages: u64) {
        // The frames stay as many; with little memory fewer of them are put to use.
        let frames = u64::from(self.config.frames).min((pages / 4).max(LEAST_FRAMES));
        self.marks = Watermarks::new(pages, frames as u32);
    }

    /// Managed pages.
    pub fn managed(&self) -> u64 {
        self.vmas.pages()
    }

    /// Pages of memory in use: the program's and those behind our frames.
    pub fn resident(&self) -> u64 {
        self.table.resident() + u64::from(self.frames.backed())
    }

    /// A thread waits for a read in flight.
    pub fn is_awaited(&self) -> bool {
        self.frames.awaited() > 0
    }

    /// Background reclaim is awake: memory is short.
    pub fn is_reclaiming(&self) -> bool {
        self.awake
    }

    /// No area took a page when one was to be written last, and nothing has shown since that one would.
    pub fn is_out_of_slots(&self) -> bool {
        self.areas_full
    }

    /// Pages that are mapped in the program.
    pub fn mapped(&self) -> u64 {
        self.table.resident()
    }

    /// The managed parts of `range`, in order.
    pub fn managed_in(&self, range: &PageRange) -> Vec<PageRange> {
        self.vmas.overlapping(range)
    }

    /// Is `page` in a managed region?
    pub fn manages(&self, page: Vpn) -> bool {
        self.vmas.find(page).is_some()
    }

    /// All managed regions.
    pub fn regions(&self) -> impl Iterator<Item = &crate::space::vma::Vma> {
        self.vmas.iter()
    }

    /// Pages of `range` that are mapped, and that are in a frame or on an area.
    pub fn usage(&self, range: &PageRange) -> (u64, u64) {
        self.table.usage(range)
    }

    /// Where `page` is.
    pub fn entry(&self, page: Vpn) -> Entry {
        self.table.get(page)
    }

    /// Whether readahead brought `page`, or is about to, and it has not been touched since.
    pub fn is_ahead(&self, page: Vpn) -> bool {
        matches!(self.table.get(page), Entry::Cached(frame) if self.frames.get(frame).ahead)
    }

    /// Manage `range`. `present` are those of its pages that the program has touched already.
    pub fn adopt(&mut self, w: &mut impl World, range: PageRange, present: &[PageRange]) {
        self.vmas.insert(range);
        let mut found = 0;
        for page in present.iter().flat_map(crate::units::pages) {
            if self.table.get(page) == Entry::Unmapped {
                self.table.set(
                    page,
                    Entry::Resident(Resident {
                        slot: None,
                        refs: 1,
                        found: true,
                    }),
                );
                found += 1;
            }
        }
        for run in present {
            if let Some(vma) = self.vmas.find_mut(run.start) {
                let pages = u32::try_from(crate::units::len(run)).unwrap_or(u32::MAX);
                let run = vma.streams.mapped(run.start, pages);
                self.streams.filled(&run, pages);
            }
        }
        w.charge_existing(found);
    }

    /// `range`, of which nothing was on an area yet, is memory of a file, as of a tmpfs: the kernel's
    /// readahead by address leaves it to the one by slot, and so does ours when it takes that policy.
    pub fn set_file(&mut self, range: &PageRange) {
        self.vmas.set_file(range);
        self.by_slot |= matches!(self.config.readahead, Policy::Vma(_)) && self.vmas.has_file();
    }

    /// The program gave the content of `range` back; it reads as zeros from now on.
    pub fn discard(&mut self, w: &mut impl World, range: &PageRange) {
        self.note_discard(range, w.now());
        self.forget_all(w, range, |entry| entry != Entry::Guarded);
    }

    /// Drop the content of the pages of `range` that are `wanted`.
    fn forget_all(&mut self, w: &mut impl World, range: &PageRange, wanted: fn(Entry) -> bool) {
        self.refuse_pending(w, range);
        self.advised.cancel(range);
        self.split_in(range);
        for part in self.vmas.overlapping(range) {
            let mut at = part.start;
            while let Some((page, entry)) = self.table.next_used(at, part.end) {
                if wanted(entry) {
                    self.forget(w, page, entry);
                }
                at = page.plus(1);
            }
        }
    }

    /// Faults from before a discard fault again. Served later, one could find the old content, which
    /// the kernel takes away only after its event was read, and keep it.
    fn refuse_pending(&mut self, w: &mut impl World, range: &PageRange) {
        let mut keep = |pending: &Pending| {
            let keep = !range.contains(&pending.page);
            if !keep {
                w.wake(pending.page);
            }
            keep
        };
        self.retry.retain(&mut keep);
        self.stalled.retain(&mut keep);
    }

    /// `range` is gone from the address space.
    pub fn unmap(&mut self, w: &mut impl World, range: &PageRange) {
        self.forget_all(w, range, |_| true);
        self.vmas.remove(range);
    }

    /// The program moved `from` to `to`, with all content.
    pub fn remap(&mut self, w: &mut impl World, from: &PageRange, to: Vpn) {
        self.unmap(w, &(to..to.plus(len(from))));
        self.advised.cancel(from);
        for part in self.vmas.overlapping(from) {
            let target = |page: Vpn| Vpn(page.0 - from.start.0 + to.0);
            let hint = self.vmas.find(part.start).map_or(Hint::Normal, |v| v.hint);
            let moved = target(part.start)..target(part.end);
            self.vmas.insert(moved.clone());
            self.vmas.set_hint(&moved, hint);
            let mut at = part.start;
            while let Some((page, entry)) = self.table.next_used(at, part.end) {
                self.table.set(page, Entry::Unmapped);
                self.table.set(target(page), entry);
                self.note_moved(entry, target(page));
                if let Entry::Cached(frame) = entry {
                    self.frames.single_out(frame);
                    self.frames.get_mut(frame).page = Some(target(page));
                    w.wake(page);
                }
                if entry == Entry::Poisoned {
                    // Its mark may not be set yet, or not have moved along: set it again.
                    w.wake(page);
                    self.retry.push(Pending::of(target(page), w.now()));
                }
                at = page.plus(1);
            }
        }
        self.vmas.remove(from);
    }

    /// Drop the content of one page, wherever it is.
    fn forget(&mut self, w: &mut impl World, page: Vpn, entry: Entry) {
        self.table.set(page, Entry::Unmapped);
        match entry {
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {}
            Entry::Resident(Resident { slot, .. }) => {
                self.put(w, slot);
                w.uncharge(1);
            }
            Entry::Swapped { slot, .. } => self.put(w, Some(slot)),
            Entry::Cached(frame) => {
                self.frames.single_out(frame);
                let desc = *self.frames.get(frame);
                if desc.ahead {
                    self.end_ahead(page, &desc, false);
                }
                match desc.state {
                    #[cfg(feature = "planted")]
                    State::Reading if self.has(crate::planted::Bug::StaleWindow) => {}
                    #[cfg(feature = "planted")]
                    State::Writing if self.has(crate::planted::Bug::MissedDiscard) => {}
                    // The I/O goes on: what it leaves behind is freed when it completes. The slot
                    // of a write must not be taken by another page before that.
                    State::Writing => self.frames.get_mut(frame).page = None,
                    State::Reading => {
                        self.put(w, desc.slot);
                        let desc = self.frames.get_mut(frame);
                        desc.page = None;
                        desc.slot = None;
                    }
                    _ => {
                        self.put(w, desc.slot);
                        self.frames.set_free(frame);
                    }
                }
                #[cfg(feature = "planted")]
                if self.has(crate::planted::Bug::LostWakeUp) {
                    return;
                }
                if desc.wanted {
                    w.wake(page);
                }
            }
        }
    }

    /// Others look for room on the areas: let them have what we claimed and have not used.
    pub fn give_back_slots(&mut self, w: &mut impl SwapMap) {
        self.slots.give_back(w);
    }

    /// Drop our reference to a slot.
    pub(crate) fn put(&mut self, w: &mut impl World, slot: Option<Slot>) {
        if let Some(slot) = slot {
            w.put(slot);
            self.areas_full = false;
        }
    }

    /// Every reference to a slot that is held, once each; for tests.
    pub fn references(&self, out: &mut Vec<Slot>) {
        out.extend(self.frames.iter().filter_map(|(_, desc)| desc.slot));
        for (_, entry) in self.table.iter() {
            match entry {
                Entry::Swapped { slot, .. } => out.push(slot),
                Entry::Resident(resident) => out.extend(resident.slot),
                Entry::Unmapped
                | Entry::Cached(_)
                | Entry::SameFilled(_)
                | Entry::Poisoned
                | Entry::Guarded => {}
            }
        }
    }

    /// Check what must always hold; for tests. Names what does not.
    pub fn check(&self, w: &(impl SwapMap + Limit), charged: u64) -> Result<(), &'static str> {
        if charged != self.resident() {
            return Err("the charge is not what is resident");
        }
        self.table.check()?;
        self.frames.clusters.check()?;
        for (frame, desc) in self.frames.iter() {
            if let Some((id, unit)) = self.frames.unit_of(frame) {
                let n = frame.0 - self.frames.clusters.first(id).0;
                if desc.page != Some(unit.plus(n.into())) {
                    return Err("a unit's frame holds another page");
                }
            }
            let cached = desc
                .page
                .is_some_and(|p| self.table.get(p) == Entry::Cached(frame));
            match desc.state {
                State::Empty | State::Free if desc.page.is_some() => {
                    return Err("a frame without content has a page");
                }
                State::Clean | State::Dirty if !cached => {
                    return Err("a cached page is not in the table");
                }
                State::Reading | State::Writing if desc.page.is_some() && !cached => {
                    return Err("a page in flight is not in the table");
                }
                State::Clean if desc.slot.is_none_or(|s| w.count(s) == 0) => {
                    return Err("a clean page has no slot");
                }
                _ => {}
            }
        }
        let mut vmas = self.vmas.iter().peekable();
        for (page, entry) in self.table.iter() {
            let slot = match entry {
                Entry::Swapped { slot, .. } => Some(slot),
                Entry::Resident(resident) => resident.slot,
                Entry::Cached(frame) if self.frames.get(frame).page != Some(page) => {
                    return Err("a frame does not know its page");
                }
                _ => None,
            };
            if slot.is_some_and(|s| w.count(s) == 0) {
                return Err("a page's slot is free");
            }
            while vmas.next_if(|vma| vma.range.end <= page).is_some() {}
            if vmas.peek().is_none_or(|vma| page < vma.range.start) {
                return Err("a page outside of all regions");
            }
        }
        Ok(())
    }
}
