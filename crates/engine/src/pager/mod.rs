//! The pager: the engine's first thread, which serves the program.
//!
//! It owns the core and its world and runs one loop: read events from the kernel and the program, let the core
//! decide, start the I/O, and then do background work. Faults come before everything except events that may precede
//! them: an event that is read late blocks every mapping call of the kernel.

mod adopt;
mod advice;
mod areas;
mod boot;
mod copies;
mod copying;
mod far;
mod files;
mod fork;
mod frames;
mod guard;
mod guests;
mod handover;
mod huge;
mod inherit;
mod lazy;
mod let_go;
mod madv_guard;
mod moves;
mod panic;
mod placement;
mod publish;
mod record;
mod replaced;
mod requests;
mod sharing;
mod snapshot;
mod space;
mod tell;
mod unnoticed;
mod unshare;
mod watch;
mod workers;
mod world;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use foreswap_core::process::{Copies, Grant, Hold, Turn};
use foreswap_core::units::{Frame, Nanos, PAGE_SIZE, PageRange, Vpn, len};
use foreswap_core::world::{IoId, IoResult, Limit as _, Refusal};
use foreswap_core::{Mm, Outcome};
use foreswap_store::ring::{Completion, Io, IoError, MAX_DEPTH};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub use boot::{Origin, renounce_parent, start};
use guests::{Guest, Needed};
pub use handover::child_is_up;
use moves::Move;
use placement::Placement;
use snapshot::Sheet;
pub use workers::DEPTH as IO_DEPTH;
use world::{DIGEST, Linux, now};

use crate::ledger::protocol::{AreaFiles, AreaOrder, Client};
use crate::ledger::{AreaId, ProcId, SeenKind};
use crate::program::Program;
use crate::sys::doorbell::{Doorbell, SlotIndex};
use crate::sys::limits;
use crate::sys::uffd::{Event, RawMsg};

/// Messages per read.
const MESSAGES: usize = 64;
/// The longest sleep of the pager.
const IDLE: Nanos = 250_000_000;
/// The sleep before an operation is tried again soon.
const SOON: Nanos = 5_000_000;
/// How long the pager polls for the completion of a read: the latency of a fast disk, with a margin.
const POLLING: Nanos = 120_000;
/// How often it then looks at the ring alone before it looks at everything again.
const GLANCES: u32 = 64;
/// How long the program may run while the kernel finishes an event.
const SETTLING: Nanos = 20_000;

/// Whether the program's memory is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// All memory fits the grant: no fault reaches the pager.
    Bare,
    /// It is registered.
    Armed,
}

/// The engine of one process.
pub(crate) struct Pager {
    program: &'static Program,
    doorbell: Doorbell,
    mm: Mm,
    w: Linux,
    pub(crate) mode: Mode,
    /// Pages charged in advance in bare mode.
    grant: Grant,
    /// Forks, by the calls of their threads.
    pub(crate) hold: Hold<SlotIndex>,
    /// The record of the child of the fork that is held.
    child: Option<ProcId>,
    /// The supervisor was asked for that record and has not answered.
    reserving: bool,
    /// The most pages that were present at a fork while nothing was managed, if there was one: other processes may share
    /// them.
    forked_with: Option<u64>,
    sheet: Option<Sheet>,
    /// Children that have not reported.
    expected: Vec<fork::Expected>,
    /// Forks so far.
    forks: u64,
    /// The forks that the kernel has reported while one is held.
    reported: guests::Reported,
    placement: Placement,
    /// When polling for a completion began; 0 when not polling.
    polling_since: Nanos,
    space: space::Space,
    /// Rung by the unsharer, the watcher and the helpers.
    bell: OwnedFd,
    /// The bell to ring when the program is about to execute a file: see `guard`.
    announced: Option<OwnedFd>,
    /// The source of connections for forked children, if the supervisor cannot be reached by name.
    office: Option<Client>,
    /// The areas' files, open as long as the ring may use them.
    areas: Vec<(AreaId, AreaFiles)>,
    /// Areas to be closed once no I/O on them is in flight.
    detaching: Vec<AreaOrder>,
    /// The supervisor was told that a fault starves because of a drained area.
    told_starved: bool,
    /// When to look for orders of the supervisor next, notified or not.
    next_orders: Nanos,
    /// The limit at the last look, in pages.
    limit: u64,
    /// The number of pages on which reclaim was told to count.
    counted_on: u64,
    /// Address, thread, and whether it is a write.
    faults: Vec<(u64, u32, bool)>,
    /// Unmap events that are expected and have no effect.
    overdue: moves::Overdue,
    /// Writes to pages that are not paid for.
    copies: Copies,
    /// Children of forks past the C library that are not served yet.
    guests: Vec<Guest>,
    /// Changes since the address space last was at rest.
    changed_recently: Vec<guests::Recent>,
    /// Calls that arrived before the pager existed.
    early_calls: Vec<SlotIndex>,
    /// Faults on unknown memory, while pending events may explain it.
    unknown: Vec<u64>,
    /// Memory that took the place of managed memory.
    replaced: replaced::Replaced,
    completions: Vec<Completion>,
    pulse: Arc<watch::Pulse>,
    pressure: u32,
    next_look: Nanos,
    /// The time from one look to the next.
    look_every: Nanos,
    /// When the regions are published next.
    next_publish: Nanos,
    next_share: Nanos,
    /// Faults at the last check of shares: a process without faults needs no memory. Wake-ups of
    /// background reclaim, and pages that came back soon after they were evicted.
    shared_at: u64,
    woke_at: u64,
    returned_at: u64,
    /// The kernel's count of data, less what the program has unmapped since: another count means that memory came.
    data_bytes: u64,
    /// Memory that the program is about to serve itself, and how long it is left alone.
    let_go: Vec<(PageRange, Nanos)>,
}

/// How long the pager waits for the address space to settle.
const SETTLES: Nanos = 2_000_000_000;

impl Pager {
    fn new(
        program: &'static Program,
        doorbell: Doorbell,
        mm: Mm,
        w: Linux,
        bell: OwnedFd,
        areas: Vec<(AreaId, AreaFiles)>,
        space: space::Space,
    ) -> Self {
        let pressure = w.ledger.pressure();
        let limit = w.ledger.limit_pages();
        Pager {
            program,
            doorbell,
            mm,
            w,
            mode: Mode::Bare,
            grant: Grant::default(),
            hold: Hold::default(),
            child: None,
            reserving: false,
            forked_with: None,
            sheet: None,
            expected: Vec::new(),
            forks: 0,
            reported: guests::Reported::default(),
            placement: Placement::new(program.pid.load(Relaxed)),
            polling_since: 0,
            space,
            bell,
            announced: None,
            office: None,
            areas,
            detaching: Vec::new(),
            told_starved: false,
            next_orders: 0,
            limit,
            counted_on: limit,
            faults: Vec::with_capacity(MESSAGES),
            overdue: moves::Overdue::default(),
            copies: Copies::default(),
            guests: Vec::new(),
            changed_recently: Vec::new(),
            early_calls: Vec::new(),
            unknown: Vec::new(),
            replaced: replaced::Replaced::default(),
            completions: Vec::with_capacity(MAX_DEPTH as usize),
            pulse: Arc::new(watch::Pulse::default()),
            pressure,
            next_look: 0,
            look_every: unnoticed::LOOKS_SOON,
            next_publish: 0,
            next_share: 0,
            shared_at: 0,
            woke_at: 0,
            returned_at: 0,
            data_bytes: 0,
            let_go: Vec::new(),
        }
    }

    /// Serve the program until it ends; does not return before.
    pub(crate) fn serve(&mut self) {
        self.pulse.begin();
        loop {
            // While the only faulting thread waits for a read, the next events are its completion and then the
            // thread's next fault, which has run by then.
            let ended = self.watches_a_read() && self.reap();
            let mut busy = self.read_program();
            if busy {
                // Start reads that a thread waits for before all other work.
                let _ = self.w.io.flush();
            }
            busy |= ended || self.reap();
            busy |= self.read_doorbell();
            if !busy && self.polling_since != 0 && self.stays_awake() {
                continue;
            }
            self.poll_control();
            if self.mm.must_retry() && !self.w.program.mmap_changing() {
                self.mm.retry(&mut self.w);
                busy = true;
            }
            // A failed submission stays queued; the next flush tries it again.
            let flushed = self.w.io.flush().is_ok();
            let more = self.mm.run(&mut self.w);
            busy |= self.step_copies();
            self.step_fork();
            self.step_growth();
            let _ = self.w.io.flush();
            let channels = self.w.io.channel_bytes();
            let own = self.own_bytes() + self.w.io.buffer_bytes() + channels;
            publish::counters(self.w.ledger, self.w.me, &self.mm, own, channels);
            let now = now();
            let stats = &self.mm.stats;
            let ahead = stats.ahead.unseen + stats.first_touched;
            let draining = self.mm.is_draining();
            let reads = stats.swap_read_ios;
            self.placement.look(now, ahead, reads, draining);
            self.share(now);
            self.follow_turn();
            self.look_at_files(now);
            if now >= self.next_look {
                // Also under load: unnoticed memory is not charged.
                self.periodic(now);
            }
            if busy || (more && flushed) || self.w.io.has_ended() {
                self.polling_since = 0;
                continue;
            }
            if self.stays_awake() {
                continue;
            }
            self.polling_since = 0;
            self.periodic(now);
            if now >= self.next_publish {
                self.next_publish = now + IDLE;
                publish::regions(self.w.ledger, self.w.me, &self.mm);
                // Raise the program's limits for mappings made since then. A failure was reported at the start.
                let _ = limits::lift_program(self.w.pid, &self.program.lifted, self.own_bytes());
            }
            self.wait();
        }
    }

    /// Whether to look again at once instead of sleeping. Either helpers have work that a thread waits for, and a
    /// part of it was done here. Or a thread waits for a read that will complete sooner than an idle CPU of a virtual
    /// machine wakes up. The thread waits on this CPU, so no other task loses it.
    fn stays_awake(&mut self) -> bool {
        let now = now();
        if self.polling_since == 0 {
            self.polling_since = now;
        }
        if self.w.io.is_helped() {
            // Otherwise the helpers may wait for this CPU.
            let waits = self.mm.is_awaited() || self.mm.is_stalled();
            return self.w.io.help(waits);
        }
        if !self.watches_a_read() {
            return false;
        }
        // Without a system call, which would miss a completion that arrives during it.
        for _ in 0..GLANCES {
            if self.w.io.has_ended() {
                break;
            }
            core::hint::spin_loop();
        }
        now - self.polling_since < POLLING
    }

    /// The pager runs beside the only faulting thread, and that thread waits for a read of a disk. A read of a server needs
    /// the relay, and perhaps this CPU.
    fn watches_a_read(&self) -> bool {
        let waits = self.mm.is_awaited() && self.placement.is_beside_the_program();
        waits && !self.w.io.is_relayed()
    }

    /// Read events first, then faults; returns whether there were any.
    fn read_program(&mut self) -> bool {
        let mut buffer = [RawMsg::ZERO; MESSAGES];
        // While a fork is held, read one event at a time: reading releases the call that caused the event, and its
        // effect must be in the snapshot before. An mremap waits for two events, and therefore never returns before
        // its move is noted.
        let at_once = if self.hold.is_held() { 1 } else { MESSAGES };
        let (mut any, mut reads) = (false, 0);
        let _needed = Needed::new();
        while let Ok(events) = self.w.program.read(&mut buffer[..at_once]) {
            let mut count = 0;
            reads += 1;
            for event in events {
                count += 1;
                match event {
                    Event::Fault { addr, flags, .. } if flags.wp => {
                        self.copies.push(copies::at(addr as u64));
                    }
                    Event::Fault { addr, flags, tid } => {
                        self.faults.push((addr as u64, tid, flags.write));
                    }
                    Event::Remove { start, end } => {
                        let range = adopt::pages(start, end);
                        self.w.forget_in_snapshot(&range);
                        self.w.record(|to| to.change(SeenKind::Discard, &range));
                        self.mm.discard(&mut self.w, &range);
                    }
                    Event::Unmap { start, end } => {
                        let range = adopt::pages(start, end);
                        self.register_replaced(&range);
                        self.on_unmap(range);
                    }
                    Event::Remap { from, to, len } => {
                        let (from, to) = (adopt::pages(from, from + len), Vpn::of(to as u64));
                        self.on_move(&from, to);
                    }
                    Event::Fork { fd } => self.on_fork(fd),
                    Event::Unknown(_) => {}
                }
            }
            // Before the released threads touch much of it.
            self.adopt_replaced();
            any |= count > 0;
            // Bounded, or threads that keep raising events would delay the faults.
            if count < at_once || reads == MESSAGES {
                break;
            }
        }
        if !self.overdue.is_empty() && !self.w.program.mmap_changing() {
            self.overdue.clear();
        }
        self.begin_guests();
        let mut faults = core::mem::take(&mut self.faults);
        for (address, tid, write) in faults.drain(..) {
            self.placement.on_fault(tid);
            let mm = &self.mm;
            self.w
                .record(|to| to.fault(mm, Vpn::of(address), tid, write));
            if self.mm.on_fault(&mut self.w, address) == Outcome::Unmanaged {
                self.unknown.push(address);
            }
        }
        self.faults = faults;
        if !self.unknown.is_empty() && !self.w.program.mmap_changing() {
            for address in core::mem::take(&mut self.unknown) {
                self.on_unmanaged(address);
            }
        }
        any
    }

    /// Memory moved. Known memory at its destination was unmapped before, because the kernel found the place free.
    /// That unmap event is still pending, and does not concern the memory that is there now.
    fn on_move(&mut self, from: &PageRange, to: Vpn) {
        let target = to..to.plus(len(from));
        for known in self.mm.managed_in(&target) {
            self.overdue.expect(known);
        }
        // The kernel also reports the old place as unmapped. The event is expected here, and not mistaken for a late
        // event of the same place.
        self.overdue.expect(from.clone());
        let moved = Move {
            from: from.clone(),
            to,
        };
        self.w.move_in_snapshot(&moved);
        self.w.kept.moves(&moved);
        self.note_move(moved);
        self.w.record(|record| {
            record.moves(from, to);
            record.change(SeenKind::Unmap, from);
        });
        self.mm.remap(&mut self.w, from, to);
    }

    fn on_unmap(&mut self, range: PageRange) {
        for part in self.overdue.rest_of(range) {
            self.w.forget_in_snapshot(&part);
            self.w.kept.forget(&part);
            self.w.record(|to| to.change(SeenKind::Unmap, &part));
            self.note_unmapped(&part);
            self.mm.unmap(&mut self.w, &part);
            // Memory that came in its place unnoticed is as large.
            self.data_bytes = self.data_bytes.wrapping_sub(len(&part) * PAGE_SIZE as u64);
        }
    }

    fn reap(&mut self) -> bool {
        let mut completions = core::mem::take(&mut self.completions);
        self.w.io.reap(&mut completions);
        let any = !completions.is_empty();
        for completion in completions.drain(..) {
            let result = match completion.result {
                Ok(()) => IoResult::Ok,
                Err(IoError::Refused(refusal)) => IoResult::Refused(Refusal {
                    pages: refusal.pages,
                    full: refusal.full,
                }),
                Err(error) => IoResult::Failed(error.errno()),
            };
            self.w.look_at_read(completion.token);
            let number = completion.token as u32;
            if completion.token & DIGEST != 0 {
                self.mm.on_digested(&mut self.w, Frame(number));
            } else {
                self.mm.on_io(&mut self.w, IoId(number), result);
            }
            self.w.forget_read();
        }
        self.completions = completions;
        any
    }

    /// Checks made a few times a second, or when another process needs memory.
    fn periodic(&mut self, now: Nanos) {
        let pressure = self.w.ledger.pressure();
        if now < self.next_look && pressure == self.pressure {
            return;
        }
        if pressure != self.pressure {
            self.mm.give_back_slots(&mut self.w);
            self.w.io.give_back();
        }
        self.pressure = pressure;
        self.follow_limit();
        self.w.refresh();
        if self.mode == Mode::Bare && self.w.excess() > 0 && self.hold.is_none() {
            // Other processes need the grant: from now on this memory can be evicted.
            self.settle();
            self.arm_all();
        }
        if now >= self.next_look {
            self.look_for_growth(now);
        }
    }

    /// Load control lets this process wait, or go on: its faults that need memory wait for its turn.
    fn follow_turn(&mut self) {
        let turn = self.w.ledger.turn(self.w.me, now);
        let waits = matches!(turn, Turn::Waits(_)) && self.hold.is_none();
        self.mm.set_waits_for_turn(&mut self.w, waits);
    }

    fn own_bytes(&self) -> u64 {
        self.program.heap.opened_bytes() as u64
    }

    /// Sleep until an event arrives.
    fn wait(&mut self) {
        let unsettled = self.mm.must_retry()
            || self.mm.is_stalled()
            || !self.unknown.is_empty()
            || !self.guests.is_empty();
        let timeout = if unsettled && self.w.program.mmap_changing() {
            SETTLING
        } else if unsettled
            || self.hold.is_quieting()
            || self.has_to_pay()
            || self.w.account.unpaid() > 0
            || self.mm.has_to_drain()
            || self.mm.is_refilling()
            || self.hold.delays_growth()
        {
            SOON
        } else {
            IDLE
        };
        let since = now();
        let timeout = timeout.min(self.next_look.saturating_sub(since).max(SETTLING));
        let timeout = self
            .mm
            .moment_left(since)
            .map_or(timeout, |left| left.min(timeout));
        // SAFETY: the ring's descriptor stays open as long as the ring, which outlives the call.
        let io = unsafe { BorrowedFd::borrow_raw(self.w.io.poll_fd()) };
        let supervisor = self.w.client.as_ref().map_or(self.bell.as_fd(), Client::fd);
        let mut fds = [
            PollFd::new(&self.w.program, PollFlags::IN),
            PollFd::new(&io, PollFlags::IN),
            PollFd::new(&self.w.quiet, PollFlags::IN),
            PollFd::new(&self.bell, PollFlags::IN),
            PollFd::from_borrowed_fd(supervisor, PollFlags::IN),
        ];
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: timeout as i64,
        };
        self.pulse.sleep();
        let polled = poll(&mut fds, Some(&timeout));
        self.pulse.wake();
        self.placement.on_slept();
        if polled.is_err() {
            return;
        }
        let rung = !fds[3].revents().is_empty();
        let hung_up = fds[4].revents().contains(PollFlags::HUP);
        let ordered = self.w.client.is_some() && !fds[4].revents().is_empty();
        if rung {
            let mut count = [0; 8];
            let _ = rustix::io::read(&self.bell, &mut count);
        }
        if ordered {
            self.next_orders = 0;
        }
        if hung_up {
            // The supervisor has ended the run; this process continues with its resources.
            self.w.client = None;
            self.on_orphaned();
        }
    }
}
