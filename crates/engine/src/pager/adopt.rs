//! Which memory of the program is managed, and when.
//!
//! While all memory that the program could touch fits its grant from the ledger, nothing is registered and the engine
//! costs nothing (*bare*). The first growth that does not fit arms the engine: it registers all adoptable VMAs and
//! finds the present pages through pagemap. From then on, each growth is registered before the program can touch it.
//! A look at the maps, a few times a second, finds growth that was not reported.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::fence;

use foreswap_core::Outcome;
use foreswap_core::units::{PAGE_SIZE, PageRange, Vpn, len};
use foreswap_core::world::Mmu;

use super::boot::pages_of;
use super::guests::mark;
use super::huge;
use super::space::{anonymous, each_part};
use super::world::now;
use super::{Mode, Pager, SOON};
use crate::ledger::SeenKind;
use crate::program::{Joined, state};
use crate::sys::maps::{self, Vma};

/// The smallest VMA that a look at the maps adopts, in bytes.
pub(super) const SMALLEST: usize = 128 << 10;
/// Looks, 5 ms apart, for which a starting engine waits for room while the other processes make none.
const START_LOOKS: u32 = 200;

/// The pages of `start..end`.
pub(crate) fn pages(start: usize, end: usize) -> PageRange {
    pages_of(&(start..end))
}

impl Pager {
    /// The first look: bare if all memory fits, armed otherwise. False: wait, because nothing may be registered while
    /// a fork is held.
    pub(crate) fn extend_grant(&mut self) -> bool {
        let look = self.program.allowance.look();
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return true;
        };
        let need: u64 = vmas
            .iter()
            .map(|vma| ((vma.end - vma.start) / PAGE_SIZE) as u64)
            .sum();
        let mut seat = self.w.seat();
        if let Some(spare) = self.grant.extend(&self.w.account, &mut seat, need) {
            self.program.allowance.allow(look, spare * PAGE_SIZE as u64);
            return true;
        }
        if self.hold.is_held() {
            return false;
        }
        self.arm_all();
        true
    }

    /// Serve threads whose memory grew while a fork was held. Such a thread may hold a lock that the forking thread
    /// needs, and cannot wait for the end of the fork.
    pub(crate) fn step_growth(&mut self) {
        if !self.hold.delays_growth() {
            return;
        }
        let over = self.hold.end_delay(now());
        if !over.is_empty() && self.mode == Mode::Bare {
            // While the fork is still held, the look comes after it.
            self.extend_grant();
        }
        for slot in over {
            self.answer(slot, [0; 4]);
        }
    }

    /// Charge the pages that the program touched before its engine started, or that its parent touched after the
    /// count. This comes first, and the program waits. If there is no room, the other processes are asked to make
    /// some, as long as they do.
    pub(crate) fn await_room(&mut self) {
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return;
        };
        let mut touched = 0;
        for vma in vmas {
            let present = self.space.present(&pages(vma.start, vma.end));
            touched += present.iter().flatten().map(len).sum::<u64>();
        }
        let (ledger, me) = (self.w.ledger, self.w.me);
        let mut missing = touched.saturating_sub(self.grant.pages());
        // A program found by the lookout does not wait: it touches more pages meanwhile.
        let waits = !self.program.bypasses.load(Relaxed);
        let mut looks = 0;
        loop {
            // Take free pages at once, before another process does.
            let mut seat = self.w.seat();
            let free = self.grant.take_free(&self.w.account, &mut seat, missing);
            missing -= free;
            looks = if free > 0 { 0 } else { looks + 1 };
            if missing == 0 || looks >= START_LOOKS || !waits {
                break;
            }
            ledger.set_wanted(me, missing, false);
            std::thread::sleep(std::time::Duration::from_nanos(SOON));
        }
        ledger.set_wanted(me, 0, false);
    }

    /// Manage all memory from now on, even if it fits. Threads that grow it ask first, before the map is read.
    pub(crate) fn arm_all(&mut self) {
        self.program.allowance.end();
        let Ok(vmas) = self.space.adoptable(SMALLEST) else {
            return;
        };
        self.grant.spend(&mut self.w.account);
        self.mode = Mode::Armed;
        self.program.set_state(state::ARMED);
        mark::register(&self.w.program);
        if self.program.regions.are_all() {
            self.adopt_regions();
        } else {
            for vma in vmas {
                self.adopt(vma.range());
            }
        }
        self.take_hints();
        if let Some(shared_then) = self.forked_with.take() {
            self.mm.share_mapped();
            let regions = self.mm.regions().map(|vma| self.space.shared(&vma.range));
            let gone = shared_then.saturating_sub(regions.sum());
            self.w.account.on_gone(&mut self.w.seat(), gone);
        }
        self.return_prepaid();
    }

    /// Adopts the regions that the program has named. Those that it names from now on are reported, as the program knows
    /// that the engine is armed.
    fn adopt_regions(&mut self) {
        fence(SeqCst);
        for region in self.program.regions.listed() {
            let range = &region.range;
            let registered = self.w.register(range.start, range.len());
            // To search the table for each of many takes long.
            if registered.is_ok() && (region.is_still() || self.is_still_named(range)) {
                self.on_registered(range);
            }
        }
    }

    /// `range` was registered: whether it is still memory that the program has named. Another thread may have unmapped a
    /// region meanwhile, and the heap may have got its place: then nothing there is managed. Nothing there was evicted,
    /// either: regions are struck off before they are unmapped.
    pub(super) fn is_still_named(&mut self, range: &std::ops::Range<usize>) -> bool {
        let regions = &self.program.regions;
        if !regions.are_all() || regions.cover(range) {
            return true;
        }
        let all = pages_of(range);
        let end = |part: &std::ops::Range<usize>| self.w.program.unregister(part.start, part.len());
        // What cannot be unregistered is of a kind that cannot be registered.
        let _ = each_part([all.clone()], end, |_| false);
        for part in self.mm.managed_in(&all) {
            self.w.let_children_have(&part);
            self.w.record(|to| to.change(SeenKind::Unmap, &part));
            self.mm.unmap(&mut self.w, &part);
        }
        false
    }

    /// Uncharge the pages that were charged in advance and not found.
    fn return_prepaid(&mut self) {
        let mut seat = self.w.seat();
        self.w.account.return_prepaid(&mut seat);
    }

    /// Register `range` and manage it. Memory that cannot be registered is left alone. Returns whether it is managed.
    pub(super) fn adopt(&mut self, range: std::ops::Range<usize>) -> bool {
        if self.is_let_go(&pages_of(&range)) {
            return false;
        }
        let registered = self.w.register(range.start, range.end - range.start);
        if registered.is_ok() {
            self.on_registered(&range);
        }
        registered.is_ok()
    }

    /// `range` is registered: it is managed from now on.
    pub(super) fn on_registered(&mut self, range: &std::ops::Range<usize>) {
        // A region marked only in part would be several mappings. The program's refusal of huge pages is respected,
        // even if its range is no longer known.
        if self.mm.has_huge_pages() && !self.program.no_huge.load(Relaxed) {
            huge::prefer(range);
        }
        let all = pages_of(range);
        self.w.keep_managed(&all, || self.mm.managed_in(&all));
        self.manage(range);
    }

    /// The program's memory grew by `bytes` at `address`. False: the thread must wait.
    pub(crate) fn on_grew(&mut self, address: usize, bytes: usize) -> bool {
        if self.mode == Mode::Bare {
            return self.extend_grant();
        }
        let start = address / PAGE_SIZE * PAGE_SIZE;
        let end = (address + bytes).next_multiple_of(PAGE_SIZE);
        if self.program.regions.are_all() || self.mm.takes_new(&pages(start, end)) {
            self.adopt(start..end);
        }
        true
    }

    /// The program uses memory at `address` that is unknown to the pager. False: the thread must wait.
    pub(crate) fn on_seen(&mut self, address: usize) -> bool {
        if self.mode == Mode::Bare {
            return self.extend_grant();
        }
        self.adopt_around(address);
        true
    }

    /// Adopt the unmanaged part of the VMA at `address`.
    fn adopt_around(&mut self, address: usize) {
        let vmas = self.space.adoptable(PAGE_SIZE).unwrap_or_default();
        let mut vmas = vmas.iter().map(|vma| vma.start..vma.end);
        if let Some(vma) = vmas.find(|vma| vma.contains(&address)) {
            self.adopt(vma);
        }
    }

    /// The kernel refused to move `bytes` of memory at `address` as a whole: it may have been adopted in parts. Adopts all
    /// of it, if it has one protection, as one mapping of the program has. The kernel then has one mapping again, or
    /// several if the program had touched the parts before.
    pub(super) fn on_join(&mut self, address: usize, bytes: usize) -> Joined {
        let start = address / PAGE_SIZE * PAGE_SIZE;
        let end = address.saturating_add(bytes);
        let end = end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(start);
        let (mut at, mut protection) = (start, None);
        for vma in anonymous().unwrap_or_default() {
            let its = (vma.read, vma.write, vma.exec);
            if vma.range().contains(&at) && *protection.get_or_insert(its) == its {
                at = vma.end;
            }
        }
        let whole = start < end && at >= end && self.adopt(start..end);
        let vmas = maps::read().unwrap_or_default();
        let next = vmas.iter().find(|vma| vma.end > start);
        Joined {
            whole,
            next: next.map_or(0..0, Vma::range),
        }
    }

    /// A fault on a page unknown to the core, with no event pending that explains it: a mapping grew in place, or
    /// went away meanwhile. The page is registered, otherwise there would be no fault. It is therefore managed,
    /// whatever its kind; if the program has named regions, only where one of them is ([`Self::is_still_named`]).
    pub(crate) fn on_unmanaged(&mut self, address: u64) {
        let at = Vpn::of(address).address() as usize;
        let regions = &self.program.regions;
        let found = if regions.are_all() {
            regions.ranges().find(|range| range.contains(&at))
        } else {
            let vmas = anonymous().unwrap_or_default().into_iter();
            vmas.map(|vma| vma.range())
                .find(|range| range.contains(&at))
        };
        if let Some(range) = found
            && self.adopt(range.clone())
        {
            self.is_still_named(&range);
        }
        if self.mm.on_fault(&mut self.w, address) == Outcome::Unmanaged {
            self.w.wake(Vpn::of(address));
        }
    }

    /// Report a registered range and its present pages to the core.
    fn manage(&mut self, range: &std::ops::Range<usize>) {
        let all = pages_of(range);
        let (mut present, mut guards) = (Vec::new(), Vec::new());
        let mut at = all.start;
        // Only memory that was unmanaged before can have unknown pages.
        for known in self
            .mm
            .managed_in(&all)
            .into_iter()
            .chain([all.end..all.end])
        {
            if at < known.start
                && let Ok((found, guarded)) = self.space.look(&(at..known.start))
            {
                present.extend(found);
                guards.extend(guarded);
            }
            at = known.end;
        }
        self.w.record(|to| to.change(SeenKind::Map, &all));
        self.mm.adopt(&mut self.w, all, &present);
        for guarded in guards {
            self.mm.guard(&mut self.w, &guarded);
        }
        let managed = self.mm.managed() * PAGE_SIZE as u64;
        self.w.ledger.stats(self.w.me).set_managed(managed);
    }
}
