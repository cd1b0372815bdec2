//! A fork of the program, from the parent's side.
//!
//! The forking thread asks before it forks and waits. First the process makes room: the child will
//! hold as many pages as the parent, and both together must stay under the limit. Then everything
//! unmapped is brought to the areas, the snapshot is written, and the thread goes on to fork; other
//! threads are served meanwhile. One fork at a time.

use foreswap_core::Hint;
use foreswap_core::units::{Nanos, PageRange, Slot as CoreSlot, Vpn};
use foreswap_core::world::Limit;

use super::snapshot::Snapshot;
use super::world::now;
use super::{Mode, Pager};
use crate::ledger::protocol::Client;
use crate::ledger::{ProcId, ProcessState};
use crate::program::hold;
use crate::sys::doorbell::SlotIndex;

/// How long making room for a child may take without progress before it is forked anyway.
const PATIENCE: Nanos = 300_000_000;
/// How long a child may take to report.
const EXPECTED: Nanos = 60_000_000_000;

/// Where the fork in progress stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fork {
    /// There is none.
    None,
    /// Making room for the child.
    MakingRoom {
        slot: SlotIndex,
        child: ProcId,
        /// Pages that were mapped at the last progress, and until when there must be more.
        mapped: u64,
        until: Nanos,
    },
    /// Waiting for the writes.
    Quieting { slot: SlotIndex, child: ProcId },
    /// The thread forks.
    Held { child: Option<ProcId> },
}

impl Fork {
    /// Nothing may be moved out or registered.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, Fork::Held { .. })
    }

    /// A thread waits for its turn to fork.
    pub(crate) fn is_under_way(&self) -> bool {
        matches!(self, Fork::MakingRoom { .. } | Fork::Quieting { .. })
    }
}

impl Pager {
    /// A thread of the program is about to fork.
    pub(crate) fn on_hold(&mut self, slot: SlotIndex) {
        if self.fork != Fork::None {
            self.waiting_forks.push(slot);
            return;
        }
        self.pulse.pause(true);
        let reserved = self.w.client.as_mut().map(Client::reserve);
        self.pulse.pause(false);
        let child = reserved.and_then(Result::ok);
        if self.mode == Mode::Bare {
            let fits = child.filter(|&child| self.w.ledger.try_charge(child, self.granted));
            match (child, fits) {
                (None, _) => {
                    self.fork = Fork::Held { child: None };
                    return self.answer(slot, [hold::BARE, 0, 0, 0]);
                }
                (Some(child), Some(_)) => {
                    self.fork = Fork::Held { child: Some(child) };
                    let words = self.write_snapshot(hold::BARE, child, &[], &[], self.granted);
                    return self.answer(slot, words);
                }
                // Both would not fit: the child is one more reason to manage.
                (Some(_), None) => self.arm_all(),
            }
        }
        let Some(child) = child else {
            self.fork = Fork::Held { child: None };
            return self.answer(slot, [hold::IMPOSSIBLE, 0, 0, 0]);
        };
        let others = self
            .w
            .ledger
            .charged_pages()
            .saturating_sub(self.w.ledger.process_charged(self.w.me));
        // Half for each, less some for what the other threads fault in while nothing may go out.
        let limit = self.w.limit();
        let half = limit.saturating_sub(others) / 2;
        self.w.shrink_to = Some(half.saturating_sub(limit / 32));
        self.fork = Fork::MakingRoom {
            slot,
            child,
            mapped: u64::MAX,
            until: 0,
        };
        self.step_fork();
    }

    /// Go on with the fork in progress as far as it goes.
    pub(crate) fn step_fork(&mut self) {
        if let Fork::MakingRoom {
            slot,
            child,
            mapped: before,
            until,
        } = self.fork
        {
            let mapped = self.mm.mapped();
            // A slow disk is not a reason to give up: only pages that nobody can move are.
            let under_way = self.w.io.in_flight() > 0 || self.w.unsharer.is_busy();
            let goes_on = mapped < before || under_way;
            if goes_on {
                let until = now() + PATIENCE;
                self.fork = Fork::MakingRoom {
                    slot,
                    child,
                    mapped,
                    until,
                };
            }
            if self.w.excess() > 0 && (goes_on || now() < until) {
                return;
            }
            self.w.shrink_to = None;
            // The room is the child's from now on, or this process would fill it again. What other
            // threads fault in until the fork is the child's as well: half of the rest is for that.
            let mapped = self.mm.mapped();
            let rest = self.w.available().saturating_sub(mapped);
            self.w.ledger.charge_anyway(child, mapped + rest / 2);
            self.mm.hold();
            self.fork = Fork::Quieting { slot, child };
        }
        if let Fork::Quieting { slot, child } = self.fork
            && self.mm.is_quiet(&mut self.w)
        {
            self.fork = Fork::Held { child: Some(child) };
            let words = self.take_snapshot(child);
            self.answer(slot, words);
        }
    }

    fn take_snapshot(&mut self, child: ProcId) -> [u64; 4] {
        let regions = self.mm.regions().map(|vma| (vma.range.clone(), vma.hint));
        let regions: Vec<(PageRange, Hint)> = regions.collect();
        let mut pages = Vec::new();
        self.mm.unmapped(&mut pages);
        let already = self.w.ledger.process_charged(child);
        let charged = already.max(self.mm.mapped());
        let words = self.write_snapshot(hold::READY, child, &regions, &pages, charged);
        if self.w.snapshot.is_some() {
            self.mm.share(&mut self.w, &pages);
            self.w.ledger.charge_anyway(child, charged - already);
        }
        words
    }

    /// Leave a snapshot for the child. Returns the answer to the thread that forks.
    fn write_snapshot(
        &mut self,
        ready: u64,
        child: ProcId,
        regions: &[(PageRange, Hint)],
        pages: &[(Vpn, CoreSlot)],
        charged: u64,
    ) -> [u64; 4] {
        let sheet = self.sheet.take();
        match Snapshot::write(sheet, self.w.me, child, regions, pages, charged) {
            Ok(snapshot) => {
                let at = snapshot.address() as u64;
                self.w.snapshot = Some(snapshot);
                [ready, at, 0, 0]
            }
            Err(_) if ready == hold::BARE => [hold::BARE, 0, 0, 0],
            Err(_) => [hold::IMPOSSIBLE, 0, 0, 0],
        }
    }

    /// The fork is over.
    pub(crate) fn on_release(&mut self) {
        let Fork::Held { child } = self.fork else {
            return;
        };
        self.fork = Fork::None;
        self.mm.release();
        if let Some(snapshot) = self.w.snapshot.take() {
            self.sheet = snapshot.free();
        }
        if let Some(child) = child {
            self.expected.push((child, now() + EXPECTED));
        }
        if self.mode == Mode::Bare {
            self.grant();
        }
        if !self.waiting_forks.is_empty() {
            let slot = self.waiting_forks.remove(0);
            self.on_hold(slot);
        }
    }

    /// A child that never reported was never forked: its record is freed.
    pub(crate) fn expire_children(&mut self) {
        let now = now();
        let ledger = self.w.ledger;
        self.expected.retain(|&(child, until)| {
            let waiting = ledger.state(child) == ProcessState::Reserved;
            if waiting
                && now > until
                && let Some(client) = &self.w.client
            {
                // If the supervisor is gone, so is the need for the record.
                let _ = client.reap(child, None);
                return false;
            }
            waiting
        });
    }
}
