//! The write protection of pages that a fork shares: a write that would copy one waits until the core lets it through
//! (`process::Copies`).

use foreswap_core::process::{Copy, Opening};
use foreswap_core::units::{Nanos, PageRange, Vpn};

use super::boot::bytes_of;
use super::world::now;
use super::{Pager, space};
use crate::sys::uffd::{Mode, Uffd, Why};

/// How soon other processes are asked for room.
const ASK: Nanos = 1_000_000;

/// A write to the page at `address`.
pub(super) fn at(address: u64, makes_room: bool) -> Copy {
    Copy {
        page: Vpn::of(address),
        since: now(),
        makes_room,
    }
}

/// How far the memory that forks share is write-protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Protection {
    /// Not at all.
    #[default]
    None,
    /// In part: the address space was changing. The rest follows.
    Partial,
    /// All of it.
    Whole,
    /// The kernel has no write protection for this memory.
    Impossible,
}

/// From now on, writes in `regions` are reported before they copy. Where they are not, copies are counted by faults.
pub(super) fn protect(uffd: &Uffd, regions: impl Iterator<Item = PageRange>) -> Protection {
    let mut any = false;
    let protected = space::each_part(
        regions,
        |bytes| {
            let both = Mode::MISSING | Mode::WP;
            uffd.register(bytes.start, bytes.len(), both)?;
            let protected = uffd.writeprotect(bytes.start, bytes.len(), true);
            any |= protected.is_ok();
            protected.map_err(|short| short.why)
        },
        |why| matches!(why, Why::Again | Why::NoMemory),
    );
    match protected {
        Ok(()) if any => Protection::Whole,
        Ok(()) => Protection::Impossible,
        Err(_) if any => Protection::Partial,
        Err(_) => Protection::None,
    }
}

/// Remove the protection of `batch`, at least of `page`.
fn open(uffd: &Uffd, batch: &PageRange, page: Vpn) -> Opening {
    let all = bytes_of(batch);
    if uffd.writeprotect(all.start, all.len(), false).is_ok() {
        return Opening::Done;
    }
    let one = bytes_of(&(page..page.plus(1)));
    match uffd.writeprotect(one.start, one.len(), false) {
        Err(short) if short.why == Why::Again => Opening::Again,
        Err(_) => {
            // The page is gone, or was never protected.
            let _ = uffd.wake(one.start, one.len());
            Opening::Done
        }
        Ok(()) => Opening::Done,
    }
}

impl Pager {
    /// Pay for pages shared with the parent, and check whether children have paid for pages shared with this process.
    pub(super) fn settle_debts(&mut self) {
        self.w.pay();
        let seat = self.w.seat();
        self.w.account.find_debtors(&seat);
        let is_shared = self.w.account.owes() || self.w.account.has_debtors();
        let is_armed = self.mode == super::Mode::Armed && !self.hold.is_held();
        if is_shared
            && is_armed
            && matches!(self.w.protection, Protection::None | Protection::Partial)
        {
            let regions = self.mm.regions().map(|vma| vma.range.clone());
            self.w.protection = protect(&self.w.program, regions);
            let is_whole = self.w.protection == Protection::Whole;
            self.w.ledger.set_protects(self.w.me, is_whole);
        }
    }

    /// Release writes as far as there is room for their copies.
    pub(super) fn step_copies(&mut self) {
        if self.w.is_protected() && !self.w.account.owes() && !self.w.account.has_debtors() {
            self.open_all();
        }
        if self.copies.is_empty() {
            return;
        }
        let mut seat = self.w.seat();
        let uffd = &self.w.program;
        let open = |batch: &PageRange, page| open(uffd, batch, page);
        let waits = self
            .copies
            .step(&mut self.w.account, &mut seat, now(), open);
        if waits {
            self.next_share = self.next_share.min(now() + ASK);
        }
    }

    /// Remove all protection, because all pages are paid for.
    fn open_all(&mut self) {
        let regions: Vec<PageRange> = self.mm.regions().map(|vma| vma.range.clone()).collect();
        let uffd = &self.w.program;
        let opened = space::each_part(
            regions.iter().cloned(),
            |bytes| uffd.writeprotect(bytes.start, bytes.len(), false),
            |short| short.why == Why::Again,
        );
        if opened.is_err() {
            return;
        }
        for region in &regions {
            let bytes = bytes_of(region);
            // With the same flags as memory registered later, so that the kernel merges the mappings.
            let _ = uffd.register_missing(bytes.start, bytes.len());
            let _ = uffd.wake(bytes.start, bytes.len());
        }
        self.w.protection = Protection::None;
        self.w.ledger.set_protects(self.w.me, false);
        self.copies.clear();
    }
}
