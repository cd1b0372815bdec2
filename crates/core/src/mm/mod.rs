//! The memory manager of one process, and changes of its address space.
//!
//! [`Mm`] owns the machines: the page table and the regions (`space`), the frames, the swap areas, the I/O, reclaim,
//! waiting faults, readahead and huge pages. Each machine decides on its own state and on plain inputs. The files here
//! join several machines and act through [`World`]; no machine imports them. A driver reports events (a fault, a
//! discard, a completed I/O) and gives time to work in between ([`Mm::run`]). This file updates the tables when the
//! program maps, discards, moves and unmaps memory.

mod advice;
mod ahead_counts;
mod background;
mod complete;
mod drop_behind;
mod evict;
mod fault;
mod files;
mod guard;
mod huge_drain;
mod huge_frames;
mod huge_in;
mod huge_out;
mod prefetch;
mod same_filled;
mod snapshot;
mod stalled;
mod submit;
mod swap_cache;
mod swapoff;
mod swapoff_by_page;
mod turn;
mod unaccounted;
mod unshare;
mod write_back;

use alloc::vec::Vec;

use crate::fault::out_of_memory::Config as Patience;
use crate::fault::{Pending, Waiters};
use crate::frames::clusters::{List, UNIT};
use crate::frames::{Frames, State};
use crate::heuristics::{Heuristic, Heuristics};
use crate::huge::{Huge, Thp};
use crate::io::scheduler::{self, IoScheduler};
use crate::readahead::byte_stride::ByteStrides;
use crate::readahead::streams::Streams;
use crate::readahead::{Hint, Policy, Shared};
use crate::reclaim::Reclaim;
use crate::reclaim::any_policy::Policy as ReclaimPolicy;
use crate::reclaim::unshare::Unsharing;
use crate::space::advice::Advised;
use crate::space::discarded::Discarded;
use crate::space::page_table::{Entry, PageTable, Resident};
use crate::space::vma::Vmas;
use crate::stats::Stats;
use crate::swap::drain::{self, Drain, Swapoff};
use crate::swap::files::FileDigests;
use crate::swap::owners::Owners;
use crate::swap::slots::Slots;
use crate::swap::tiers::Reads;
use crate::swap::write_back::WriteBack;
use crate::units::{Frame, Nanos, PageRange, Slot, Vpn, len};
use crate::world::{Limit, SwapMap, World};

/// New mappings of fewer pages (64 KiB) are managed beside managed memory only.
pub const SMALL: u64 = 16;

/// Parameters that are chosen at the start.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Frames of the arena.
    pub frames: u32,
    /// I/Os that the store accepts at a time.
    pub depth: u32,
    /// Swap readahead policy.
    pub readahead: Policy,
    /// Which page is evicted next.
    pub reclaim: ReclaimPolicy,
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

/// Buffers for lists that are built again each time.
#[derive(Default)]
struct Buffers {
    batch: Vec<(Slot, Frame)>,
    without_slot: Vec<Frame>,
    victims: Vec<Vpn>,
    units: Vec<Vpn>,
    wants: Vec<(u64, Vpn, Slot)>,
    maps: Vec<(Vpn, Frame)>,
    met: Vec<(Vpn, Entry)>,
}

/// The memory manager of one process: its machines, and the actions that join them.
pub struct Mm {
    config: Config,
    /// Where each page is.
    table: PageTable,
    /// The managed regions.
    vmas: Vmas,
    /// Advice of the program that is to be carried out.
    advised: Advised,
    /// Discarded ranges that the kernel may not have zapped yet.
    discarded: Discarded,
    /// A fork is held: nothing is evicted.
    held: bool,
    frames: Frames,
    /// Slots that this process takes on the swap areas.
    slots: Slots,
    /// The page of each slot, if a policy asks for it.
    owners: Owners,
    /// The content of file pages.
    files: FileDigests,
    /// swapoff.
    drain: Drain,
    /// How cold pages leave an area that compresses.
    /// By area.
    write_back: Vec<WriteBack>,
    area_reads: Reads,
    /// Requests to the swap areas.
    io: IoScheduler,
    reclaim: Reclaim,
    /// Pages shared by a fork that are being copied.
    unsharing: Unsharing,
    /// Faults that wait.
    waiters: Waiters,
    /// Runs of touches that readahead follows, at strides in pages and in bytes.
    streams: Streams,
    byte_strides: ByteStrides,
    /// The state of the readahead policies.
    policies: Shared,
    huge: Huge,
    /// Counters since the start.
    pub stats: Stats,
    /// What the process lost while it waited for its turn.
    refill: Option<turn::Refill>,
    buffers: Buffers,
    heuristics: Heuristics,
    #[cfg(feature = "planted")]
    planted: Option<crate::planted::Bug>,
}

impl Mm {
    /// A memory manager that manages nothing yet.
    pub fn new(config: Config, limit: u64) -> Self {
        Mm {
            config,
            table: PageTable::default(),
            vmas: Vmas::default(),
            advised: Advised::default(),
            discarded: Discarded::default(),
            held: false,
            frames: Frames::new(config.frames, config.clusters),
            slots: Slots::default(),
            owners: Owners::new(config.readahead.goes_by_slot()),
            files: FileDigests::default(),
            drain: Drain::new(drain::Config::new(config.frames)),
            write_back: Vec::new(),
            area_reads: Reads::default(),
            io: IoScheduler::new(scheduler::Config::new(config.depth)),
            reclaim: Reclaim::new(config.reclaim, limit, config.frames),
            unsharing: Unsharing::default(),
            waiters: Waiters::new(Patience::new(config.full_timeout)),
            streams: Streams::new(config.readahead.stream_window()),
            byte_strides: ByteStrides::new(config.readahead.stream_window()),
            policies: Shared::default(),
            huge: Huge::default(),
            stats: Stats::default(),
            refill: None,
            buffers: Buffers::default(),
            heuristics: Heuristics::default(),
            #[cfg(feature = "planted")]
            planted: None,
        }
    }

    /// The memory that this process can count on has changed: the limit, or its share of it.
    pub fn on_limit(&mut self, pages: u64) {
        self.reclaim.set_memory(pages);
    }

    /// Whether `heuristic` is in use.
    fn uses(&self, heuristic: Heuristic) -> bool {
        self.heuristics.has(heuristic)
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
        self.reclaim.is_awake()
    }

    /// At the last write no area accepted a page, and no slot is known to have become free since.
    pub fn is_out_of_slots(&self) -> bool {
        self.slots.are_full()
    }

    /// Frames whose memory is free, pages.
    pub fn free_frames(&self) -> u64 {
        let units = u64::from(self.frames.clusters().count(List::Free) * UNIT);
        u64::from(self.frames.free()) + units
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

    /// Whether a new mapping at `range` is to be managed. A small one is left alone, except beside managed memory: between
    /// managed parts it would keep the kernel from joining them. It has to be registered before it is touched.
    pub fn takes_new(&self, range: &PageRange) -> bool {
        let before = Vpn(range.start.0.saturating_sub(1));
        len(range) >= SMALL || self.manages(before) || self.manages(range.end)
    }

    /// All managed regions.
    pub fn regions(&self) -> impl Iterator<Item = &crate::space::vma::Vma> {
        self.vmas.iter()
    }

    /// Pages of `range` that are mapped, and pages that are in a frame or on an area.
    pub fn usage(&self, range: &PageRange) -> (u64, u64) {
        self.table.usage(range)
    }

    /// Whether any page of `range` was touched and not discarded since.
    pub fn has_content(&self, range: &PageRange) -> bool {
        self.table.next_used(range.start, range.end).is_some()
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
        let (mut found, shared) = (0, w.shares_found());
        for page in present.iter().flat_map(crate::units::pages) {
            if self.table.get(page) == Entry::Unmapped {
                self.set_found(page);
                if shared {
                    self.table.share(page);
                }
                found += 1;
            }
        }
        for run in present {
            if let Some(vma) = self.vmas.find_mut(run.start) {
                let pages = u32::try_from(crate::units::len(run)).unwrap_or(u32::MAX);
                vma.streams.mapped(run.start, pages);
            }
        }
        w.charge_existing(found);
    }

    /// `range`, of which nothing was evicted yet, is memory of a file, for example of a tmpfs. The kernel reads ahead
    /// by
    /// slot there, not by address; our policy follows when it is the kernel's.
    pub fn set_file(&mut self, range: &PageRange) {
        self.vmas.set_file(range);
        if matches!(self.config.readahead, Policy::Vma(_)) && self.vmas.has_file() {
            self.owners.enable();
        }
    }

    /// The program discarded the content of `range`; it reads as zeros from now on, or as the file that it maps.
    pub fn discard(&mut self, w: &mut impl World, range: &PageRange) {
        self.discarded.note(range, w.now());
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
        self.waiters.forget(range, |page| w.wake(page));
    }

    /// `range` was unmapped.
    pub fn unmap(&mut self, w: &mut impl World, range: &PageRange) {
        self.leave_files(range);
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
            self.vmas.set_backing(&moved, self.file_page(part.start));
            let mut at = part.start;
            while let Some((page, entry)) = self.table.next_used(at, part.end) {
                let shared = self.table.unshare(&(page..page.plus(1))) > 0;
                self.table.set(page, Entry::Unmapped);
                self.table.set(target(page), entry);
                if shared {
                    self.table.share(target(page));
                }
                let slot = match entry {
                    Entry::Swapped { slot, .. } => Some(slot),
                    Entry::Resident(Resident { slot, .. }) => slot,
                    Entry::Cached(frame) => self.frames.get(frame).slot,
                    Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {
                        None
                    }
                };
                if let Some(slot) = slot {
                    self.owners.note(slot, target(page));
                }
                if let Entry::Cached(frame) = entry {
                    self.frames.single_out(frame);
                    self.frames.set_page(frame, target(page));
                    w.wake(page);
                }
                if entry == Entry::Poisoned {
                    // Its poison mark may not be set yet, or not have moved along: set it again.
                    w.wake(page);
                    self.waiters.retry_later(Pending::of(target(page), w.now()));
                }
                at = page.plus(1);
            }
        }
        self.vmas.remove(from);
    }

    /// Drop the content of one page, wherever it is.
    fn forget(&mut self, w: &mut impl World, page: Vpn, entry: Entry) {
        let now = self.without_content(page);
        if let Entry::Resident(Resident { slot, .. }) = entry {
            return self.forget_resident(w, page, slot, now);
        }
        self.table.set(page, now);
        match entry {
            Entry::Unmapped | Entry::SameFilled(_) | Entry::Poisoned | Entry::Guarded => {}
            Entry::Resident(_) => {}
            Entry::Swapped { slot, .. } => self.slots.put(w, Some(slot)),
            Entry::Cached(frame) => {
                self.frames.single_out(frame);
                let desc = *self.frames.get(frame);
                if desc.ahead {
                    self.end_ahead(page, &desc);
                }
                match desc.state {
                    #[cfg(feature = "planted")]
                    State::Reading if self.has(crate::planted::Bug::StaleWindow) => {}
                    #[cfg(feature = "planted")]
                    State::Writing if self.has(crate::planted::Bug::MissedDiscard) => {}
                    // The I/O continues; its frame and slot are freed when it completes. Until then no other page may
                    // get the slot of a write.
                    State::Writing => self.frames.abandon(frame),
                    State::Reading => {
                        self.slots.put(w, desc.slot);
                        self.frames.abandon(frame);
                    }
                    _ => {
                        self.slots.put(w, desc.slot);
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

    /// A mapped page is gone; `now` is its new entry.
    pub(crate) fn forget_resident(
        &mut self,
        w: &mut impl World,
        page: Vpn,
        slot: Option<Slot>,
        now: Entry,
    ) {
        self.slots.put(w, slot);
        match self.table.unshare(&(page..page.plus(1))) {
            0 => w.uncharge(1),
            n => w.let_go(n),
        }
        self.table.set(page, now);
    }

    /// Mapped pages that another process may share since a fork.
    pub fn shared(&self) -> u64 {
        self.table.shared()
    }

    /// Mapped pages of `range` that another process may share since a fork.
    pub fn shared_in(&self, range: &PageRange) -> u64 {
        self.table.shared_in(range)
    }

    /// The pages of `range` are this process' own now: the driver has accounted for their copies.
    pub fn unshare(&mut self, range: &PageRange) {
        self.table.unshare(range);
    }

    /// Other processes share all mapped pages: they were forked while nothing was managed.
    pub fn share_mapped(&mut self) {
        self.table.share_all();
    }

    /// Other processes look for slots: release the clusters that we claimed and have not used.
    pub fn give_back_slots(&mut self, w: &mut impl SwapMap) {
        self.slots.give_back(w);
    }

    /// Every slot reference that is held, once each, but of no file page, as these are not counted; for tests.
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
        out.retain(|slot| !slot.is_file());
    }

    /// Check the invariants; for tests. Returns a description of the first violation.
    pub fn check(&self, w: &(impl SwapMap + Limit), charged: u64) -> Result<(), &'static str> {
        if charged != self.resident() {
            return Err("the charge is not what is resident");
        }
        self.table.check()?;
        let is_free = |slot: Slot| !slot.is_file() && w.count(slot) == 0;
        for (frame, desc) in self.frames.iter() {
            if let Some((id, unit)) = self.frames.unit_of(frame) {
                let n = frame.0 - self.frames.clusters().first(id).0;
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
                State::Clean if desc.slot.is_none_or(is_free) => {
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
            if slot.is_some_and(is_free) {
                return Err("a page's slot is free");
            }
            if entry == Entry::Unmapped && self.file_page(page).is_some() {
                return Err("a page of a file reads as zeros");
            }
            while vmas.next_if(|vma| vma.range.end <= page).is_some() {}
            if vmas.peek().is_none_or(|vma| page < vma.range.start) {
                return Err("a page outside of all regions");
            }
        }
        Ok(())
    }
}

#[cfg(feature = "ablate")]
impl Mm {
    /// Use only these heuristics.
    #[must_use]
    pub fn with_heuristics(mut self, heuristics: Heuristics) -> Self {
        self.heuristics = heuristics;
        self.streams.set_heuristics(heuristics);
        self.byte_strides.set_heuristics(heuristics);
        self.reclaim.set_heuristics(heuristics);
        self.io.set_heuristics(heuristics);
        self
    }
}

#[cfg(feature = "planted")]
impl Mm {
    /// Turn this mistake on.
    #[must_use]
    pub fn with_bug(mut self, bug: crate::planted::Bug) -> Self {
        self.planted = Some(bug);
        self
    }

    fn has(&self, bug: crate::planted::Bug) -> bool {
        self.planted == Some(bug)
    }
}
