//! A fork of the program, on the parent's side.
//!
//! The forking thread asks the pager before it forks, and waits. The pager writes all unmapped pages to the areas and
//! records their places in a snapshot; then the thread forks. Other threads are served meanwhile. There is one fork
//! at a time.
//!
//! No room is made for the child: shared pages exist once and are charged to the parent. Copies are charged to the
//! child, by an engine that starts when the child needs one (`lazy`). Until then, and if no page is out of memory,
//! the supervisor is not told of the fork.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::process::Stage;
use foreswap_core::units::{Nanos, PageRange};
use foreswap_core::{Hint, Stored};

use super::snapshot::Snapshot;
use super::world::now;
use super::{Mode, Pager, handover};
use crate::ledger::protocol::Client;
use crate::ledger::{ProcId, ProcessState};
use crate::program::hold;
use crate::sys::doorbell::SlotIndex;

/// How long a child may take to report.
const EXPECTED: Nanos = 60_000_000_000;

/// A child that has not reported.
pub(crate) struct Expected {
    /// The record reserved for the child.
    record: ProcId,
    /// The number of its fork.
    number: u64,
    /// When the pager stops waiting for it.
    until: Nanos,
}

impl Pager {
    /// A thread of the program is about to fork.
    pub(crate) fn on_hold(&mut self, slot: SlotIndex) {
        if !self.hold.begin(slot) {
            return;
        }
        if self.program.board.load(Relaxed) == 0 {
            // Without an office, only children that need help have no engine.
            let _ = handover::begin(self.program, self.office.take());
        }
        self.mm.hold();
        // The child's memory has a copy of it.
        let unasked = self.w.ledger.unasked(self.w.ledger.family(self.w.me));
        self.program.unasked.store(unasked, Relaxed);
        if self.mode == Mode::Bare {
            // The child assumes that all its memory is mapped.
            self.hold.hold();
            self.forked_with = self.forked_with.max(Some(self.space.resident()));
            return self.answer(slot, [hold::BARE, 0, 0, 0]);
        }
        self.step_fork();
    }

    /// Advance the fork in progress as far as possible.
    pub(crate) fn step_fork(&mut self) {
        // The snapshot must match memory: no event may be pending. Later changes mark the snapshot.
        if let Stage::Quieting(slot) = self.hold.stage()
            && self.mm.is_quiet(&mut self.w)
            && !self.w.program.mmap_changing()
        {
            let words = self.take_snapshot();
            self.answer(slot, words);
        }
    }

    /// Reserve a record for the child.
    fn reserve(&mut self) -> Option<ProcId> {
        self.pulse.pause(true);
        let reserved = self.w.client.as_mut().map(Client::reserve);
        self.pulse.pause(false);
        reserved.and_then(Result::ok)
    }

    /// Leave a snapshot for the child. Returns the answer to the forking thread.
    fn take_snapshot(&mut self) -> [u64; 4] {
        self.hold.hold();
        let regions = self.mm.regions().map(|vma| (vma.range.clone(), vma.hint));
        let regions: Vec<(PageRange, Hint)> = regions.collect();
        let mut pages = Vec::new();
        self.mm.unmapped(&mut pages);
        // A slot reference of the child needs a record. A trace names the parent of the child.
        let in_slots = pages
            .iter()
            .any(|(_, stored)| matches!(stored, Stored::In(_)));
        let child = match in_slots || self.w.recorder.is_some() {
            true => self.reserve(),
            false => None,
        };
        if in_slots && child.is_none() {
            return [hold::IMPOSSIBLE, 0, 0, 0];
        }
        self.child = child;
        let sheet = self.sheet.take();
        match Snapshot::write(sheet, self.w.me, child, &regions, &pages) {
            Ok(snapshot) => {
                let at = snapshot.address() as u64;
                self.w.snapshot = Some(snapshot);
                self.w.map.share_with(child);
                self.mm.share(&mut self.w, &pages);
                [hold::READY, at, 0, 0]
            }
            Err(_) => [hold::IMPOSSIBLE, 0, 0, 0],
        }
    }

    /// The fork is over. Returns its number.
    pub(crate) fn on_release(&mut self) -> u64 {
        if !self.hold.is_held() {
            return 0;
        }
        let child = self.child.take();
        let next = self.hold.release();
        self.mm.release();
        self.on_shared_anew();
        self.w.map.share_with(None);
        if let Some(snapshot) = self.w.snapshot.take() {
            self.sheet = snapshot.free();
        }
        // A child unknown to the supervisor need not be reported to it.
        let mut number = 0;
        if let Some(record) = child {
            self.forks = self.forks % u64::from(u32::MAX) + 1;
            number = self.forks;
            // The record may have belonged to an earlier child that has ended.
            self.expected.retain(|other| other.record != record);
            self.expected.push(Expected {
                record,
                number,
                until: now() + EXPECTED,
            });
        }
        if self.mode == Mode::Bare {
            self.extend_grant();
        }
        if let Some(slot) = next {
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
            // Without a supervisor, the record does not matter.
            let _ = client.reap(record, (child != 0).then_some(child));
        }
        if child == 0 {
            self.expected.swap_remove(at);
        }
    }

    /// The process belongs to this family of the ledger; 0: to a new one.
    pub(super) fn join_family(&self, family: u32) {
        let family = match family {
            0 => self.w.ledger.new_family(),
            family => family,
        };
        self.program.family.store(family, Relaxed);
        self.w.ledger.set_family(self.w.me, family);
    }

    /// A child that never reported was not forked: free its record.
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
                // Without a supervisor, the record does not matter.
                let _ = client.reap(child, None);
                return false;
            }
            waiting
        });
    }
}
