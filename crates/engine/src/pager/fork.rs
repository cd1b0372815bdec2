//! A fork of the program, on the parent's side.
//!
//! The forking thread asks the pager before it forks, and waits. The pager writes all unmapped pages to the areas and
//! records their places in a snapshot; then the thread forks. Other threads are served meanwhile. There is one fork
//! at a time.
//!
//! A child that gets pages from areas needs a record of the ledger. It is reserved by the supervisor, which may be busy:
//! the pager goes on as usual until the answer is there, and holds the memory only then.
//!
//! No room is made for the child: shared pages exist once and are charged to the parent. Copies are charged to the
//! child, by an engine that starts when the child needs one (`lazy`). Until then, and if no page is out of memory,
//! the supervisor is not told of the fork.

use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::process::Stage;
use foreswap_core::units::{Nanos, Vpn};

use super::guests::Reported;
use super::snapshot::{Region, Snapshot};
use super::world::now;
use super::{Mode, Pager, handover};
use crate::ledger::protocol::Severity;
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
        // The child's memory has a copy of it.
        let unasked = self.w.account.begin_fork(&mut self.w.seat());
        self.program.unasked.store(unasked, Relaxed);
        if self.mode == Mode::Bare {
            self.mm.hold();
            // The child assumes that all its memory is mapped.
            self.hold.hold();
            self.forked_with = self.forked_with.max(Some(self.space.resident()));
            return self.let_fork(slot, [hold::BARE, 0, 0, 0]);
        }
        // A slot reference of the child needs a record, and so does the engine that knows its other unmapped pages. A
        // trace names the parent of the child.
        let (_, elsewhere) = self.mm.usage(&(Vpn(0)..Vpn(u64::MAX)));
        let has_files = self.mm.regions().any(|vma| vma.backing().is_some());
        if elsewhere > 0 || has_files || self.w.recorder.is_some() {
            let client = self.w.client.as_ref();
            self.reserving = client.is_some_and(|client| client.ask_to_reserve().is_ok());
        }
        if !self.reserving {
            self.mm.hold();
        }
        self.step_fork();
    }

    /// Advance the fork in progress as far as possible.
    pub(crate) fn step_fork(&mut self) {
        if self.reserving {
            let mut client = self.w.client.as_mut();
            match client.as_mut().and_then(|client| client.reserved()) {
                Some(Ok(record)) => self.child = Some(record),
                Some(Err(why)) => self.tell_no_child(&why.to_string()),
                None if client.is_some() => return,
                None => {}
            }
            self.reserving = false;
            self.mm.hold();
        }
        // The snapshot must match memory: no event may be pending. Later changes mark the snapshot.
        if let Stage::Quieting(slot) = self.hold.stage()
            && self.mm.is_quiet(&mut self.w)
            && !self.w.program.mmap_changing()
        {
            let words = self.take_snapshot();
            self.let_fork(slot, words);
        }
    }

    fn let_fork(&mut self, slot: SlotIndex, words: [u64; 4]) {
        self.w.give_to_child();
        self.reported = Reported::None;
        handover::expect_child(self.program.board.load(Relaxed));
        self.answer(slot, words);
    }

    fn tell_no_child(&self, why: &str) {
        let pid = self.program.pid.load(Relaxed);
        let text = format!(
            "process {pid} cannot fork, as its child could not have the memory that is swapped out: {why}; the fork \
             fails with EAGAIN"
        );
        // Without a supervisor there is no reader.
        let _ = self
            .w
            .client
            .as_ref()
            .map(|client| client.log(Severity::Error, &text));
    }

    /// Leave a snapshot for the child. Returns the answer to the forking thread.
    fn take_snapshot(&mut self) -> [u64; 4] {
        self.hold.hold();
        let regions: Vec<Region> = self.mm.regions().map(Region::of).collect();
        let has_files = regions.iter().any(|region| region.first.is_some());
        let mut pages = Vec::new();
        self.mm.unmapped(&mut pages);
        let child = self.child;
        if (has_files || !pages.is_empty()) && child.is_none() {
            return [hold::IMPOSSIBLE, 0, 0, 0];
        }
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
        if self.w.kept.is_on() {
            // What is marked now must be managed memory, and not other memory in its place.
            self.settle();
        }
        self.w.give_no_more();
        self.reported = Reported::None;
        self.w.came_back = Vec::new();
        let child = self.child.take();
        let next = self.hold.release();
        self.mm.release();
        self.w.account.end_fork();
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
