//! The supervisor's loop: the command, its signals, and the engines of all its descendants, in one thread.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use foreswap::ledger::protocol::Severity;
use foreswap_store::area::PAGE_BYTES;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal};

use crate::areas::Areas;
use crate::args::Encrypt;
use crate::auto_memory::AutoMemory;
use crate::command::{self, Event};
use crate::control::change::{Changes, Parts};
use crate::control::list::{self, RunCommand};
use crate::control::server::Control;
use crate::control::words::{Reply, Request, Wish};
use crate::group::Group;
use crate::listeners::Listeners;
use crate::metrics::{Figures, Metrics};
use crate::page::timeline::Sample;
use crate::page::watching::Watching;
use crate::recording;
use crate::recording::Recording;
use crate::report::Run;
use crate::sessions::{Sessions, Watched};
use crate::signals::Signals;
use crate::turns::Turns;
use crate::unmanaged::Watch;
use crate::voice::Voice;

/// The interval of looks at a change in progress: an area may become empty at any moment.
const CHANGE_MS: i64 = 5;
/// How long exiting descendants may take after the command has ended.
const FAREWELL: Duration = Duration::from_millis(200);
const FAREWELL_STEP: Duration = Duration::from_millis(10);
/// With `--strict`: how long processes have to end by themselves, and how long the supervisor tries to kill them.
const GRACE: Duration = Duration::from_secs(2);
const KILLING: Duration = Duration::from_secs(10);
const KILLING_STEP: Duration = Duration::from_millis(50);

/// The parts of the loop.
#[derive(Debug)]
pub struct Supervisor {
    /// The listening sockets of engines.
    pub listeners: Listeners,
    /// Their connections.
    pub sessions: Sessions,
    /// The signals.
    pub signals: Signals,
    /// The output.
    pub voice: Voice,
    /// The control socket.
    pub control: Control,
    /// Requested changes in progress.
    pub changes: Changes,
    /// The figures for monitoring.
    pub metrics: Metrics,
    /// The page of the run, until it is written.
    pub page: Option<Watching>,
    /// The open swap areas.
    pub areas: Areas,
    /// The limit, if it is not fixed.
    pub auto: AutoMemory,
    /// Its group, if other commands can join.
    pub group: Option<Group>,
    /// The command.
    pub command: RunCommand,
    /// The processes' memory.
    pub watch: Watch,
    /// Load control, if it is wanted.
    pub turns: Option<Turns>,
    /// Where pages are encrypted.
    pub encrypt: Encrypt,
    /// Unmanaged memory above the limit ends the run.
    pub strict: bool,
    /// When that began.
    pub ending: Option<Instant>,
}

/// The interval of looks at a client that has not connected yet.
const COMING: Duration = Duration::from_millis(100);

/// Whether the process of this pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    poll(&mut fds, Some(&milliseconds(0))).is_ok_and(|ready| ready > 0)
}

const MILLISECOND: Duration = Duration::from_millis(1);

fn milliseconds(ms: i64) -> Timespec {
    Timespec {
        tv_sec: ms / 1000,
        tv_nsec: (ms % 1000) * 1_000_000,
    }
}

fn timespec(time: Duration) -> Timespec {
    milliseconds(time.as_millis() as i64)
}

impl Supervisor {
    /// Serves until the command has ended; returns its end.
    pub fn until_end_of(&mut self, command: Pid) -> io::Result<Event> {
        loop {
            let timeout = self.timeout();
            self.serve(timeout.as_ref())?;
            if let Some(end) = command::on_signals(&self.signals, command)? {
                return Ok(end);
            }
        }
    }

    /// Serves descendants of `command` that are about to end as well. True if none is left, managed or not: one that
    /// is not may need memory later, and then a supervisor.
    pub fn farewell(&mut self, command: i32) -> io::Result<bool> {
        let end = Instant::now() + FAREWELL;
        loop {
            self.serve(Some(&milliseconds(0)))?;
            let gone = self.sessions.are_over()
                && self.control.members() == 0
                && !self.watch.has_survivors(command);
            if gone || Instant::now() >= end {
                return Ok(gone);
            }
            let step = self.sessions.retry().unwrap_or(FAREWELL_STEP);
            self.serve(Some(&timespec(step.min(FAREWELL_STEP))))?;
        }
    }

    /// The number of processes that are left, managed or not.
    pub fn left(&self) -> usize {
        let managed = self.sessions.managed() + self.sessions.expected();
        managed.max(self.watch.living()).max(self.control.members())
    }

    /// Serves until the last descendant has ended, and its transfers, and the last command that has joined the group.
    pub fn until_all_have_ended(&mut self) -> io::Result<()> {
        while !self.sessions.are_over() || self.control.members() > 0 || self.watch.anybody_lives()
        {
            let timeout = self.timeout();
            self.serve(timeout.as_ref())?;
            // No process is left to receive them.
            while self.signals.next().is_some() {}
        }
        Ok(())
    }

    /// Serves until no process uses its regions, or until `client`, which has asked for this, has ended without any.
    /// `on_end` is called once when it has ended, and the reason was reported.
    pub fn until_unused(&mut self, client: &OwnedFd, on_end: impl FnOnce()) -> io::Result<()> {
        let (mut has_come, mut on_end) = (false, Some(on_end));
        while !(has_come && self.sessions.are_over()) {
            let timeout = match self.timeout() {
                Some(timeout) if has_come => Some(timeout),
                _ => Some(timespec(COMING)),
            };
            self.serve(timeout.as_ref())?;
            has_come |= self.sessions.open() > 0;
            // Those of the terminal are meant for the program.
            while self.signals.next().is_some() {}
            if has_ended(client) {
                self.command.has_ended();
                has_come = true;
                // What is left to say is about its end.
                if let Some(on_end) = on_end.take_if(|_| !self.sessions.has_unfinished()) {
                    on_end();
                }
            }
        }
        Ok(())
    }

    fn timeout(&self) -> Option<Timespec> {
        if self.changes.is_busy() {
            return Some(milliseconds(CHANGE_MS));
        }
        if self.sessions.is_recording() {
            return Some(milliseconds(recording::EVERY_MS));
        }
        let look = [self.watch.due_in()];
        let ending = self.ending.map(|_| KILLING_STEP);
        let times = look.into_iter().chain(self.sessions.retry());
        let times = times.chain(self.control.timeout()).chain(ending);
        let times = times.chain(self.metrics.due_in());
        let page = self.page.as_ref().map(|page| page.due_in(self.age()));
        let times = times.chain(page);
        let times = times.chain(self.auto.due_in());
        let times = times.chain(self.turns.as_ref().map(Turns::due_in));
        // Rounded up: no busy loop for a time that is nearly over.
        times.min().map(|time| timespec(time + MILLISECOND))
    }

    /// Looks at the processes' memory, if a look is due or requested, and reports.
    fn look(&mut self, asked: bool) {
        if !asked && !self.watch.due_in().is_zero() {
            return;
        }
        let known = self.sessions.known();
        let lines = self.watch.look(self.sessions.ledger(), &known);
        if self.strict && self.ending.is_none() && self.watch.has_passed() {
            self.ending = Some(Instant::now());
            for line in &lines {
                self.voice.error(&format!("ended by --strict: {line}"));
            }
            self.watch.signal(Signal::TERM);
            // A stopped process could not end.
            self.watch.signal(Signal::CONT);
            return;
        }
        for line in &lines {
            self.voice.remark(Severity::Warning, line);
        }
    }

    /// Kills processes that have not ended in time.
    fn kill_late(&mut self) {
        if self.ending.is_some_and(|since| since.elapsed() >= GRACE) {
            self.watch.signal(Signal::KILL);
        }
    }

    /// The command was ended by the supervisor and has gone: end all others. True if this applied.
    pub fn has_ended_all(&mut self) -> io::Result<bool> {
        let Some(since) = self.ending else {
            return Ok(false);
        };
        while self.watch.anybody_lives() && since.elapsed() < KILLING {
            self.serve(Some(&timespec(KILLING_STEP)))?;
        }
        Ok(true)
    }

    /// Waits for an event, and handles all except signals.
    fn serve(&mut self, timeout: Option<&Timespec>) -> io::Result<()> {
        let watched = self.sessions.watched();
        let [by_name, by_path] = self.listeners.fds();
        let own = [self.signals.as_fd(), by_name, by_path];
        let fds = own.into_iter().chain(watched.iter().map(|(_, fd)| *fd));
        let mut polled: Vec<PollFd<'_>> = fds
            .map(|fd| (fd, PollFlags::IN))
            .chain(self.control.watched())
            .chain(self.metrics.watched())
            .chain(self.areas.opener.fd().map(|fd| (fd, PollFlags::IN)))
            .map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags))
            .collect();
        match poll(&mut polled, timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let happened: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        let (sessions, children): (Vec<Watched>, Vec<Watched>) = watched
            .iter()
            .zip(&happened[own.len()..])
            .filter(|(_, happened)| **happened)
            .map(|((what, _), _)| *what)
            .partition(|what| matches!(what, Watched::Session(_)));
        drop(polled);
        self.sessions.on_ready(&sessions, &mut self.voice);
        // A child's engine connects before its parent's connection ends.
        if happened[1] || happened[2] || !children.is_empty() || !sessions.is_empty() {
            for listener in self.listeners.fds() {
                self.sessions.on_connect(listener, &mut self.voice);
            }
        }
        if !children.is_empty() {
            // A dead child may have said hello first: read every connection.
            let everybody: Vec<Watched> = (0..self.sessions.open()).map(Watched::Session).collect();
            self.sessions.on_ready(&everybody, &mut self.voice);
        }
        for child in children {
            if let Watched::Child(record) = child {
                self.sessions.on_child_death(record);
            }
        }
        for (is_warning, text) in self.areas.opener.take_said() {
            let severity = match is_warning {
                true => Severity::Warning,
                false => Severity::Note,
            };
            self.voice.remark(severity, &text);
        }
        self.sessions.finish();
        self.sessions.end_widows(&mut self.voice);
        if self.sessions.has_slow_transfers() {
            let text = "the disk still writes what ended processes had begun; their swap slots are free after that";
            self.voice.remark(Severity::Note, text);
        }
        if let Some(recording) = self.sessions.recording()
            && let Some(problem) = recording.look()
        {
            self.voice.remark(Severity::Error, &problem);
        }
        if self.auto.is_due() {
            let waits = self.sessions.waits();
            let wait = self.turns.as_ref().is_some_and(Turns::is_on);
            let needs_room = self.changes.needs_room() || wait;
            self.auto.look(self.sessions.ledger(), waits, needs_room);
        }
        if let Some(turns) = &mut self.turns {
            turns.look(self.sessions.ledger(), self.changes.is_busy());
        }
        self.look(false);
        self.kill_late();
        self.serve_control();
        self.know_relay();
        self.serve_metrics();
        if self
            .page
            .as_ref()
            .is_some_and(|page| page.due_in(self.age()).is_zero())
        {
            self.look_for_page();
        }
        for (is_error, text) in self.voice.take_copies() {
            self.control.tell_members(&Reply::Said { is_error, text });
        }
        Ok(())
    }

    /// It may be a child of this process, and is none of the run's.
    pub fn know_relay(&mut self) {
        let relay = self.areas.opener.relay_pid();
        self.watch
            .set_relay(relay.map(|pid| pid.as_raw_nonzero().get()));
    }

    /// From now on, other commands can join.
    pub fn lead(&mut self, group: Group) -> io::Result<()> {
        self.control.lead(&group.name)?;
        self.voice.copies();
        self.group = Some(group);
        Ok(())
    }

    fn on_join(&mut self, client: u64, name: &str, wish: &Wish) {
        let bytes = match self.auto.bounds() {
            Some(auto) => [auto.least_bytes, auto.most_bytes],
            None => [self.sessions.ledger().limit_pages() * PAGE_BYTES; 2],
        };
        let group = self.group.as_ref().filter(|group| group.name == name);
        let answer = group
            .ok_or_else(|| format!("this run is not of group {name}"))
            .and_then(|group| group.answer(wish, bytes));
        match answer {
            Ok(joined) => {
                if let Some(starter) = self.control.join(client, &joined) {
                    self.watch.add_starter(starter.as_raw_nonzero().get());
                }
            }
            Err(text) => self.control.say(client, &Reply::Error { text }, true),
        }
    }

    /// Since the start of the run.
    fn age(&self) -> Duration {
        let start = Duration::from_nanos(self.sessions.ledger().start_ns());
        recording::monotonic().saturating_sub(start)
    }

    /// The figures of the moment, for the page.
    fn look_for_page(&mut self) {
        let stats = self.sessions.totals_now().stats;
        let ledger = self.sessions.ledger();
        let areas = list::areas(ledger);
        let sample = Sample {
            at: self.age(),
            limit_bytes: ledger.limit_pages() * PAGE_BYTES,
            held_bytes: ledger.charged_pages() * PAGE_BYTES,
            unmanaged_bytes: self.watch.now().sum.total,
            swapped_bytes: areas.iter().map(|area| area.used_bytes).sum(),
            faults_major: stats.faults_major,
            faults_minor: stats.faults_minor,
            faults_zero: stats.faults_zero,
            in_bytes: stats.swap_in_bytes,
            file_in_bytes: stats.file_in_bytes,
            out_bytes: stats.swap_out_bytes,
            stalled_ns: stats.stalled_ns,
        };
        if let Some(page) = &mut self.page {
            page.on_look(sample, areas);
        }
    }

    /// Writes the page of the run, if there is one.
    pub fn write_page(&mut self, run: &Run) {
        if self.page.is_none() {
            return;
        }
        self.look_for_page();
        let (ledger, recording) = self.sessions.ledger_and_recording();
        let stats = |process| ledger.stats(process).snapshot();
        let records = recording.as_mut().and_then(|all| all.take_page(stats));
        // Processes that go on are not recorded for it any more.
        *recording = recording.take().filter(Recording::has_file);
        let Some((page, records)) = self.page.take().zip(records) else {
            return;
        };
        match page.write(run, records) {
            Ok(path) => {
                let text = format!("{}: the page of the run", path.display());
                self.voice.remark(Severity::Note, &text);
            }
            Err(error) => self.voice.remark(Severity::Error, &error.to_string()),
        }
    }

    /// Ends the trace, if there is one.
    pub fn end_recording(&mut self) {
        let Some(recording) = self.sessions.recording().take() else {
            return;
        };
        match recording.finish() {
            Ok((path, records)) => {
                let text = format!("{}: {records} records of the run", path.display());
                self.voice.remark(Severity::Note, &text);
            }
            Err(problem) if problem.is_empty() => {}
            Err(problem) => self.voice.remark(Severity::Error, &problem),
        }
    }

    /// The run as it is, without a look at the processes' memory.
    fn figures(&self) -> Figures {
        let stats = self.sessions.totals_now().stats;
        let ledger = self.sessions.ledger();
        let bounds = self.auto.bounds();
        let mut run = list::run(ledger, &stats, &self.command, &self.watch, bounds);
        run.group = self.group.as_ref().map(|group| group.name.clone());
        Figures { run, stats }
    }

    fn serve_metrics(&mut self) {
        let mut metrics = std::mem::take(&mut self.metrics);
        let served = metrics.serve(|| self.figures());
        self.metrics = metrics;
        if let Err(error) = served {
            self.voice.remark(Severity::Warning, &error.to_string());
        }
    }

    /// Writes the file of the metrics, if there is one.
    pub fn write_metrics(&mut self) {
        let mut metrics = std::mem::take(&mut self.metrics);
        let written = metrics.write(|| self.figures());
        self.metrics = metrics;
        if let Err(error) = written {
            self.voice.remark(Severity::Warning, &error.to_string());
        }
    }

    fn serve_control(&mut self) {
        for (client, request) in self.control.serve() {
            match request {
                Ok(Request::Ps { mappings_of }) => {
                    self.look(true);
                    let mut run = self.figures().run;
                    if let Some(pid) = mappings_of {
                        run.mappings = list::mappings(self.sessions.ledger(), pid);
                    }
                    self.control.say(client, &Reply::Run(Box::new(run)), true);
                }
                Ok(Request::Join { group, wish }) => self.on_join(client, &group, &wish),
                Ok(request) => {
                    let mut parts = Parts {
                        control: &mut self.control,
                        sessions: &mut self.sessions,
                        areas: &mut self.areas,
                        auto: &mut self.auto,
                        encrypt: self.encrypt,
                    };
                    self.changes.on_request(client, request, &mut parts);
                }
                Err(text) => self.control.say(client, &Reply::Error { text }, true),
            }
        }
        let mut parts = Parts {
            control: &mut self.control,
            sessions: &mut self.sessions,
            areas: &mut self.areas,
            auto: &mut self.auto,
            encrypt: self.encrypt,
        };
        self.changes.step(&mut parts);
    }
}
