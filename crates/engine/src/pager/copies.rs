//! The write protection of pages that a fork shares: a write that would copy one waits until the core lets it through
//! (`process::Copies`).

use foreswap_core::Mm;
use foreswap_core::process::{Copy, Opening, Protected};
use foreswap_core::units::{Nanos, PageRange, Vpn};

use super::boot::bytes_of;
use super::world::now;
use super::{Pager, space};
use crate::sys::uffd::{Mode, Uffd, Why};

/// How soon other processes are asked for room.
const ASK: Nanos = 1_000_000;

/// A write to the page at `address`.
pub(super) fn at(address: u64) -> Copy {
    Copy {
        page: Vpn::of(address),
        since: now(),
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

/// The program's memory, of which some pages are protected.
struct Pages<'a> {
    mm: &'a mut Mm,
    uffd: &'a Uffd,
}

impl Protected for Pages<'_> {
    fn shared(&self, range: &PageRange) -> u64 {
        self.mm.shared_in(range)
    }

    fn unshare(&mut self, range: &PageRange) {
        self.mm.unshare(range);
    }

    fn open(&mut self, range: &PageRange, page: Vpn) -> Opening {
        let all = bytes_of(range);
        if self.uffd.writeprotect(all.start, all.len(), false).is_ok() {
            return Opening::Done;
        }
        let one = bytes_of(&(page..page.plus(1)));
        match self.uffd.writeprotect(one.start, one.len(), false) {
            Err(short) if short.why == Why::Again => Opening::Again,
            Err(_) => {
                // The page is gone, or was never protected.
                let _ = self.uffd.wake(one.start, one.len());
                Opening::Done
            }
            Ok(()) => Opening::Done,
        }
    }
}

impl Pager {
    /// Pay for pages shared with the parent, and check whether children have paid for pages shared with this process.
    pub(super) fn settle_debts(&mut self) {
        let shared = match self.mode {
            super::Mode::Bare if self.forked_with.is_some() => self.grant.pages(),
            super::Mode::Bare => 0,
            super::Mode::Armed => self.mm.shared(),
        };
        self.w.pay(shared);
        let seat = self.w.seat();
        self.w.account.find_debtors(&seat);
        if self.hold.is_held() || !self.has_to_protect() {
            return;
        }
        if self.mode == super::Mode::Bare {
            // There is no room for all debts: from now on copies are known.
            self.settle();
            self.arm_all();
        }
        if self.mode == super::Mode::Armed {
            let regions = self.mm.regions().map(|vma| vma.range.clone());
            let protection = protect(&self.w.program, regions);
            self.w.set_protection(protection);
            let is_whole = self.w.protection == Protection::Whole;
            self.w.ledger.set_protects(self.w.me, is_whole);
        }
    }

    /// A fork shares all pages that are mapped, also those that are not protected, or not any more.
    pub(super) fn on_shared_anew(&mut self) {
        if self.w.protection == Protection::Whole {
            self.w.set_protection(Protection::Partial);
            self.w.ledger.set_protects(self.w.me, false);
        }
        // The others must know how many pages they would have to pay for if this process ends.
        self.next_share = 0;
    }

    /// Pages are shared that are not protected yet.
    fn has_to_protect(&self) -> bool {
        let is_shared = self.w.account.owes() || self.w.account.has_debtors();
        is_shared && matches!(self.w.protection, Protection::None | Protection::Partial)
    }

    /// Whether debts have to be looked at often: no other process will ring.
    pub(super) fn has_to_pay(&self) -> bool {
        let account = &self.w.account;
        let is_counted = self.w.protection != Protection::Whole || self.w.copying.counts_parent();
        account.debt().due() > 0
            || account.owes() && is_counted
            || !self.copies.is_empty()
            || self.has_to_protect()
    }

    /// Release writes as far as there is room for their copies. Returns whether room has to be made for more of them
    /// than before.
    pub(super) fn step_copies(&mut self) -> bool {
        if self.w.is_protected() && !self.w.account.owes() && !self.w.account.has_debtors() {
            self.open_all();
        }
        if self.copies.is_empty() {
            return false;
        }
        let before = self.w.account.uncopied();
        let mut seat = self.w.seat();
        let pages = &mut Pages {
            mm: &mut self.mm,
            uffd: &self.w.program,
        };
        let waits = self
            .copies
            .step(&mut self.w.account, &mut seat, now(), pages);
        if waits {
            self.next_share = self.next_share.min(now() + ASK);
        }
        self.w.account.uncopied() > before
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
            let _ = uffd.wake(bytes.start, bytes.len());
        }
        self.w.set_protection(Protection::None);
        self.w.ledger.set_protects(self.w.me, false);
        self.copies.clear(&mut self.w.account);
    }
}
