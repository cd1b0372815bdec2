//! One process with its driver: threads, pending events, and the core under test.
//!
//! The oracle (`oracle`) knows the expected content of each page.
//!
//! # Where a state that the engine gives a process belongs
//!
//! [`Fork`] is such a state: the core knows nothing of it but what the driver calls. A further one (bare or armed, a
//! debt of a child) takes:
//!
//! - a field of [`Process`], and a file of its own for the driver's steps through it, as `fork` is for this one;
//!   [`Process::forked`] says what a child inherits of it, `Process::exit` what ends with it, and [`Process::at_rest`]
//!   whether the machine may come to rest in it;
//! - where it changes what the kernel or the ledger answers to the core, the fields of [`Space`] that `view` looks at:
//!   `Page` for one page (its mapping, whether it is shared), `Space::charged` for the charge; what processes share is
//!   in [`System`];
//! - an [`Act`](crate::Act) that begins it, and `Machine::family` for its execution; the rounds of the machine continue
//!   it (`Machine::go_on_with_fork`);
//! - its rules in `oracle`, which is called after each call of the core.

use std::collections::VecDeque;
use std::ops::Range;

use foreswap_core::process::Hold;
use foreswap_core::units::{Nanos, Slot, Vpn};
use foreswap_core::world::{Mmu as _, Notice};
use foreswap_core::{Advice, Hint, Mm, Outcome, Stored};

use crate::bare::Bare;
use crate::events::Event;
use crate::family::Member;
use crate::patience::Kept;
use crate::progress::Progress;
use crate::setup::Setup;
use crate::space::{Ended, Mapping, Space};
use crate::system::System;
use crate::view::View;

/// The expected content of a page.
#[derive(Clone, Copy, Default)]
pub struct Cell {
    /// The last written value.
    pub value: u64,
    /// Zero, or the file's content, is valid too: a discard ran beside the write.
    pub maybe_zero: bool,
    /// A discard of the page is in progress.
    pub discarding: bool,
    /// It was written while a discard was in progress.
    pub written: bool,
    /// Changes of the address space in progress here.
    pub changing: u8,
    /// A notice reported the content as lost.
    pub lost: bool,
    /// The kernel took the page without an event, and it was not discarded since.
    pub taken: bool,
    /// The page of a file that is mapped here.
    pub file: Option<u32>,
}

impl Cell {
    /// The content of the page if nothing was written to it.
    pub fn base(&self) -> u64 {
        self.file.map_or(0, System::file_content)
    }
}

/// A thread that waits for a page.
#[derive(Clone, Copy)]
pub struct Wait {
    /// The page's number.
    pub at: usize,
    /// The value that it writes; a read otherwise.
    pub write: Option<u64>,
    /// When it touched the page.
    pub since: Nanos,
    /// The core knows of it.
    pub told: bool,
    /// How long the core has kept it waiting.
    pub kept: Kept,
}

/// The state of a fork.
#[derive(PartialEq, Eq)]
pub enum Fork {
    /// No fork.
    No,
    /// The core holds the fork.
    Held,
    /// The snapshot was taken.
    Taken(Vec<(Vpn, Stored)>),
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// The page was read or written.
    Done,
    /// The thread waits for the page.
    Waits,
    /// The thread got a legitimate signal.
    Signal,
}

/// Counts of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Faults reported to the core.
    pub faults: u64,
    /// Touches.
    pub touches: u64,
    /// Accesses that ended in SIGBUS after a notice.
    pub sigbus: u64,
    /// The longest wait of a thread, in virtual time.
    pub longest: Nanos,
    /// The longest wait caused by the core: as before, without failures.
    pub kept: Nanos,
}

/// One process.
pub struct Process {
    /// The core under test.
    pub mm: Mm,
    /// As it was made.
    pub setup: Setup,
    /// Its memory.
    pub space: Space,
    /// The expected content of each page.
    pub cells: Vec<Cell>,
    /// The expected hint of each page's region, as far as the core knows the page.
    pub hints: Vec<Hint>,
    /// The wait of each thread.
    pub threads: Vec<Option<Wait>>,
    pub(crate) waiting: u32,
    /// Pending fault messages, in the order in which the driver reads them.
    pub messages: Vec<usize>,
    /// Where in its page each touch is that [`Process::round`] reports, in bytes.
    pub offset: u64,
    /// Unread events.
    pub events: VecDeque<Event>,
    /// Read events whose thread has not continued.
    pub acks: VecDeque<Event>,
    /// Discards whose pages are about to vanish.
    pub zaps: Vec<Range<usize>>,
    /// When the event of the oldest discard was read whose pages may still be present.
    pub discards_since: Option<Nanos>,
    /// The state of the fork.
    pub fork: Fork,
    /// One fork at a time.
    pub(crate) forks: Hold<()>,
    /// Threads that fork, or wait for their turn.
    pub(crate) forking: u32,
    /// Load control lets it wait for so many more calls of [`Process::run`].
    pub(crate) without_turn: u8,
    /// Its memory is not managed yet.
    pub(crate) bare: Option<Bare>,
    /// Its knowledge of its family.
    pub(crate) member: Member,
    /// The accounts of a program that only reads.
    pub(crate) progress: Progress,
    /// Its counts.
    pub tally: Tally,
    /// Calls of the core since the last full check.
    unchecked: u32,
    pub(crate) references: Vec<Slot>,
}

impl Process {
    /// A process without mappings.
    pub fn new(sys: &mut System, setup: Setup) -> Self {
        let pages = setup.pages;
        // The pages cross a leaf border.
        let base = 512 * 107 - pages as u64 / 3;
        let space = Space::new(sys, base, &setup);
        sys.enter(space.pid);
        let mm = Mm::new(setup.config, sys.limit);
        #[cfg(feature = "planted")]
        let mm = match setup.plant {
            Some(bug) => mm.with_bug(bug),
            None => mm,
        };
        Process {
            mm,
            setup,
            space,
            cells: vec![Cell::default(); pages],
            hints: vec![Hint::Normal; pages],
            threads: vec![None; setup.threads],
            waiting: 0,
            messages: Vec::new(),
            offset: 0,
            events: VecDeque::new(),
            acks: VecDeque::new(),
            zaps: Vec::new(),
            discards_since: None,
            fork: Fork::No,
            forks: Hold::default(),
            forking: 0,
            without_turn: 0,
            bare: None,
            member: Member::default(),
            progress: Progress::default(),
            tally: Tally::default(),
            unchecked: 0,
            references: Vec::new(),
        }
    }

    /// Call the core, then check its actions.
    pub fn call<T>(
        &mut self,
        sys: &mut System,
        call: impl FnOnce(&mut Mm, &mut View<'_>) -> T,
    ) -> T {
        self.end_discards(sys.now);
        sys.calls = 0;
        (self.space.refused, self.space.in_vain) = (0, 0);
        self.space.had = self.space.flights.len();
        self.space.lenient |= self.fork != Fork::No;
        let mut view = View {
            sys,
            space: &mut self.space,
        };
        let value = call(&mut self.mm, &mut view);
        sys.out_of_slots[self.space.pid] = self.mm.is_out_of_slots();
        self.space.lenient = false;
        self.space.existed = false;
        if !sys.notices.is_empty() {
            self.heed_notices(sys);
        }
        self.check_limit(sys);
        if self.space.reads > 0 {
            self.weigh_work(sys);
        }
        self.unchecked += 1;
        if self.unchecked >= self.setup.check_every {
            self.unchecked = 0;
            self.check(sys);
        }
        if !self.space.woken.is_empty() {
            self.resume(sys);
        }
        value
    }

    /// A page's content is lost if a notice says so. The core may not know yet that it moved.
    fn heed_notices(&mut self, sys: &mut System) {
        let mut notices = std::mem::take(&mut sys.notices);
        for (pid, notice) in notices.drain(..) {
            assert_eq!(pid, self.space.pid, "a notice of another process");
            sys.tell(notice);
            let page = match notice {
                Notice::LimitPassed => {
                    self.limit_yielded(sys);
                    continue;
                }
                Notice::WriteFailed { .. } => {
                    self.excuse_crawl();
                    let waits = self.threads.iter_mut().flatten();
                    waits.for_each(|wait| wait.kept.failed = true);
                    continue;
                }
                Notice::ReadFailed { page, .. }
                | Notice::Corrupt { page, .. }
                | Notice::OutOfMemory { page }
                | Notice::Unaccounted { page } => page,
                _ => continue,
            };
            let mut at = self.space.at(page);
            for event in &self.events {
                if let Event::Remap(from, to) = event
                    && from.contains(&at)
                {
                    at = at - from.start + to;
                }
            }
            let cell = &mut self.cells[at];
            assert!(
                cell.taken || !matches!(notice, Notice::Unaccounted { .. }),
                "page {at} is missed, and nothing took it"
            );
            cell.lost = true;
        }
        sys.notices = notices;
    }

    /// Threads of woken pages try again.
    fn resume(&mut self, sys: &mut System) {
        let woken = std::mem::take(&mut self.space.woken);
        for page in &woken {
            if self.waiting == 0 {
                break;
            }
            let Some(at) = page.checked_sub(self.space.base) else {
                continue;
            };
            for thread in 0..self.threads.len() {
                if let Some(wait) = self.threads[thread]
                    && wait.at == at as usize
                {
                    self.threads[thread] = None;
                    self.waiting -= 1;
                    // An unread message is withdrawn.
                    if let Some(old) = self.messages.iter().position(|m| *m == wait.at) {
                        self.messages.remove(old);
                    }
                    if self.go_on(sys, thread, wait) != Access::Waits {
                        let took = sys.now.saturating_sub(wait.since);
                        self.tally.longest = self.tally.longest.max(took);
                        self.tally.kept = self.tally.kept.max(wait.kept.time);
                        self.went_on();
                    }
                }
            }
        }
        self.space.woken = woken;
        self.space.woken.clear();
    }

    /// A thread touches a page.
    pub fn touch(
        &mut self,
        sys: &mut System,
        thread: usize,
        at: usize,
        write: Option<u64>,
    ) -> Access {
        self.tally.touches += 1;
        let reads = self.reads_only(sys);
        let write = write.filter(|_| !reads);
        let since = sys.now;
        let wait = Wait {
            at,
            write,
            since,
            told: false,
            kept: Kept::default(),
        };
        self.go_on(sys, thread, wait)
    }

    fn go_on(&mut self, sys: &mut System, thread: usize, wait: Wait) -> Access {
        let Wait { at, write, .. } = wait;
        sys.note(20, at as u64, write.unwrap_or(u64::MAX));
        let page = &mut self.space.pages[at];
        if page.mapping == Mapping::None || page.guard {
            return Access::Signal;
        }
        if page.mapping == Mapping::Plain && page.present.is_none() {
            page.present = Some(0);
            if sys.families && self.bare.is_some() {
                // A fault that brings no data: a child cannot tell it from a copy.
                sys.ledger[self.space.pid].unseen += 1;
            }
        }
        let cell = &mut self.cells[at];
        let Some(content) = page.present else {
            if page.poisoned {
                assert!(cell.lost, "SIGBUS at page {at} without a reason");
                self.tally.sigbus += 1;
                return Access::Signal;
            }
            let wait = Wait {
                told: false,
                ..wait
            };
            // A test may let a thread give up its wait.
            self.waiting += u32::from(self.threads[thread].replace(wait).is_none());
            self.messages.push(at);
            return Access::Waits;
        };
        if write.is_some() && page.wp {
            let wait = Wait {
                told: false,
                ..wait
            };
            self.waiting += u32::from(self.threads[thread].replace(wait).is_none());
            // A fault of its own: how long the thread has waited for the page does not count.
            self.wait_for_copy(at, sys.now);
            return Access::Waits;
        }
        if let Some(value) = write {
            page.present = Some(value);
            self.space.copies(sys, at);
            // The content before a discard no longer counts.
            cell.value = value;
            cell.maybe_zero = cell.discarding;
            cell.written = cell.discarding;
            return Access::Done;
        }
        if content == cell.base() && cell.maybe_zero {
            if !cell.discarding {
                cell.value = content;
                cell.maybe_zero = false;
            }
        } else {
            assert_eq!(
                content, cell.value,
                "page {at} reads {content}, where {} was written last",
                cell.value
            );
            if !cell.discarding {
                cell.maybe_zero = false;
            }
        }
        Access::Done
    }

    /// The driver reads a fault message; the touch was `offset` bytes into its page.
    pub fn read_message(&mut self, sys: &mut System, n: usize, offset: u64) {
        let at = self.messages.remove(n);
        for wait in self.threads.iter_mut().flatten() {
            wait.told |= wait.at == at;
        }
        let page = self.space.vpn(at);
        let address = page.address() + offset;
        self.tally.faults += 1;
        self.call(sys, |mm, w| {
            if mm.on_fault(w, address) == Outcome::Unmanaged {
                w.wake(page);
            }
        });
    }

    /// The helper made shared pages movable. It cannot write to read-only pages either.
    pub fn unshare(&mut self) {
        if let Some((page, n)) = self.space.unshare.pop()
            && self.space.reads == 0
        {
            let at = self.space.at(page);
            for page in self.space.pages.iter_mut().skip(at).take(n as usize) {
                (page.shared, page.id, page.wp) = (false, 0, false);
            }
        }
    }

    /// The device completes flight number `n`.
    pub fn complete(&mut self, sys: &mut System, n: usize) {
        match self.space.complete(sys, n) {
            Some(Ended::Io(io, result)) => self.call(sys, |mm, w| mm.on_io(w, io, result)),
            Some(Ended::Digest(first)) => self.call(sys, |mm, w| mm.on_digested(w, first)),
            None => {}
        }
        self.space.forget_arrived();
    }

    /// The core does background work.
    pub fn run(&mut self, sys: &mut System) -> bool {
        if self.without_turn > 0 {
            self.without_turn -= 1;
            self.set_turn(sys);
        }
        let more = self.call(sys, |mm, w| mm.run(w));
        self.step_copies(sys);
        more
    }

    /// The core is told whether faults wait for the turn of this process.
    pub(crate) fn set_turn(&mut self, sys: &mut System) {
        let waits = self.without_turn > 0;
        self.excuse_crawl();
        self.call(sys, |mm, w| mm.set_waits_for_turn(w, waits));
    }

    /// The program gives advice for a range.
    pub fn advise(&mut self, sys: &mut System, range: Range<usize>, advice: Advice) {
        if let Advice::Use(hint) = advice {
            for at in range.clone() {
                if self.mm.manages(self.space.vpn(at)) {
                    self.hints[at] = hint;
                }
            }
        }
        let range = self.space.range(&range);
        self.call(sys, |mm, w| mm.advise(w, &range, advice));
    }

    /// No event that a thread waits for is pending.
    pub fn at_rest(&self) -> bool {
        self.settled()
            && self.messages.is_empty()
            && self.fork == Fork::No
            && self.forking == 0
            && !self.forks.delays_growth()
            && self.waiting == 0
            && !self.mm.must_retry()
            && !self.mm.is_stalled()
    }

    /// The oldest wait.
    pub fn oldest_wait(&self) -> Option<Wait> {
        let waits = self.threads.iter().flatten();
        waits.min_by_key(|wait| wait.since).copied()
    }

    /// The number of waiting threads.
    pub fn waiting(&self) -> u32 {
        self.waiting
    }
}
