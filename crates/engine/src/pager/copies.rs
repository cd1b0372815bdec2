//! The write protection of pages that a fork shares: a write that would copy one waits until the core lets it through
//! (`process::Copies`).

use foreswap_core::process::{Copy, Opening};
use foreswap_core::units::{Nanos, PageRange, Vpn, overlap};

use super::boot::bytes_of;
use super::world::now;
use super::{Pager, adopt};
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

/// From now on, writes in `regions` are reported before they copy. Returns whether any region could be protected.
pub(super) fn protect(uffd: &Uffd, regions: impl Iterator<Item = PageRange>) -> bool {
    let mut any = false;
    for region in regions {
        let bytes = bytes_of(&region);
        let both = Mode::MISSING | Mode::WP;
        // Refused if the kernel lacks it; copies are then counted by faults.
        any |= uffd.register(bytes.start, bytes.len(), both).is_ok()
            && uffd.writeprotect(bytes.start, bytes.len(), true).is_ok();
    }
    any
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
        let is_armed = self.mode == super::Mode::Armed && !self.hold.is_held();
        if self.w.account.has_debtors() && !self.w.is_protected && is_armed {
            self.w.is_protected = protect(
                &self.w.program,
                self.mm.regions().map(|vma| vma.range.clone()),
            );
            self.w.ledger.set_protects(self.w.me, self.w.is_protected);
        }
    }

    /// Release writes as far as there is room for their copies.
    pub(super) fn step_copies(&mut self) {
        if self.w.is_protected && !self.w.account.owes() && !self.w.account.has_debtors() {
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
        let open = |part: &PageRange| {
            let bytes = bytes_of(part);
            uffd.writeprotect(bytes.start, bytes.len(), false)
        };
        let mut vmas: Option<Vec<PageRange>> = None;
        for region in &regions {
            match open(region) {
                Ok(()) => {}
                Err(short) if short.why == Why::Again => return,
                // A part of the region was never protected.
                Err(_) => {
                    let vmas = vmas.get_or_insert_with(|| {
                        let found = self.space.anonymous().unwrap_or_default();
                        let pages = found.iter().map(|vma| adopt::pages(vma.start, vma.end));
                        pages.collect()
                    });
                    let parts = vmas.iter().map(|vma| overlap(vma, region));
                    for part in parts.filter(|part| !part.is_empty()) {
                        if open(&part).is_err_and(|short| short.why == Why::Again) {
                            return;
                        }
                    }
                }
            }
        }
        for region in &regions {
            let bytes = bytes_of(region);
            // With the same flags as memory registered later, so that the kernel merges the mappings.
            let _ = uffd.register_missing(bytes.start, bytes.len());
            let _ = uffd.wake(bytes.start, bytes.len());
        }
        self.w.is_protected = false;
        self.w.ledger.set_protects(self.w.me, false);
        self.copies.clear();
    }
}
