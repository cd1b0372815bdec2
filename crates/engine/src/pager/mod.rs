//! The pager: the engine's first thread, which serves the program.
//!
//! It owns the core and its world and runs one loop: read what the kernel and the program have to
//! say, let the core decide, start the I/O, and only then do what nobody waits for. Faults go
//! before everything except the events that may have come before them: an event that is read late
//! blocks every mapping call of the kernel.

mod adopt;
mod advice;
mod areas;
mod boot;
mod copies;
mod fork;
mod frames;
mod guard;
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
mod requests;
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

use foreswap_core::units::{Frame, Nanos, PageRange, Vpn, len};
use foreswap_core::world::{IoId, IoResult, Limit as _, Refusal};
use foreswap_core::{Mm, Outcome};
use foreswap_store::ring::{Completion, Io, IoError, MAX_DEPTH};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

pub use boot::{Origin, renounce_parent, start};
pub(crate) use fork::Fork;
use placement::Placement;
use snapshot::Sheet;
use world::{DIGEST, Linux, now};

use crate::ledger::protocol::{AreaFiles, AreaOrder, Client};
use crate::ledger::{AreaId, SeenKind};
use crate::program::Program;
use crate::sys::doorbell::{Doorbell, SlotIndex};
use crate::sys::limits;
use crate::sys::uffd::{Event, RawMsg};

/// Messages that one read takes.
const MESSAGES: usize = 64;
/// How long the pager sleeps at the most.
const IDLE: Nanos = 250_000_000;
/// How often it looks whether memory is shared fairly.
const SHARING: Nanos = 10_000_000;
/// And how often while it has pages that are not paid for.
const OWING: Nanos = 2_000_000;
/// Pages that it asks of the others when a fault finds none.
const STALLED_WANT: u64 = 64;
/// How long it sleeps when something has to be tried again soon.
const SOON: Nanos = 5_000_000;
/// How long it polls for a read's completion: a fast disk's latency and some.
const POLLING: Nanos = 120_000;
/// How often it then looks at the ring alone before it looks at all else again.
const GLANCES: u32 = 64;
/// How long it lets the program run while an event is being worked off.
const SETTLING: Nanos = 20_000;

/// How long a thread whose memory grew waits for the end of a fork.
const UNDER_FORK: Nanos = 50_000_000;

/// Whether the program's memory is registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// All of it fits what was granted: no fault ever reaches us.
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
    granted: u64,
    pub(crate) fork: Fork,
    /// Doorbell calls that wait for a fork in progress to end.
    waiting_forks: Vec<SlotIndex>,
    /// Threads whose memory grew while a fork was held, and until when they wait for its end.
    waiting_growth: Vec<(SlotIndex, Nanos)>,
    sheet: Option<Sheet>,
    /// Children that have not reported.
    expected: Vec<fork::Expected>,
    /// Forks so far.
    forks: u64,
    placement: Placement,
    /// Since when it polls for a completion; 0 when it does not.
    polling_since: Nanos,
    space: space::Space,
    /// Rung by the unsharer, the watcher and the helpers.
    bell: OwnedFd,
    /// To be rung when the program is about to execute a file: see `guard`.
    announced: Option<OwnedFd>,
    /// Where connections for forked children come from, if the supervisor cannot be reached by name.
    office: Option<Client>,
    /// The areas' files, open as long as the ring may use them.
    areas: Vec<(AreaId, AreaFiles)>,
    /// Areas that are to be closed when no I/O on them is in flight any more.
    detaching: Vec<AreaOrder>,
    /// The supervisor was told that a drained area starves a fault.
    told_starved: bool,
    /// When the supervisor's orders are looked for next, whether or not anything told of them.
    next_orders: Nanos,
    /// The limit as of the last look, in pages.
    limit: u64,
    /// Pages that reclaim was told it can count on.
    counted_on: u64,
    /// Address, thread, and whether it was to write.
    faults: Vec<(u64, u32, bool)>,
    /// Unmap events that are still to come and mean nothing.
    overdue: moves::Overdue,
    /// Writes to pages that are not paid for.
    copies: Vec<copies::Copy>,
    /// Calls that came before there was a pager.
    early_calls: Vec<SlotIndex>,
    /// Faults on memory that nothing is known of, while events are on the way that may tell.
    unknown: Vec<u64>,
    completions: Vec<Completion>,
    pulse: Arc<watch::Pulse>,
    pressure: u32,
    next_look: Nanos,
    /// How long after a look the next one comes.
    look_every: Nanos,
    /// When the regions are published next.
    next_publish: Nanos,
    next_share: Nanos,
    /// Faults at the last look at how memory is shared: who touches nothing needs nothing.
    shared_at: u64,
    data_bytes: u64,
    /// Memory that the program is about to serve itself, and until when it is left alone in any case.
    let_go: Vec<(PageRange, Nanos)>,
    /// Looks since memory that came unnoticed waits for room; 0 when none does.
    room_wanted: u32,
}

/// How long the address space may take to settle.
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
            granted: 0,
            fork: Fork::None,
            waiting_forks: Vec::new(),
            waiting_growth: Vec::new(),
            sheet: None,
            expected: Vec::new(),
            forks: 0,
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
            copies: Vec::new(),
            early_calls: Vec::new(),
            unknown: Vec::new(),
            completions: Vec::with_capacity(MAX_DEPTH as usize),
            pulse: Arc::new(watch::Pulse::default()),
            pressure,
            next_look: 0,
            look_every: unnoticed::LOOKS_SOON,
            next_publish: 0,
            next_share: 0,
            shared_at: 0,
            data_bytes: 0,
            room_wanted: 0,
            let_go: Vec::new(),
        }
    }

    /// Serve the program until it ends; never returns before.
    pub(crate) fn serve(&mut self) {
        self.pulse.begin();
        loop {
            // While the only thread that faults waits for a read, its end is what comes next, and after that
            // the thread's next fault: it has run when we go on.
            let ended = self.watches_a_read() && self.reap();
            let mut busy = self.read_program();
            if busy {
                // Reads that a thread waits for start before anything else is done.
                let _ = self.w.io.flush();
            }
            busy |= ended || self.reap();
            busy |= self.read_doorbell();
            if !busy && self.polling_since != 0 && self.stays_awake() {
                continue;
            }
            self.heed_orders();
            if self.mm.must_retry() && !self.w.program.mmap_changing() {
                self.mm.retry(&mut self.w);
                busy = true;
            }
            // A failed submission stays queued and is tried again with the next flush.
            let flushed = self.w.io.flush().is_ok();
            let more = self.mm.run(&mut self.w);
            self.step_copies();
            self.step_fork();
            self.step_growth();
            let _ = self.w.io.flush();
            publish::counters(self.w.ledger, self.w.me, &self.mm, self.own_bytes());
            let now = now();
            let stats = &self.mm.stats;
            let ahead = stats.ahead.unseen + stats.first_touched;
            let draining = self.mm.is_draining();
            let reads = stats.swap_read_ios;
            self.placement.look(now, ahead, reads, draining);
            self.share(now);
            if now >= self.next_look {
                // Also under load: what came unnoticed takes memory that nobody counts.
                self.look_around(now);
            }
            if busy || (more && flushed) || self.w.io.has_ended() {
                self.polling_since = 0;
                continue;
            }
            if self.stays_awake() {
                continue;
            }
            self.polling_since = 0;
            self.look_around(now);
            if now >= self.next_publish {
                self.next_publish = now + IDLE;
                publish::regions(self.w.ledger, self.w.me, &self.mm);
                // What the engine mapped since then. Where it may not, it told so at the begin.
                let _ = limits::lift_program(self.w.pid, &self.program.lifted, self.own_bytes());
            }
            self.wait();
        }
    }

    /// Whether to look again at once instead of sleeping. Helpers have something to do that a thread waits for: a
    /// part of it was done here. Or a thread waits for a read that will be done sooner than an idle CPU of a virtual
    /// machine wakes up, and it waits on this very CPU, so that nobody else misses it.
    fn stays_awake(&mut self) -> bool {
        let now = now();
        if self.polling_since == 0 {
            self.polling_since = now;
        }
        if self.w.io.is_helped() {
            // Otherwise they may wait for this very CPU.
            let waits = self.mm.is_awaited() || self.mm.is_stalled();
            return self.w.io.help(waits);
        }
        if !self.watches_a_read() {
            return false;
        }
        // Without a system call: it would see nothing, and begin anew when a read ends in it.
        for _ in 0..GLANCES {
            if self.w.io.has_ended() {
                break;
            }
            core::hint::spin_loop();
        }
        now - self.polling_since < POLLING
    }

    /// It runs beside the only thread that faults, and that one waits for a read.
    fn watches_a_read(&self) -> bool {
        self.mm.is_awaited() && self.placement.is_beside_the_program()
    }

    /// Events first, then the faults; returns whether there were any.
    fn read_program(&mut self) -> bool {
        let mut buffer = [RawMsg::ZERO; MESSAGES];
        // While a fork is held, one at a time: reading an event lets the call go on that caused it, and
        // what it did must be in the snapshot before. An mremap waits for two, so that it never
        // returns before its move is noted.
        let at_once = if self.fork.is_held() { 1 } else { MESSAGES };
        let (mut any, mut reads) = (false, 0);
        while let Ok(events) = self.w.program.read(&mut buffer[..at_once]) {
            let mut count = 0;
            reads += 1;
            for event in events {
                count += 1;
                match event {
                    Event::Fault { addr, flags, tid } if flags.wp => {
                        self.copies.push(copies::Copy::at(addr as u64, tid));
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
                    Event::Unmap { start, end } => self.on_unmap(adopt::pages(start, end)),
                    Event::Remap { from, to, len } => {
                        let (from, to) = (adopt::pages(from, from + len), Vpn::of(to as u64));
                        self.on_move(&from, to);
                    }
                    Event::Fork { .. } | Event::Unknown(_) => {}
                }
            }
            any |= count > 0;
            // Not for ever, or threads that go on making events would keep the faults waiting.
            if count < at_once || reads == MESSAGES {
                break;
            }
        }
        if !self.overdue.is_empty() && !self.w.program.mmap_changing() {
            self.overdue.clear();
        }
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

    /// Memory moved. What is known to be where it went was unmapped before, as the kernel found the
    /// place free: that event is still on its way, and does not mean what is there now.
    fn on_move(&mut self, from: &PageRange, to: Vpn) {
        let target = to..to.plus(len(from));
        for known in self.mm.managed_in(&target) {
            self.overdue.expect(known);
        }
        // The kernel announces the place that was left as unmapped as well. Counted here, that event
        // is not taken for another one of the same place that is late.
        self.overdue.expect(from.clone());
        self.w.move_in_snapshot(from, to);
        self.w.record(|record| {
            record.moves(from, to);
            record.change(SeenKind::Unmap, from);
        });
        self.mm.remap(&mut self.w, from, to);
    }

    fn on_unmap(&mut self, range: PageRange) {
        for part in self.overdue.rest_of(range) {
            self.w.forget_in_snapshot(&part);
            self.w.record(|to| to.change(SeenKind::Unmap, &part));
            self.mm.unmap(&mut self.w, &part);
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

    /// What is looked at a few times a second, or when another process presses.
    fn look_around(&mut self, now: Nanos) {
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
        self.w.look_around();
        if self.mode == Mode::Bare && self.w.excess() > 0 && self.fork == Fork::None {
            // Others need what was granted here: from now on it can be moved out.
            self.settle();
            self.arm_all();
        }
        if now >= self.next_look {
            self.look_for_growth(now);
        }
    }

    /// Now and then: tell the others whether we have too little, and hear whether they have.
    fn share(&mut self, now: Nanos) {
        if now >= self.next_share {
            let debts = self.w.owes() || self.w.has_debtors();
            self.next_share = now + if debts { OWING } else { SHARING };
            self.settle_debts();
            let stalled = self.mm.is_stalled();
            let stats = &self.mm.stats;
            let faults = stats.faults_major + stats.faults_minor + stats.faults_zero;
            let goes_on = faults != core::mem::replace(&mut self.shared_at, faults);
            let needy = stalled || goes_on && self.mm.is_reclaiming();
            let waits = stalled || !self.copies.is_empty();
            let least = if waits { STALLED_WANT } else { 0 };
            self.w
                .ask_for_share(needy, least.max(self.w.missing_to_pay()));
            self.follow_share();
        }
        if self.w.ledger.pressure() != self.pressure {
            self.settle_debts();
            self.look_around(now);
        }
    }

    /// The limit may have been changed.
    fn follow_limit(&mut self) {
        let limit = self.w.ledger.limit_pages();
        if limit == self.limit {
            return;
        }
        self.limit = limit;
        self.follow_share();
        let over = self.w.ledger.charged_pages() > limit;
        if over && self.mode == Mode::Bare && !self.fork.is_held() {
            // What was granted no longer is: only what is managed can be given back.
            self.arm_all();
        }
    }

    /// Reclaim goes by what this process can count on, which changes with the limit, the number of processes
    /// and what they leave to it.
    fn follow_share(&mut self) {
        let share = self.w.share();
        if share.abs_diff(self.counted_on) > self.counted_on / 8 {
            self.counted_on = share;
            self.mm.on_limit(share);
        }
    }

    fn own_bytes(&self) -> u64 {
        self.program.heap.opened_bytes() as u64
    }

    /// Sleep until something happens.
    fn wait(&mut self) {
        let unsettled = self.mm.must_retry() || self.mm.is_stalled() || !self.unknown.is_empty();
        let timeout = if unsettled && self.w.program.mmap_changing() {
            SETTLING
        } else if unsettled
            || self.fork.is_under_way()
            || self.w.owes()
            || self.w.is_protected
            || self.w.shrink_to.is_some()
            || self.mm.has_to_drain()
            || !self.waiting_growth.is_empty()
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
            // The run is over for the supervisor; this process goes on with what it has.
            self.w.client = None;
            self.on_orphaned();
        }
    }
}
