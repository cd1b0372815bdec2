//! The engine of a forked child before it is needed.
//!
//! Most forked children execute another file or exit soon, and have touched little memory. The child's engine
//! therefore starts with the minimum that is safe. It registers the memory that the parent managed, which makes
//! faults on absent pages wait, and installs the doorbell. Then the child runs.
//!
//! The full engine starts (`boot`) at the first fault, at the first doorbell call for it, when the child has copied
//! some memory, or after a while. Until then it has no record in the ledger and no charge. Memory that the child
//! discards or moves is marked in its copy of the snapshot, as the parent's engine does while a fork is held.
//!
//! Before a supervisor holds the userfaultfd, a ring in the child's own memory does ([`Uring::keep`]). If this
//! process is killed, the child waits for its pages, but never reads zeros.

use std::sync::atomic::Ordering::{Relaxed, Release};
use std::time::Duration;

use foreswap_core::process::Copy;
use foreswap_core::units::{Nanos, PageRange, Vpn, overlap, without};
use foreswap_store::ring::Uring;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd};
use rustix::io::Errno;
use rustix::mm::{Advice, MsyncFlags, msync};

use super::adopt::pages;
use super::boot::bytes_of;
use super::copies::{self, Protection};
use super::copying::Copying;
use super::guests::{Child, Needed, mark};
use super::moves::{Move, Overdue};
use super::snapshot::Snapshot;
use super::world::{kept, now};
use super::{SETTLES, handover, space};
use crate::ledger::protocol::Client;
use crate::program::{Program, request, state};
use crate::sys::doorbell::{Doorbell, Knock, SlotIndex};
use crate::sys::host::Host;
use crate::sys::maps::PageMap;
use crate::sys::own_memory;
use crate::sys::process;
use crate::sys::uffd::{Event, Features, RawMsg, Uffd, UffdError};

/// Growth of the child's memory without its engine, in bytes.
const SPARE: i64 = 1 << 20;
/// Faults of the child or its parent, each of which may have copied a page, after which the engine starts.
const COPIES: u64 = 512;
/// How long a child waits for its memory until it makes itself known, in nanoseconds.
const SHOWS: Nanos = 300_000;
/// How often the child is looked at, and how often if it is about to execute a file.
const LOOK: Duration = Duration::from_millis(2);
const SOON: Duration = Duration::from_micros(500);
/// Looks after which the engine starts in any case.
const LOOKS: u32 = 50;
/// One look in this number checks whether the child has executed a file unannounced.
const SELDOM: u32 = 5;

/// An engine that waits to be needed.
pub(super) struct Early {
    pub host: Host,
    /// No message was sent on it. While it is open, the run continues.
    pub client: Client,
    /// The userfaultfd of the program's memory, if the parent's was registered.
    pub program: Option<Uffd>,
    pub quiet: Uffd,
    pub doorbell: Doorbell,
    /// Keeps the userfaultfd in the program's memory.
    pub ring: Option<Uring>,
    /// Calls not answered yet.
    pub calls: Vec<SlotIndex>,
    pub heard: Heard,
    /// The write protection of the pages found in memory.
    pub protection: Protection,
    pub copying: Copying,
    /// Pages copied so far.
    pub copied: u64,
}

/// Notes of where the unmapped pages of a process are, which follow what the process does to its memory.
pub(super) trait Notes {
    /// The content of the pages in `range` is gone.
    fn forget(&mut self, range: &PageRange);

    /// The memory in `range` is gone.
    fn unmap(&mut self, range: &PageRange) {
        self.forget(range);
    }

    /// Memory moved; content at the target is gone.
    fn moves_to(&mut self, moved: &Move);
}

impl Notes for Snapshot {
    fn forget(&mut self, range: &PageRange) {
        Snapshot::forget(self, range);
    }

    fn moves_to(&mut self, moved: &Move) {
        Snapshot::moves_to(self, moved);
    }
}

/// Events of the program's memory.
#[derive(Default)]
pub(super) struct Heard {
    /// Faults not served yet: address, thread, and whether it is a write.
    pub faults: Vec<(u64, u32, bool)>,
    /// Writes to pages that are not paid for.
    pub copies: Vec<Copy>,
    /// Unmap events that are expected and have no effect.
    pub overdue: Overdue,
    /// The registered regions.
    pub regions: Vec<PageRange>,
    /// The process has forked without notice: the memory of each child.
    pub forked: Vec<Child>,
    /// It has changed its memory since.
    pub changed_since: bool,
}

/// Lets the child run, if it can do without a full engine for now. `None`: it cannot, and nothing was done.
pub(super) fn begin(program: &Program, snapshot: Option<&Snapshot>) -> Option<Early> {
    let boards = [&program.board, &program.elder].map(|board| board.load(Relaxed));
    // The child's own rights may not last: see `handover`.
    if handover::has_to_ask(boards) {
        return None;
    }
    let host = Host::open(program.pid.load(Relaxed)).ok()?;
    let copying = Copying::begin(host.pid(), program.parent.load(Relaxed));
    // In another network namespace the socket has no such name.
    let client = Client::connect(&program.socket_name()).ok()?;
    let quiet = Uffd::open(Features::MOVE).ok()?;
    let doorbell = Doorbell::new(&quiet).ok()?;
    let (mut registered, mut ring, mut heard) = (None, None, Heard::default());
    if let Some(snapshot) = snapshot.filter(|snapshot| snapshot.has_regions()) {
        if snapshot.is_spoilt() || snapshot.moved() > 0 {
            return None;
        }
        let regions: Vec<PageRange> = snapshot
            .regions()
            .into_iter()
            .map(|region| region.range)
            .collect();
        if !regions.iter().all(|region| is_there(program, region)) {
            return None;
        }
        let uffd = open_uffd().ok()?;
        if snapshot.has_pages() {
            // Wiped memory must not be found again, nor dropped.
            if program.wipes.load(Relaxed) {
                return None;
            }
            drop_strays(snapshot, &regions)?;
            let keeper = Uring::new(&[], 1).ok()?;
            keeper.keep(&[uffd.as_raw_fd(), quiet.as_raw_fd()]).ok()?;
            ring = Some(keeper);
        }
        if register(&uffd, &regions, snapshot.has_pages()).is_none() {
            // The ring may keep it for a moment longer.
            for bytes in regions.iter().map(bytes_of) {
                let _ = uffd.unregister(bytes.start, bytes.len());
            }
            return None;
        }
        registered = Some(uffd);
        heard.regions = regions;
    }
    program.ring.store(doorbell.ring().to_address(), Release);
    program.set_state(match registered {
        Some(_) => {
            program.spare.store(SPARE, Relaxed);
            state::ARMED
        }
        None => {
            program
                .allowance
                .allow(program.allowance.look(), SPARE as u64);
            state::BARE
        }
    });
    Some(Early {
        host,
        client,
        program: registered,
        quiet,
        doorbell,
        ring,
        calls: Vec::new(),
        heard,
        protection: Protection::None,
        copying,
        copied: 0,
    })
}

/// Opens a userfaultfd for the program's memory: with write protection if the kernel supports it, and with events for
/// forks if this process has the right (CAP_SYS_PTRACE).
pub(super) fn open_uffd() -> Result<Uffd, UffdError> {
    let protects = Features::NEEDED | Features::PAGEFAULT_FLAG_WP;
    let forks = Features::EVENT_FORK;
    let wanted = [protects | forks, protects, Features::NEEDED | forks];
    let opened = wanted
        .into_iter()
        .find_map(|features| Uffd::open(features).ok());
    opened.map_or_else(|| Uffd::open(Features::NEEDED), Ok)
}

/// Whether all of `region` is still there. Some may be kept from children, or another thread has unmapped some at the last
/// moment. New memory may come to such a hole, which must not get what the parent had there.
fn is_there(program: &Program, region: &PageRange) -> bool {
    let bytes = bytes_of(region);
    if program.regions.are_all() {
        return program.regions.cover(&bytes);
    }
    let start = core::ptr::without_provenance_mut(bytes.start);
    // SAFETY: writes nothing: no file is mapped there.
    unsafe { msync(start, bytes.len(), MsyncFlags::ASYNC) }.is_ok()
}

/// Registers the present parts of `regions`, of which pages are absent if `lacks`. INVAL: memory of a kind that was never
/// managed.
fn register(uffd: &Uffd, regions: &[PageRange], lacks: bool) -> Option<()> {
    let is_kept = lacks && !uffd.features().contains(Features::EVENT_FORK);
    space::each_part(
        regions.iter().cloned(),
        |bytes| {
            once_it_is_free(|| uffd.register_missing(bytes.start, bytes.len()))?;
            if is_kept {
                kept::advise(&pages(bytes.start, bytes.end), Advice::LinuxDontFork);
            }
            Ok(())
        },
        |error: &Errno| *error != Errno::INVAL,
    )
    .ok()?;
    mark::register(uffd);
    Some(())
}

/// Tries again while the registration of the fork itself still holds the memory: the parent's engine ends it when it has
/// read the event (`Pager::on_fork`), or, if it does not know the child, when that has made itself known.
pub(super) fn once_it_is_free(register: impl Fn() -> Result<(), Errno>) -> Result<(), Errno> {
    let (began, mut is_shown) = (now(), false);
    loop {
        match register() {
            Err(Errno::BUSY) if now() - began < SETTLES => {
                if !is_shown && now() - began > SHOWS {
                    is_shown = true;
                    mark::show();
                }
                rustix::thread::sched_yield();
            }
            other => return other,
        }
    }
}

/// Drops pages that the child touched before they were registered, although the snapshot has their content. The
/// child's only thread waits.
fn drop_strays(snapshot: &Snapshot, regions: &[PageRange]) -> Option<()> {
    let mut map = PageMap::open().ok()?;
    let mut runs = Vec::new();
    for region in regions {
        let bytes = bytes_of(region);
        map.runs(bytes.start, bytes.end, &mut runs).ok()?;
    }
    let runs = runs.iter().filter(|run| !run.guard);
    let mut present: Vec<PageRange> = runs.map(|run| pages(run.start, run.end)).collect();
    present.sort_by_key(|run| run.start);
    for stray in snapshot.stored_in(&present) {
        let bytes = bytes_of(&(stray..stray.plus(1)));
        // SAFETY: the content of the page is void; the engine's copy is the valid one.
        unsafe { own_memory::discard(bytes.start, bytes.len()) }.ok()?;
    }
    Some(())
}

impl Early {
    /// Returns when the engine is needed; ends the process when it never will be.
    pub(super) fn await_need(&mut self, program: &Program, mut snapshot: Option<&mut Snapshot>) {
        let (mut looks, mut executes) = (0, None);
        self.copied = self.copying.more(false);
        let copied_before = self.copied;
        loop {
            let step = if executes.is_some() { SOON } else { LOOK };
            let woken = self.wait(step);
            if self.host.has_ended() {
                if program.regions.are_all() {
                    // No call of the program has told the supervisor of this child.
                    self.leave(snapshot.as_deref());
                }
                process::exit(0);
            }
            if let (Some(uffd), Some(snapshot)) = (&self.program, snapshot.as_deref_mut()) {
                self.heard.read(uffd, snapshot);
                if !snapshot.has_room_for_moves() || !self.heard.forked.is_empty() {
                    break;
                }
            }
            if self.read_doorbell() {
                // The child executes a file now, or soon, or never.
                (looks, executes) = (looks.min(LOOKS / 2), Some(now()));
            }
            if !self.heard.faults.is_empty() || !self.calls.is_empty() {
                break;
            }
            if woken {
                continue;
            }
            looks += 1;
            if (executes.is_some() || looks % SELDOM == 0) && self.host.has_left() {
                self.leave(snapshot.as_deref());
            }
            if executes.is_some_and(|since| now() - since > 20_000_000) {
                executes = None;
            }
            self.copied = self.copied.saturating_add(self.copying.more(false));
            if executes.is_none() && (looks >= LOOKS || self.copied - copied_before >= COPIES) {
                break;
            }
        }
        program.spare.store(0, Relaxed);
        // After a fork there is no time: once the supervisor sees the end of this process, its record is gone.
        if let Some(snapshot) = snapshot.filter(|_| self.heard.forked.is_empty()) {
            self.protection = self.protect(snapshot);
        }
    }

    /// From now on, writes of the child are reported before they copy: see `copies`.
    fn protect(&mut self, snapshot: &mut Snapshot) -> Protection {
        let Some(uffd) = &self.program else {
            return Protection::None;
        };
        self.heard.settle(uffd, snapshot);
        copies::protect(uffd, self.heard.regions.iter().cloned())
    }

    /// Returns whether an event arrived.
    fn wait(&self, time: Duration) -> bool {
        let fds = [
            Some(self.quiet.as_fd()),
            Some(self.host.as_fd()),
            self.program.as_ref().map(AsFd::as_fd),
        ];
        let fds = fds.into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: 0,
            tv_nsec: time.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Returns whether the child is about to execute a file; other calls are kept.
    fn read_doorbell(&mut self) -> bool {
        let mut buffer = [RawMsg::ZERO; 8];
        let mut executes = false;
        let Ok(events) = self.quiet.read(&mut buffer) else {
            return false;
        };
        for event in events {
            if let Event::Fault { addr, .. } = event
                && let Knock::Call(slot) = self.doorbell.on_fault(&self.quiet, addr)
            {
                if self.doorbell.request(slot)[0] == request::EXECUTES {
                    executes = true;
                    // Fails only while the process' memory is being torn down.
                    let _ = self.doorbell.answer(&self.quiet, slot, [0; 4]);
                } else {
                    self.calls.push(slot);
                }
            }
        }
        executes
    }

    /// The child has new memory, or none. The record reserved for it is free.
    fn leave(&self, snapshot: Option<&Snapshot>) -> ! {
        if let Some((parent, record)) = snapshot.and_then(|s| Some((s.parent()?, s.child()?))) {
            // Without a supervisor, the record does not matter.
            let _ = self.client.unused(parent, record);
        }
        process::exit(0)
    }
}

impl Heard {
    /// For memory of which `regions` are registered.
    pub(super) fn of(regions: Vec<PageRange>) -> Self {
        Heard {
            regions,
            ..Heard::default()
        }
    }

    /// Reads events until none is pending or in progress. Memory then matches the snapshot.
    pub(super) fn settle(&mut self, uffd: &Uffd, snapshot: &mut Snapshot) {
        let began = now();
        loop {
            self.read(uffd, snapshot);
            if !uffd.mmap_changing() || now() - began > SETTLES {
                return;
            }
            rustix::thread::sched_yield();
        }
    }

    /// Reads events of the process' memory, up to a fork: changes are noted, faults are kept.
    pub(super) fn read(&mut self, uffd: &Uffd, notes: &mut impl Notes) {
        // One at a time: reading an event releases the call that caused it.
        let mut buffer = [RawMsg::ZERO; 1];
        let _needed = Needed::new();
        while let Ok(mut events) = uffd.read(&mut buffer) {
            let event = events.next();
            let changes = !matches!(event, None | Some(Event::Fault { .. } | Event::Fork { .. }));
            self.changed_since |= changes && !self.forked.is_empty();
            match event {
                None => break,
                Some(Event::Fault { addr, flags, .. }) if flags.wp => {
                    self.copies.push(copies::at(addr as u64));
                }
                Some(Event::Fault { addr, flags, tid }) => {
                    self.faults.push((addr as u64, tid, flags.write));
                }
                Some(Event::Remove { start, end }) => notes.forget(&pages(start, end)),
                Some(Event::Unmap { start, end }) => {
                    for part in self.overdue.rest_of(pages(start, end)) {
                        notes.unmap(&part);
                        let left = self.regions.iter().flat_map(|known| without(known, &part));
                        self.regions = left.collect();
                    }
                }
                Some(Event::Remap { from, to, len }) => {
                    let (from, to) = (pages(from, from + len), Vpn::of(to as u64));
                    let moved = Move { from, to };
                    // As in the pager: see `on_move` there.
                    let target = moved.target();
                    for known in self.regions.iter().map(|known| overlap(known, &target)) {
                        if !known.is_empty() {
                            self.overdue.expect(known);
                        }
                    }
                    self.overdue.expect(moved.from.clone());
                    notes.moves_to(&moved);
                    let after = self.regions.iter().flat_map(|known| moved.after(known));
                    self.regions = after.collect();
                }
                Some(Event::Fork { fd }) => {
                    self.forked.push(Child::of(fd));
                    break;
                }
                Some(Event::Unknown(_)) => {}
            }
        }
        if !self.overdue.is_empty() && !uffd.mmap_changing() {
            self.overdue.clear();
        }
    }
}
