//! The connected processes: their identity, their requests, and the clean-up after them.
//!
//! A connection lives as long as its process' engine, which ends with the process. The end of the connection is the
//! only reliable sign of death, and starts the clean-up. If the process still exists then, see `widows.rs`. Messages
//! from before its death are read first. Its memory is available to others at once, its slots when the disk has
//! completed its transfers.

mod areas;
mod messages;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use foreswap::key::RunKey;
use foreswap::ledger::protocol::{
    self, AreaOrder, AreaStep, FileNumbers, Message, ProtocolError, Received, Refusal, Severity,
};
use foreswap::ledger::{
    AreaId, Cleanup, Ledger, MAX_PROCESSES, ProcId, ProcessState, StatsSnapshot,
};
use foreswap::sys::uffd::Uffd;
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, Resource, Uid, getrlimit};

use crate::area_file::{AreaFile, Descriptors};
use crate::auto_memory::Waits;
use crate::mapped_files::MappedFiles;
use crate::recording::Recording;
use crate::unmanaged::Known;
use crate::voice::Voice;
use crate::widows::{self, Widows};

/// How soon an unfinished clean-up is retried, and after how long only rarely.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_LATER: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(1);
/// How long a fork child whose parent has died may take to say hello, if its existence is unknown: as long as its
/// parent would have waited.
const ORPHAN: Duration = Duration::from_secs(60);

/// Descriptors for each process: its connection, the process, its userfaultfd, and the ring of a traced run.
pub const DESCRIPTORS: usize = 4;
/// Descriptors for everything else.
pub const SPARE: usize = 128;

/// One connection.
#[derive(Debug)]
struct Session {
    id: u64,
    socket: OwnedFd,
    pid: Pid,
    /// Its pids are valid here as well (no other pid namespace).
    same_namespace: bool,
    record: Option<ProcId>,
    /// It connected directly.
    is_direct: bool,
    /// The user of the engine.
    user: Uid,
    /// A pidfd of the process, once it is known which one the engine serves.
    process: Option<OwnedFd>,
    /// Descriptors held open for it.
    kept: Vec<OwnedFd>,
    /// A forked child, which may ask for files that it has inherited.
    inherits: bool,
    /// The memory of children that its engine serves.
    guests: Vec<Uffd>,
}

/// A record reserved for a fork child that has not said hello.
#[derive(Debug)]
struct Reservation {
    parent: ProcId,
    /// Readable when the child is dead. `None` while the child is unknown: the record is settled by its hello, by its
    /// parent, or by time once the parent is dead.
    child: Option<OwnedFd>,
    /// How long it is kept after its parent has died without a message about the child.
    until: Option<Instant>,
}

/// The sums over all ended processes.
#[derive(Debug, Default)]
pub struct Totals {
    /// Their statistics.
    pub stats: StatsSnapshot,
    /// The number of managed processes.
    pub processes: u64,
}

/// An order being carried out by engines.
#[derive(Debug)]
struct Pending {
    order: AreaOrder,
    /// The sessions that have not answered.
    waiting: HashSet<u64>,
    /// The first process that failed.
    failed: Option<Pid>,
}

/// All connections of a run.
#[derive(Debug)]
pub struct Sessions {
    ledger: Ledger,
    areas: Vec<AreaFile>,
    /// The most descriptors for processes.
    descriptors: usize,
    next_id: u64,
    rounds: u32,
    pending: Option<Pending>,
    starved: Option<AreaId>,
    sessions: Vec<Session>,
    reservations: HashMap<ProcId, Reservation>,
    /// See [`ORPHAN`].
    orphans_wait: Duration,
    /// Processes that run as other users are managed.
    pub other_users: bool,
    /// The key, if pages are encrypted.
    pub key: Option<RunKey>,
    /// Dead processes whose clean-up was obstructed, or whose last transfers are in progress.
    unfinished: Vec<ProcId>,
    /// Since when there are any.
    unfinished_since: Option<Instant>,
    /// Processes without their engine.
    widows: Widows,
    /// Files that processes map.
    pub mapped: MappedFiles,
    totals: Totals,
    /// The trace, if there is one.
    recording: Option<Recording>,
}

/// The meaning of a descriptor of [`Sessions::watched`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    /// A connection.
    Session(usize),
    /// The end of a fork child that has not connected.
    Child(ProcId),
}

impl Sessions {
    /// No sessions yet.
    pub fn new(
        ledger: Ledger,
        areas: Vec<(AreaId, Descriptors)>,
        mut recording: Option<Recording>,
    ) -> Self {
        if let Some(recording) = &mut recording {
            recording.start(ledger.start_ns());
        }
        let areas = areas.into_iter();
        let areas = areas.map(|(number, file)| AreaFile::new(&ledger, number, file));
        Self {
            recording,
            areas: areas.collect(),
            ledger,
            descriptors: most_descriptors(getrlimit(Resource::Nofile).current),
            next_id: 0,
            rounds: 0,
            pending: None,
            starved: None,
            sessions: Vec::new(),
            reservations: HashMap::new(),
            orphans_wait: ORPHAN,
            other_users: false,
            key: None,
            unfinished: Vec::new(),
            unfinished_since: None,
            widows: Widows::default(),
            mapped: MappedFiles::default(),
            totals: Totals::default(),
        }
    }

    /// The ledger of the run.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The trace being written.
    pub fn recording(&mut self) -> &mut Option<Recording> {
        &mut self.recording
    }

    /// The trace being written, with the ledger.
    pub fn ledger_and_recording(&mut self) -> (&Ledger, &mut Option<Recording>) {
        (&self.ledger, &mut self.recording)
    }

    /// Whether engines may have trace records.
    pub fn is_recording(&self) -> bool {
        self.recording.as_ref().is_some_and(Recording::is_busy)
    }

    /// All descriptors that may become readable.
    pub fn watched(&self) -> Vec<(Watched, BorrowedFd<'_>)> {
        let sessions = self.sessions.iter().enumerate();
        let sessions = sessions.map(|(index, s)| (Watched::Session(index), s.socket.as_fd()));
        let children = self
            .reservations
            .iter()
            .filter_map(|(&record, reservation)| {
                Some((Watched::Child(record), reservation.child.as_ref()?.as_fd()))
            });
        sessions.chain(children).collect()
    }

    /// The number of managed processes.
    pub fn managed(&self) -> usize {
        let managed = self.sessions.iter();
        managed.filter(|session| session.record.is_some()).count()
    }

    /// The number of open connections.
    pub fn open(&self) -> usize {
        self.sessions.len()
    }

    /// The processes that engines have named, as far as this namespace knows them. Whoever has only connected may be
    /// any process of this user.
    pub fn pids(&self) -> Vec<i32> {
        let named = self.sessions.iter();
        let named = named.filter(|session| session.process.is_some());
        let pids = named.map(|session| session.pid);
        pids.map(|pid| pid.as_raw_nonzero().get()).collect()
    }

    /// The connected engines of forked children that are not needed yet.
    pub fn early(&self) -> Vec<i32> {
        let early = self.sessions.iter();
        let early = early.filter(|session| session.record.is_none() && session.is_direct);
        early
            .map(|session| session.pid.as_raw_nonzero().get())
            .collect()
    }

    /// All of these, for the watch.
    pub fn known(&self) -> Known {
        let announced = self.reservations.keys();
        let serves = self
            .sessions
            .iter()
            .filter(|session| !session.guests.is_empty());
        Known {
            connected: self.pids(),
            early: self.early(),
            announced: announced
                .map(|&record| self.ledger.pid(record).cast_signed())
                .collect(),
            serves_guests: serves
                .map(|session| session.pid.as_raw_nonzero().get())
                .collect(),
        }
    }

    /// Whether a clean-up is to be retried, or a process to be ended.
    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || self.widows.exist()
    }

    /// Whether the last process of the run has ended, with all that it left. A child that was forked and has not
    /// connected yet needs the swap areas: it may come after its parent has gone.
    pub fn are_over(&self) -> bool {
        self.sessions.is_empty() && self.reservations.is_empty() && !self.has_unfinished()
    }

    /// The number of forked children that live and have not connected yet.
    pub fn expected(&self) -> usize {
        let children = self.reservations.values();
        children.filter(|kept| kept.child.is_some()).count()
    }

    /// How soon to call [`Sessions::finish`] without an event.
    pub fn retry(&self) -> Option<Duration> {
        let unfinished = self
            .unfinished_since
            .map(|since| match since.elapsed() < LONG {
                true => RETRY,
                false => RETRY_LATER,
            });
        let deadlines = self.reservations.values().filter_map(|kept| kept.until);
        let widows = self.widows.exist().then_some(RETRY_LATER);
        let now = Instant::now();
        let orphan = deadlines.min().map(|until| until.duration_since(now));
        [unfinished, widows, orphan].into_iter().flatten().min()
    }

    /// Whether the disk takes long to complete the transfers of ended processes.
    pub fn has_slow_transfers(&self) -> bool {
        let long = self
            .unfinished_since
            .is_some_and(|since| since.elapsed() >= LONG);
        let has = |area: &AreaFile| {
            self.unfinished
                .iter()
                .any(|&record| area.has_transfers(record))
        };
        long && self.areas.iter().any(has)
    }

    /// Accepts every waiting connection.
    pub fn on_connect(&mut self, listener: BorrowedFd<'_>, voice: &mut Voice) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        while let Ok(socket) = rustix::net::accept_with(listener, flags) {
            let Ok(peer) = rustix::net::sockopt::socket_peercred(&socket) else {
                continue;
            };
            let is_other = peer.uid != rustix::process::geteuid() && !peer.uid.is_root();
            if is_other && !self.other_users {
                let (pid, user) = (peer.pid.as_raw_nonzero(), peer.uid.as_raw());
                voice.remark(
                    Severity::Warning,
                    &format!(
                        "process {pid} runs as another user ({user}) and is not managed; --other-users \
                         manages it, if each process of the run may read the swapped memory of all"
                    ),
                );
                continue;
            }
            self.add(socket, peer.pid, peer.uid, true);
        }
    }

    /// Reads all messages from the descriptors in `ready`.
    pub fn on_ready(&mut self, ready: &[Watched], voice: &mut Voice) {
        let mut closed = Vec::new();
        for watched in ready {
            if let Watched::Session(index) = *watched
                && !self.read_all(index, voice)
            {
                closed.push(index);
            }
        }
        let closed = closed.into_iter().rev();
        let mut dead: Vec<ProcId> = Vec::new();
        for index in closed {
            let session = self.sessions.swap_remove(index);
            if session.record.is_some() {
                self.widows.add_guests(session.pid, session.guests, voice);
            }
            if session.record.is_some()
                && !session.kept.is_empty()
                && let Some(process) = session.process
            {
                self.widows.add(session.pid, process, session.kept);
            }
            if let Some(pending) = &mut self.pending {
                pending.waiting.remove(&session.id);
            }
            self.mapped.on_end(session.id);
            dead.extend(session.record);
        }
        for &record in &dead {
            self.ledger.mark_dead(record);
        }
        for record in dead {
            self.orphan(record);
            self.end(record);
        }
    }

    /// The process can no longer return its reservations. A child may have been forked all the same, and connect.
    fn orphan(&mut self, parent: ProcId) {
        let until = Instant::now() + self.orphans_wait;
        for kept in self.reservations.values_mut() {
            if kept.parent == parent && kept.child.is_none() {
                kept.until = Some(until);
            }
        }
    }

    /// A fork child died. Call it only after every waiting connection has been accepted and read: the child may have
    /// said hello before.
    pub fn on_child_death(&mut self, record: ProcId) {
        self.reservations.remove(&record);
        if self.ledger.state(record) == ProcessState::Reserved {
            self.end(record);
        }
    }

    /// Retries obstructed clean-ups, and ends reservations that were not claimed.
    pub fn finish(&mut self) {
        let may_come =
            |session: &Session| session.inherits || session.record.is_none() && session.is_direct;
        if self.reservations.is_empty() && !self.sessions.iter().any(may_come) {
            self.mapped.close_unused();
        }
        let now = Instant::now();
        let overdue = |kept: &Reservation| kept.until.is_some_and(|until| until <= now);
        let overdue: Vec<ProcId> = self
            .reservations
            .iter()
            .filter(|(_, kept)| overdue(kept))
            .map(|(&record, _)| record)
            .collect();
        for record in overdue {
            self.on_child_death(record);
        }
        for record in std::mem::take(&mut self.unfinished) {
            self.end(record);
        }
        self.unfinished_since = match self.unfinished.is_empty() {
            true => None,
            false => self.unfinished_since.or_else(|| Some(Instant::now())),
        };
    }

    /// Ends processes without their engine.
    pub fn end_widows(&mut self, voice: &mut Voice) {
        self.widows.end(voice);
    }

    /// False if the connection is over.
    fn read_all(&mut self, index: usize, voice: &mut Voice) -> bool {
        loop {
            match protocol::receive(&self.sessions[index].socket) {
                Ok(received) => {
                    if !self.on_message(index, received, voice) {
                        return false;
                    }
                }
                Err(ProtocolError::Timeout) => return true,
                Err(_) => return false,
            }
        }
    }

    fn end(&mut self, record: ProcId) {
        if let Some(recording) = &mut self.recording {
            recording.end(record, || self.ledger.stats(record).snapshot());
        }
        let engines = self.engines_now();
        self.ledger.give_memory_back(record);
        if self.areas.iter().any(|area| area.has_transfers(record)) {
            self.unfinished.push(record);
            return;
        }
        match self.ledger.cleanup(record) {
            Cleanup::Done(ended) => {
                self.totals.stats.add(&ended.stats);
                self.totals.stats.engine_bytes = engines;
            }
            Cleanup::Busy => self.unfinished.push(record),
            Cleanup::Nothing => {}
        }
    }

    /// The maximum of the engines' memory, as far as it was looked at: at each end.
    fn engines_now(&self) -> u64 {
        let records = self.ledger.records_in_use();
        let engine = |record| {
            self.ledger
                .stats(record)
                .engine_bytes
                .load(Ordering::Relaxed)
        };
        let together: u64 = records.map(engine).sum();
        together.max(self.totals.stats.engine_bytes)
    }

    /// What all processes, ended and living, have waited for.
    pub fn waits(&self) -> Waits {
        let ended = &self.totals.stats;
        let mut waits = Waits {
            stalled_ns: ended.stalled_ns,
            major: ended.faults_major,
        };
        for record in self.ledger.records_in_use() {
            let stats = self.ledger.stats(record);
            waits.stalled_ns += stats.stalled_ns.load(Ordering::Relaxed);
            waits.major += stats.faults_major.load(Ordering::Relaxed);
        }
        waits
    }

    /// The sums over ended and living processes.
    pub fn totals_now(&self) -> Totals {
        let mut stats = self.totals.stats.clone();
        for record in self.ledger.records_in_use() {
            stats.add(&self.ledger.stats(record).snapshot());
        }
        stats.engine_bytes = self.engines_now();
        Totals {
            stats,
            processes: self.totals.processes,
        }
    }
}

/// The descriptors that sessions may have. The others are for looks at the processes' memory (`unmanaged::family`).
fn most_descriptors(limit: Option<u64>) -> usize {
    limit.map_or(usize::MAX, |most| {
        usize::try_from(most / 4 * 3).unwrap_or(usize::MAX)
    })
}

/// How many processes can be managed at a time by a supervisor that may have `limit` descriptors.
pub fn most_processes(limit: Option<u64>) -> usize {
    let processes = most_descriptors(limit).saturating_sub(SPARE) / DESCRIPTORS;
    processes.min(MAX_PROCESSES)
}

fn readable_for_good() -> Option<OwnedFd> {
    let (reader, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    Some(reader)
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
