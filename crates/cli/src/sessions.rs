//! The connected processes: their identity, their requests, and the clean-up after them.
//!
//! A connection lives as long as its process' engine, which ends with the process. The end of the connection is the
//! only reliable sign of death, and starts the clean-up. If the process still exists then, see `widows.rs`. Messages
//! from before its death are read first. Its memory is available to others at once, its slots when the disk has
//! completed its transfers.

mod areas;

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use foreswap::ledger::protocol::{
    self, AreaOrder, AreaStep, Message, ProtocolError, Received, Refusal, Severity,
};
use foreswap::ledger::{AreaId, Cleanup, Ledger, ProcId, ProcessState, StatsSnapshot};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags};

use crate::area_file::AreaFile;
use crate::recording::Recording;
use crate::voice::Voice;
use crate::widows::{self, Widows};

/// How soon an unfinished clean-up is retried, and after how long only rarely.
const RETRY: Duration = Duration::from_millis(2);
const RETRY_LATER: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(1);
/// How long a fork child whose parent has died may take to say hello, if its existence is unknown: as long as its
/// parent would have waited.
const ORPHAN: Duration = Duration::from_secs(60);

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
    /// A pidfd of the process, once it is known which one the engine serves.
    process: Option<OwnedFd>,
    /// Descriptors held open for it.
    kept: Vec<OwnedFd>,
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
    next_id: u64,
    rounds: u32,
    pending: Option<Pending>,
    starved: Option<AreaId>,
    sessions: Vec<Session>,
    reservations: HashMap<ProcId, Reservation>,
    /// See [`ORPHAN`].
    orphans_wait: Duration,
    /// Dead processes whose clean-up was obstructed, or whose last transfers are in progress.
    unfinished: Vec<ProcId>,
    /// Since when there are any.
    unfinished_since: Option<Instant>,
    /// Processes without their engine.
    widows: Widows,
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
        areas: Vec<(AreaId, OwnedFd)>,
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
            next_id: 0,
            rounds: 0,
            pending: None,
            starved: None,
            sessions: Vec::new(),
            reservations: HashMap::new(),
            orphans_wait: ORPHAN,
            unfinished: Vec::new(),
            unfinished_since: None,
            widows: Widows::default(),
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

    /// The processes of all connections, as far as this namespace knows them.
    pub fn pids(&self) -> Vec<i32> {
        let pids = self.sessions.iter().map(|session| session.pid);
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

    /// Whether a clean-up is to be retried, or a process to be ended.
    pub fn has_unfinished(&self) -> bool {
        !self.unfinished.is_empty() || self.widows.exist()
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
            if peer.uid != rustix::process::geteuid() && !peer.uid.is_root() {
                let (pid, user) = (peer.pid.as_raw_nonzero(), peer.uid.as_raw());
                voice.remark(
                    Severity::Warning,
                    &format!("process {pid} runs as another user ({user}) and is not managed"),
                );
                continue;
            }
            self.add(socket, peer.pid, true);
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
            if session.record.is_some()
                && !session.kept.is_empty()
                && let Some(process) = session.process
            {
                self.widows.add(session.pid, process, session.kept);
            }
            if let Some(pending) = &mut self.pending {
                pending.waiting.remove(&session.id);
            }
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

    fn on_message(&mut self, index: usize, received: Received, voice: &mut Voice) -> bool {
        let Received {
            message,
            same_version,
            fds,
        } = received;
        let own = self.sessions[index].record;
        match (message, own) {
            (Message::Log { severity, text }, _) => voice.remark(severity, &text),
            (Message::Hello { .. }, None) if !same_version => {
                self.answer(index, &Message::Refused(Refusal::Version));
                return false;
            }
            (
                Message::Hello {
                    pid,
                    parent,
                    record,
                },
                None,
            ) => {
                if let Some(process) = fds.into_iter().next() {
                    self.on_introduction(index, process, pid);
                }
                return self.on_hello(index, parent, record, voice);
            }
            (Message::Reserve, Some(parent)) => {
                let answer = match self.ledger.reserve(Some(parent)) {
                    Some(record) => {
                        let reservation = Reservation {
                            parent,
                            child: None,
                            until: None,
                        };
                        self.reservations.insert(record, reservation);
                        Message::Reserved { record }
                    }
                    None => Message::Refused(Refusal::TooManyProcesses),
                };
                return self.answer(index, &answer);
            }
            (Message::Reap { record, child }, Some(parent)) => {
                self.on_reap(index, parent, record, child);
            }
            (Message::Unused { parent, record }, None) if same_version => {
                let known = self.reservations.get(&record);
                if known.is_some_and(|kept| kept.parent == parent) {
                    self.on_child_death(record);
                }
                return false;
            }
            (Message::Bye, Some(record)) => {
                self.sessions[index].record = None;
                self.orphan(record);
                self.end(record);
            }
            (Message::AreaDone { order, ok }, Some(_)) => self.on_area_done(index, order, ok),
            (Message::Connect, _) => return self.on_another(index),
            (Message::Keep, Some(_)) => self.sessions[index].kept = fds,
            (Message::Starved { area }, Some(_)) => self.starved = Some(area),
            // Other messages are invalid at this time.
            _ => return false,
        }
        true
    }

    /// An engine requests a connection for another one, which cannot reach the supervisor.
    fn on_another(&mut self, index: usize) -> bool {
        let made = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        );
        let Ok((ours, theirs)) = made else {
            return false;
        };
        if rustix::io::ioctl_fionbio(&ours, true).is_err() {
            return false;
        }
        let sent = protocol::send(
            &self.sessions[index].socket,
            &Message::Connected,
            &[theirs.as_fd()],
        );
        self.add(ours, self.sessions[index].pid, false);
        sent.is_ok()
    }

    fn add(&mut self, socket: OwnedFd, pid: Pid, is_direct: bool) {
        self.next_id += 1;
        self.sessions.push(Session {
            id: self.next_id,
            socket,
            pid,
            same_namespace: true,
            record: None,
            is_direct,
            process: None,
            kept: Vec::new(),
        });
    }

    /// The engine named the process it serves, `pid` in that process' own namespace.
    fn on_introduction(&mut self, index: usize, process: OwnedFd, pid: u32) {
        let session = &mut self.sessions[index];
        // An invisible pid belongs to an ended process, or cannot be used here.
        if let Some(seen) = widows::pid_of(&process) {
            session.pid = seen;
        }
        let seen = session.pid.as_raw_nonzero().get().cast_unsigned();
        session.same_namespace = seen == pid;
        session.process = Some(process);
    }

    fn on_hello(
        &mut self,
        index: usize,
        parent: Option<ProcId>,
        reserved: Option<ProcId>,
        voice: &mut Voice,
    ) -> bool {
        let peer = self.sessions[index]
            .pid
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        let record = match reserved {
            None => self.ledger.reserve(parent).ok_or(Refusal::TooManyProcesses),
            Some(record) => {
                let ours = self
                    .reservations
                    .get(&record)
                    .is_some_and(|r| Some(r.parent) == parent);
                if ours {
                    Ok(record)
                } else {
                    Err(Refusal::NotReserved)
                }
            }
        };
        let connected = record.and_then(|record| {
            let done = self.ledger.connect(record, peer);
            done.then_some(record).ok_or(Refusal::NotReserved)
        });
        match connected {
            Err(why) => {
                self.answer(index, &Message::Refused(why));
                false
            }
            Ok(record) => {
                self.reservations.remove(&record);
                self.sessions[index].record = Some(record);
                let own = self.areas.iter().map_while(|area| area.own(record));
                let own: Vec<OwnedFd> = own.collect();
                if own.len() < self.areas.len() {
                    let text = format!(
                        "process {peer} is not managed: no descriptor of a swap area could be opened for it; raise `ulimit -n`"
                    );
                    voice.remark(Severity::Warning, &text);
                    return false;
                }
                self.totals.processes += 1;
                let areas = self.areas.iter().map(|area| 1 << area.number.0).sum();
                let recording = self.recording.as_mut();
                let traced = recording.is_some_and(|to| to.begin(record, peer, parent));
                let welcome = Message::Welcome {
                    record,
                    areas,
                    traced,
                };
                self.welcome(index, &welcome, record, &own)
            }
        }
    }

    fn on_reap(&mut self, index: usize, parent: ProcId, record: ProcId, child: Option<u32>) {
        let Some(reservation) = self.reservations.get_mut(&record) else {
            return;
        };
        if reservation.parent != parent {
            return;
        }
        let Some(child) = child else {
            self.reservations.remove(&record);
            self.end(record);
            return;
        };
        self.ledger.set_pid(record, child);
        // A pid of another namespace is meaningless here.
        if !self.sessions[index].same_namespace {
            return;
        }
        let pid = i32::try_from(child).ok().and_then(Pid::from_raw);
        reservation.child =
            pid.and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
        if reservation.child.is_none() {
            // Dead already, and reaped by its parent. Its hello, if it was sent, waits in a connection: an
            // end-of-file descriptor in place of the pidfd lets that come first.
            reservation.child = readable_for_good();
        }
    }

    fn answer(&self, index: usize, message: &Message) -> bool {
        protocol::send(&self.sessions[index].socket, message, &[]).is_ok()
    }

    /// Sends a welcome with all its descriptors.
    fn welcome(&self, index: usize, message: &Message, record: ProcId, own: &[OwnedFd]) -> bool {
        let mut fds = vec![self.ledger.fd()];
        // By number, as the engine expects them.
        for (area, own) in self.areas.iter().zip(own) {
            fds.extend(area.descriptors(&self.ledger, own));
        }
        if let Some(recording) = &self.recording {
            fds.extend(recording.ring(record));
        }
        protocol::send(&self.sessions[index].socket, message, &fds).is_ok()
    }

    fn end(&mut self, record: ProcId) {
        if let Some(recording) = &mut self.recording {
            recording.end(record);
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

fn readable_for_good() -> Option<OwnedFd> {
    let (reader, _) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).ok()?;
    Some(reader)
}

#[cfg(test)]
#[path = "sessions_tests.rs"]
mod tests;
