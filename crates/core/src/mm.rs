//! The memory manager of one process, and changes of its address space.
//!
//! [`Mm`] owns the page table, the regions, the frames and the slots. A driver reports events (a fault, a discard, a
//! completed I/O) and gives it time to work in between ([`Mm::run`]). It acts through [`World`]. Each module makes one
//! kind of decision: `fault` brings pages in, `reclaim` evicts them, `io` submits and completes, `space::snapshot`
//! prepares a fork. This module updates the tables when the program maps, discards, moves and unmaps memory.

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

/// Parameters that are chosen at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Frames of the arena.
    pub frames: u32,
    /// I/Os that the store accepts at a time.
    pub depth: u32,
    /// Swap readahead policy.
    pub readahead: Policy,
    /// How long a fault waits for memory when no page can be freed.
    pub full_timeout: Nanos,
    /// Largest batch of a first touch, in pages.
    pub first_touch: u32,
    /// How an area is emptied.
    pub swapoff: Swapoff,
    /// When memory is managed in huge pages.
    pub thp: Thp,
    /// Clusters of 512 frames for huge pages. If there are any, the number of the other frames is a multiple of 512.
    pub clusters: u32,
}

/// Frames that are used however low the limit is.
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

/// The result of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// The page is mapped and the thread runs.
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
    /// The page of each slot must be known.
    pub(crate) by_slot: bool,
    /// Readahead state of all regions together.
    pub(crate) shared: Shared,
    /// Requests to the swap areas.
    pub(crate) io: IoScheduler,
    pub(crate) marks: Watermarks,
    /// Counters since the start.
    pub stats: Stats,
    /// Position of reclaim's clock hand.
    pub(crate) hand: Vpn,
    /// Background reclaim is awake.
    pub(crate) awake: bool,
    /// Pages evicted so far.
    pub(crate) evictions: u64,
    /// Pages shared by a fork that are being copied.
    pub(crate) unsharing: Unsharing,
    /// The last try found no free slot.
    pub(crate) areas_full: bool,
    /// Faults that found the address space changing.
    pub(crate) retry: Vec<Pending>,
    /// Faults that found no memory, in order.
    pub(crate) stalled: VecDeque<Pending>,
    /// Pages that were mapped for threads a moment ago.
    pub(crate) recent_faults: RecentFaults,
    /// Discarded ranges that the kernel may not have zapped yet.
    pub(crate) discarded: Discarded,
    /// Until then the limit yields at once, as no page could be evicted lately.
    pub(crate) passing_until: Nanos,
    /// A fork is held: nothing is evicted.
    pub(crate) held: bool,
    pub(crate) victims: Vec<Vpn>,
    pub(crate) streams: Streams,
    pub(crate) byte_strides: ByteStrides,
    pub(crate) huge: Huge,
    /// Buffers for lists that are built again each time.
    pub(crate) batch: Vec<(Slot, Frame)>,
    pub(crate) homeless: Vec<Frame>,
    pub(crate) wants: Vec<(u64, Vpn, Slot)>,
    pub(crate) maps: Vec<(Vpn, Frame)>,
    pub(crate) advised: Advised,
    /// State of swapoff.
    pub(crate) drain: Drain,
    /// State of write-back: how cold pages leave an area that compresses.
    pub(crate) back: WriteBack,
    /// Slots that failed. They keep their reference, and no process uses them again.
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

    /// The memory that this process can count on has changed: the limit, or its share of it.
    pub fn on_limit(&mut self, pages: u64) {
        // The number of frames stays; with little memory fewer of them are used.
        let frames = u64::from(self.config.frames).min((pages / 4).max(LEAST_FRAMES));
        self.marks = Watermarks::new(pages, frames as u32);
    }

    /// Managed pages.
    pub fn managed(&self) -> u64 {
        self.vmas.pages()
    }

    /// Pages of memory in use: the program's pages and the memory of our frames.
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

    /// At the last write no area accepted a page, and no slot is known to have become free since.
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

    /// Whether `page` is in a managed region.
    pub fn manages(&self, page: Vpn) -> bool {
        self.vmas.find(page).is_some()
    }

    /// All managed regions.
    pub fn regions(&self) -> impl Iterator<Item = &crate::space::vma::Vma> {
        self.vmas.iter()
    }

    /// Pages of `range` that are mapped, and pages that are in a frame or on an area.
    pub fn usage(&self, range: &PageRange) -> (u64, u64) {
        self.table.usage(range)
    }

    /// Where `page` is.
    pub fn entry(&self, page: Vpn) -> Entry {
        self.table.get(page)
    }

    /// Whether readahead read `page`, or is about to, and it has not been touched since.
    pub fn is_ahead(&self, page: Vpn) -> bool {
        matches!(self.table.get(page), Entry::Cached(frame) if self.frames.get(frame).ahead)
    }

    /// Manage `range`. `present` are the pages that the program has touched already.
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

    /// `range`, of which nothing was evicted yet, is memory of a file, for example of a tmpfs. The kernel reads ahead
    /// by
    /// slot there, not by address; our policy follows when it is the kernel's.
    pub fn set_file(&mut self, range: &PageRange) {
        self.vmas.set_file(range);
        self.by_slot |= matches!(self.config.readahead, Policy::Vma(_)) && self.vmas.has_file();
    }

    /// The program discarded the content of `range`; it reads as zeros from now on.
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

    /// Faults from before a discard fault again. If they were served later, they could map the old content: the kernel
    /// zaps the pages only after the event was read.
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

    /// `range` was unmapped.
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
                    // Its poison mark may not be set yet, or not have moved along: set it again.
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
                    // The I/O continues; its frame and slot are freed when it completes. Until then no other page may
                    // get the slot of a write.
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

    /// Other processes look for slots: release the clusters that we claimed and have not used.
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

    /// Every slot reference that is held, once each; for tests.
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

    /// Check the invariants; for tests. Returns a description of the first violation.
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
