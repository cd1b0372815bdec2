//! Copies after a fork are charged when they are made.
//!
//! The pages that a child finds in memory are also its parent's. A write to such a page copies it, and the kernel
//! reports no event. While a child owes for these pages (`world/credit.rs`), the userfaultfd write-protects them: the
//! first write to a batch waits until the batch is paid for. If there is no room, the pager asks other processes for
//! some. If none can give any, the limit gives way, as for every fault.

use foreswap_core::units::{Nanos, PageRange, Vpn, overlap};

use super::boot::bytes_of;
use super::world::now;
use super::{Pager, adopt};
use crate::sys::uffd::{Mode, Uffd, Why};

/// Pages paid for at a time.
const BATCH: u64 = 16;
/// How long a write waits for room.
const PATIENCE: Nanos = 300_000_000;
/// How soon other processes are asked for room.
const ASK: Nanos = 1_000_000;

/// A waiting write.
pub(super) struct Copy {
    page: Vpn,
    since: Nanos,
    /// The thread that writes, as the kernel numbers it.
    tid: u32,
}

impl Copy {
    /// Thread `tid` writes to the page at `address`.
    pub fn at(address: u64, tid: u32) -> Self {
        Copy {
            page: Vpn::of(address),
            since: now(),
            tid,
        }
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

impl Pager {
    /// Pay for pages shared with the parent, and check whether children have paid for pages shared with this process.
    pub(super) fn settle_debts(&mut self) {
        self.w.pay();
        self.w.find_debtors();
        let is_armed = self.mode == super::Mode::Armed && !self.fork.is_held();
        if self.w.has_debtors() && !self.w.is_protected && is_armed {
            self.w.is_protected = protect(
                &self.w.program,
                self.mm.regions().map(|vma| vma.range.clone()),
            );
            self.w.ledger.set_protects(self.w.me, self.w.is_protected);
        }
    }

    /// Release writes as far as there is room for their copies.
    pub(super) fn step_copies(&mut self) {
        if self.w.is_protected && !self.w.owes() && !self.w.has_debtors() {
            self.open_all();
        }
        if self.copies.is_empty() {
            return;
        }
        let mut left: Vec<Copy> = Vec::new();
        let mut opened = Vpn(u64::MAX)..Vpn(u64::MAX);
        for copy in core::mem::take(&mut self.copies) {
            if opened.contains(&copy.page) {
                continue;
            }
            let start = copy.page.0 / BATCH * BATCH;
            let batch = Vpn(start)..Vpn(start + BATCH);
            let is_late = now() - copy.since > PATIENCE;
            // If a page is shared with the parent and with children, a write makes one copy, not two.
            let is_paid = match self.w.owes() {
                // The copy makes the room: it does not wait for it.
                _ if Some(copy.tid) == self.w.unsharer.tid() => true,
                true => self.w.pay_for(BATCH, is_late),
                false => self.w.may_copy(BATCH, is_late),
            };
            if is_paid && self.open(&batch, copy.page) {
                opened = batch;
            } else {
                left.push(copy);
            }
        }
        if !left.is_empty() {
            self.next_share = self.next_share.min(now() + ASK);
        }
        self.copies = left;
    }

    /// Remove the protection of `batch`, at least of `page`. False: try again.
    fn open(&self, batch: &PageRange, page: Vpn) -> bool {
        let uffd = &self.w.program;
        let all = bytes_of(batch);
        if uffd.writeprotect(all.start, all.len(), false).is_ok() {
            return true;
        }
        let one = bytes_of(&(page..page.plus(1)));
        match uffd.writeprotect(one.start, one.len(), false) {
            Err(short) if short.why == Why::Again => false,
            Err(_) => {
                // The page is gone, or was never protected.
                let _ = uffd.wake(one.start, one.len());
                true
            }
            Ok(()) => true,
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
