//! A fork of the program, from the parent's side.
//!
//! The forking thread asks before it forks and waits. First the process makes room: the child will
//! hold as many pages as the parent, and both together must stay under the limit. What is given back
//! is charged to the child at once, before somebody else has it, until the child's charge covers all
//! that the parent holds and could still come to hold. Then everything unmapped is brought to the
//! areas, the snapshot is written, and the thread goes on to fork; other threads are served
//! meanwhile. One fork at a time.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::units::{Nanos, PageRange, Vpn};
use foreswap_core::world::{Limit, Notice, World};
use foreswap_core::{Hint, Stored};
use foreswap_store::ring::Io;

use super::snapshot::Snapshot;
use super::world::now;
use super::{Mode, Pager, handover};
use crate::ledger::protocol::Client;
use crate::ledger::{ProcId, ProcessState};
use crate::program::hold;
use crate::sys::doorbell::SlotIndex;

/// How long making room for a child may take without progress before it is forked anyway.
const PATIENCE: Nanos = 300_000_000;
/// After this time room without a margin is room enough.
const LONG_ENOUGH: Nanos = 200_000_000;
/// How long a child may take to report.
const EXPECTED: Nanos = 60_000_000_000;

/// A child that has not reported.
pub(crate) struct Expected {
    /// The record that was reserved for it.
    record: ProcId,
    /// Which fork made it.
    number: u64,
    /// After this it is not waited for.
    until: Nanos,
}

/// Where the fork in progress stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fork {
    /// There is none.
    None,
    /// Making room for the child.
    MakingRoom {
        slot: SlotIndex,
        child: ProcId,
        /// Pages that were missing at the last progress, and until when there must be more.
        short: u64,
        until: Nanos,
        /// When it began.
        since: Nanos,
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
        if self.program.board.load(Relaxed) == 0 {
            // Without it only children that need help have none.
            let _ = handover::begin(self.program, self.office.take());
        }
        self.pulse.pause(true);
        let reserved = self.w.client.as_mut().map(Client::reserve);
        self.pulse.pause(false);
        let child = reserved.and_then(Result::ok);
        if self.mode == Mode::Bare {
            // The child takes what is mapped for all there is.
            self.mm.hold();
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
                (Some(_), None) => {
                    self.mm.release();
                    self.arm_all();
                }
            }
        }
        let Some(child) = child else {
            self.fork = Fork::Held { child: None };
            return self.answer(slot, [hold::IMPOSSIBLE, 0, 0, 0]);
        };
        self.fork = Fork::MakingRoom {
            slot,
            child,
            short: u64::MAX,
            until: 0,
            since: now(),
        };
        self.step_fork();
    }

    /// Go on with the fork in progress as far as it goes.
    pub(crate) fn step_fork(&mut self) {
        if let Fork::MakingRoom {
            slot,
            child,
            short: before,
            until,
            since,
        } = self.fork
        {
            let short = self.make_room_for(child);
            // A slow disk is not a reason to give up: only pages that nobody can move are.
            let under_way = self.w.io.in_flight() > 0 || self.w.unsharer.is_busy();
            let goes_on = short < before || under_way;
            if goes_on {
                let until = now() + PATIENCE;
                self.fork = Fork::MakingRoom {
                    slot,
                    child,
                    short: short.min(before),
                    until,
                    since,
                };
            }
            // Threads that fault all the time may keep the margin from coming about.
            let enough = short == 0 || (now() - since > LONG_ENOUGH && self.is_covered(child));
            if !enough && (goes_on || now() < until) {
                return;
            }
            self.w.shrink_to = None;
            self.cover(child);
            self.mm.hold();
            self.fork = Fork::Quieting { slot, child };
        }
        // What the child is told is there must be there: no event may be on the way. Those of later
        // changes mark the snapshot.
        if let Fork::Quieting { slot, child } = self.fork
            && self.mm.is_quiet(&mut self.w)
            && !self.w.program.mmap_changing()
        {
            self.fork = Fork::Held { child: Some(child) };
            let words = self.take_snapshot(child);
            self.answer(slot, words);
        }
    }

    /// Charge to the child what was given back since the last step. Returns how many pages this
    /// process still has to give back until there is room, and some more for what other threads
    /// fault in while nothing may go out.
    fn make_room_for(&mut self, child: ProcId) -> u64 {
        let ledger = self.w.ledger;
        let mine = ledger.process_charged(self.w.me);
        let for_child = ledger.process_charged(child);
        let available = self.w.available();
        let free = available.min(mine.saturating_sub(for_child));
        // Refused if another process was faster: the next step tries again.
        let _ = ledger.try_charge(child, free);
        let both = mine + for_child + available;
        let margin = (self.w.limit() / 32).min(both / 8);
        let target = (both / 2).saturating_sub(margin);
        self.w.shrink_to = Some(target);
        mine.saturating_sub(target)
    }

    /// Whether the child's charge is what this process holds.
    fn is_covered(&self, child: ProcId) -> bool {
        let ledger = self.w.ledger;
        ledger.process_charged(child) >= ledger.process_charged(self.w.me)
    }

    /// Charge to the child all that it could find in memory: what this process holds, in frames or
    /// mapped, and what it could still be granted before the fork, which is half of what is then
    /// left. Where pages could not be moved out this passes the limit, which is said.
    fn cover(&mut self, child: ProcId) {
        let ledger = self.w.ledger;
        let mine = ledger.process_charged(self.w.me);
        let short = mine.saturating_sub(ledger.process_charged(child));
        if !ledger.try_charge(child, short) {
            ledger.charge_anyway(child, short);
            self.w.notice(Notice::LimitPassed);
        }
        let _ = ledger.try_charge(child, self.w.available().div_ceil(2));
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
        pages: &[(Vpn, Stored)],
        charged: u64,
    ) -> [u64; 4] {
        let sheet = self.sheet.take();
        match Snapshot::write(sheet, self.w.me, child, regions, pages, charged) {
            Ok(snapshot) => {
                let at = snapshot.address() as u64;
                self.w.snapshot = Some(snapshot);
                self.w.map.share_with(Some(child));
                [ready, at, 0, 0]
            }
            Err(_) if ready == hold::BARE => [hold::BARE, 0, 0, 0],
            Err(_) => [hold::IMPOSSIBLE, 0, 0, 0],
        }
    }

    /// The fork is over. Returns its number.
    pub(crate) fn on_release(&mut self) -> u64 {
        let Fork::Held { child } = self.fork else {
            return 0;
        };
        self.fork = Fork::None;
        self.mm.release();
        self.w.map.share_with(None);
        if let Some(snapshot) = self.w.snapshot.take() {
            self.sheet = snapshot.free();
        }
        self.forks = self.forks % u64::from(u32::MAX) + 1;
        let number = self.forks;
        if let Some(record) = child {
            // The record may have been another child's, which came and went.
            self.expected.retain(|other| other.record != record);
            self.expected.push(Expected {
                record,
                number,
                until: now() + EXPECTED,
            });
        }
        if self.mode == Mode::Bare {
            self.grant();
        }
        if !self.waiting_forks.is_empty() {
            let slot = self.waiting_forks.remove(0);
            self.on_hold(slot);
        }
        number
    }

    /// The fork of this number has a child (0: it has none).
    pub(crate) fn on_forked(&mut self, number: u64, child: u32) {
        let Some(at) = self.expected.iter().position(|e| e.number == number) else {
            return;
        };
        let record = self.expected[at].record;
        if self.w.ledger.state(record) != ProcessState::Reserved {
            return;
        }
        if let Some(client) = &self.w.client {
            // If the supervisor is gone, so is the need for the record.
            let _ = client.reap(record, (child != 0).then_some(child));
        }
        if child == 0 {
            self.expected.swap_remove(at);
        }
    }

    /// A child that never reported was never forked: its record is freed.
    pub(crate) fn expire_children(&mut self) {
        let now = now();
        let ledger = self.w.ledger;
        self.expected.retain(|expected| {
            let child = expected.record;
            let waiting = ledger.state(child) == ProcessState::Reserved;
            if waiting
                && now > expected.until
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
