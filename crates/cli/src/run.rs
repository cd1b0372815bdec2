//! `foreswap run`: performs all checks before the command starts, starts it, serves it, and ends as it ended.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;
use foreswap::key::RunKey;
use foreswap::ledger::protocol::{
    MAP_FILES_VARIABLE, SOCKET_VARIABLE, Severity, THRESHOLD_VARIABLE,
};
use foreswap::ledger::{AreaId, IoBackend, Ledger, LedgerSpec, Options, ReadaheadPolicy};
use foreswap::sys::uffd::{Features, Uffd, UffdError};
use foreswap_store::area::{OpenArea, PAGE_BYTES};
use foreswap_store::ring::MOST_HELPERS;
use rustix::process::{Pid, Resource, Rlimit};

use crate::area_file::Descriptors;
use crate::areas::{Areas, AreasError, Opener};
use crate::args::{FULL_TIMEOUT, Io, RunArgs, Switch};
use crate::auto_memory::AutoMemory;
use crate::command::{self, Event};
use crate::control::change::Changes;
use crate::control::list::RunCommand;
use crate::control::server::Control;
use crate::doctor::quoted;
use crate::group::{self, Group, Part};
use crate::listeners::Listeners;
use crate::mapped_files::{MappedFiles, Pattern};
use crate::memory_setting::{Limits, Setting};
use crate::metrics::Metrics;
use crate::page::watching::Watching;
use crate::preload::PreloadError;
use crate::program::{self, ProgramError};
use crate::recording::Recording;
use crate::report::{self, Run};
use crate::sessions::Sessions;
use crate::signals::{self, InheritedMask, Signals};
use crate::stats_file::StatsFile;
use crate::supervisor::Supervisor;
use crate::turns::Turns;
use crate::unmanaged::Watch;
use crate::voice::{self, Voice};
use crate::{areas, inherited, preload, reaping};

/// The exit status if foreswap itself failed, as with env and timeout.
const CANNOT_START: u8 = 125;
/// A command that runs longer than this was looked at, if possible.
const LONG: Duration = Duration::from_secs(1);
const MAX_THRESHOLD: u64 = 8 << 20;

/// Runs the command; the exit code is its own, or foreswap's if it did not start.
pub fn run(args: &RunArgs) -> ExitCode {
    match try_run(args) {
        Ok(end) => end_as(end),
        Err(error) => {
            voice::error(&format!("{error:#}{}", hint(&error, &args.swap)));
            let status = error
                .downcast_ref::<ProgramError>()
                .map(ProgramError::exit_status);
            ExitCode::from(status.unwrap_or(CANNOT_START))
        }
    }
}

/// Where the system stands in the way, and not the command line: the command that says what to do.
pub fn hint(error: &anyhow::Error, swap: &[String]) -> String {
    let area = match error.downcast_ref::<AreasError>() {
        Some(error) => match error.obstructed() {
            Some(path) => (!swap.is_empty()).then_some(path),
            None => return String::new(),
        },
        None if error.is::<UffdError>() || error.is::<PreloadError>() => None,
        None => return String::new(),
    };
    let area = area.map(|path| format!(" --swap {}", quoted(&path.display().to_string())));
    format!("; `foreswap doctor{}` says more", area.unwrap_or_default())
}

/// The results of the checks.
pub struct Prepared {
    stats: Option<StatsFile>,
    metrics: Metrics,
    page: Option<Watching>,
    recording: Option<Recording>,
    areas: Vec<OpenArea>,
    opener: Opener,
    io: IoBackend,
    key: Option<RunKey>,
    limits: Limits,
    patterns: (Vec<Pattern>, OsString),
}

/// The program, and the object to inject into it.
type Command = (PathBuf, PathBuf);

/// `--memory`; only a command that joins a group needs none.
fn memory(args: &RunArgs) -> anyhow::Result<Setting> {
    let missing = || {
        let name = args.group.as_ref().map_or("", |name| name.as_str());
        anyhow::anyhow!(
            "no command of group {name} runs: this one begins it and must name the limit, such as --memory 4G"
        )
    };
    args.memory.ok_or_else(missing)
}

/// Finds the program, and the object to inject.
pub fn find_command(args: &RunArgs) -> anyhow::Result<Command> {
    let name = args
        .command
        .first()
        .map_or(OsStr::new(""), |name| name.as_os_str());
    let program = program::find(name, &program::search_path())?;
    Ok((program, preload::find()?))
}

/// All checks, and those of `find`.
pub fn prepare<T>(
    args: &RunArgs,
    voice: &mut Voice,
    find: impl FnOnce(&RunArgs) -> anyhow::Result<T>,
) -> anyhow::Result<(Prepared, T)> {
    let limits = memory(args)?.resolve("--memory ")?;
    let patterns = Pattern::all(&args.map_files)?;
    let stats = args.stats.as_deref().map(StatsFile::check).transpose()?;
    let metrics = Metrics::open(args.metrics, args.metrics_file.as_deref())?;
    let page = args.report.as_deref();
    if let Some(path) = page.filter(|path| args.trace.as_deref() == Some(path)) {
        anyhow::bail!(
            "--report {}: that is the file of --trace as well; name another one",
            path.display()
        );
    }
    let page = page
        .map(|path| Watching::open(path, &args.command))
        .transpose()?;
    let found = find(args)?;
    drop(Uffd::open(Features::NEEDED)?);
    if args.io == Io::Uring
        && let Err(why) = foreswap_store::ring::Uring::new(&[], 1)
    {
        anyhow::bail!(
            "--io uring was asked for, but {why}; leave --io out and threads take its place"
        );
    }
    areas::have_a_near_one(&args.swap)?;
    let mut opener = Opener::new(args.area_timeout);
    let mut areas = opener.open_all(&args.swap, args.swap_size, &limits)?;
    let is_sealed = |area| areas::is_sealed(area, args.encrypt);
    let key = areas.iter().any(is_sealed).then(RunKey::draw).transpose()?;
    let (io, why_not) = areas::backend(args.io.into(), &mut areas);
    match why_not {
        Some(why) if args.io == Io::Uring => anyhow::bail!(
            "--io uring was asked for, but {why}; leave --io out and threads take its place"
        ),
        Some(why) => voice.remark(Severity::Note, &format!("{why}; threads do the I/O")),
        None => {}
    }
    let recording = (args.trace.is_some() || page.is_some())
        .then(|| {
            let limit = limits.most / PAGE_BYTES;
            Recording::create(args.trace.as_deref(), limit, page.is_some())
        })
        .transpose()?;
    for note in areas.iter().flat_map(|area| &area.notes) {
        voice.remark(Severity::Note, note);
    }
    let prepared = Prepared {
        stats,
        metrics,
        page,
        recording,
        areas,
        opener,
        io,
        key,
        limits,
        patterns,
    };
    Ok((prepared, found))
}

/// How long a fault waits if no area accepts a page. A server that is away for a while is no reason to end the program.
fn full_timeout(args: &RunArgs, areas: &[OpenArea]) -> Duration {
    let is_far = areas.iter().any(|area| area.far.is_some());
    let far = if is_far {
        args.area_timeout
    } else {
        Duration::ZERO
    };
    args.full_timeout.unwrap_or(FULL_TIMEOUT.max(far))
}

/// One helper per CPU beside the program's.
fn default_helpers() -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    (cpus - 1).min(MOST_HELPERS) as u32
}

/// The size in bytes at which a process gets an engine.
fn threshold(limits: &Limits) -> u64 {
    MAX_THRESHOLD.min(limits.least / 16)
}

/// Opens what serves a run, and the sockets of its engines, whose name is returned as well.
pub fn open(
    args: &RunArgs,
    prepared: &mut Prepared,
    mut voice: Voice,
) -> anyhow::Result<(Supervisor, String)> {
    let (auto, limit) = AutoMemory::new(&prepared.limits);
    let described = prepared.areas.iter().enumerate();
    let readahead = ReadaheadPolicy::from(args.readahead);
    let max_window = args.max_window;
    let ledger = Ledger::create(&LedgerSpec {
        limit_pages: limit / PAGE_BYTES,
        options: Options {
            readahead,
            reclaim: args.reclaim.into(),
            thp: args.thp.into(),
            io: prepared.io,
            helpers: args.helpers.unwrap_or_else(default_helpers),
            max_window: max_window.unwrap_or_else(|| readahead.default_window()),
            full_timeout: full_timeout(args, &prepared.areas),
            adopt_threshold: threshold(&prepared.limits),
        },
        areas: described
            .map(|(order, area)| areas::describe(area, areas::priority(order), args.encrypt))
            .collect::<Result<_, _>>()?,
    })?;
    ledger.set_bound_pages(prepared.limits.most / PAGE_BYTES);
    let mut areas = Areas::new(std::mem::take(&mut prepared.opener));
    let mut files = Vec::new();
    for (number, area) in (0..).map(AreaId).zip(std::mem::take(&mut prepared.areas)) {
        ledger.attach_ram(number, area.file.as_fd())?;
        files.push((number, Descriptors::of(&area)?));
        areas.add(number, area);
    }
    // Sessions count on the descriptors that are allowed.
    inherited::allow_files();
    let mut sessions = Sessions::new(ledger, files, prepared.recording.take());
    sessions.mapped = MappedFiles::new(std::mem::take(&mut prepared.patterns.0));
    sessions.other_users = args.other_users;
    sessions.key = prepared.key.take();
    let (listeners, name) = Listeners::open()?;
    inherited::wait_for_children();
    reaping::begin();
    let signals = Signals::take()?;
    let (control, missing) = Control::open();
    if let Some(why) = missing {
        let text = format!("`foreswap ps` will not show this run: no control socket ({why})");
        voice.remark(Severity::Note, &text);
    }
    if args.metrics.is_some_and(|address| address.port() == 0)
        && let Some(address) = prepared.metrics.address()
    {
        let text = format!("metrics at http://{address}/metrics");
        voice.remark(Severity::Note, &text);
    }
    let mut supervisor = Supervisor {
        listeners,
        sessions,
        signals,
        voice,
        control,
        changes: Changes::default(),
        metrics: std::mem::take(&mut prepared.metrics),
        page: prepared.page.take(),
        areas,
        auto,
        group: None,
        command: RunCommand::default(),
        watch: Watch::new(format!("{SOCKET_VARIABLE}={name}")),
        turns: (args.load_control == Switch::On).then(Turns::new),
        encrypt: args.encrypt,
        strict: args.strict,
        ending: None,
    };
    supervisor.know_relay();
    Ok((supervisor, name))
}

/// The environment that makes a command part of a run.
pub struct Variables<'a> {
    /// The name of the socket for engines.
    pub engines: &'a str,
    /// The size in bytes at which a process gets an engine.
    pub threshold: u64,
    /// The patterns of `--map-files`.
    pub map_files: &'a OsStr,
}

impl Variables<'_> {
    /// Starts the command of `args` with them.
    pub fn start(
        &self,
        args: &RunArgs,
        (program, object): &Command,
        mask: InheritedMask,
    ) -> anyhow::Result<Pid> {
        let existing = std::env::var_os("LD_PRELOAD");
        let (loader, objects) = preload::variable(object, existing.as_deref());
        let threshold = self.threshold.to_string();
        let mut variables = vec![
            (loader, objects.as_os_str()),
            (SOCKET_VARIABLE, OsStr::new(self.engines)),
            (THRESHOLD_VARIABLE, OsStr::new(&threshold)),
        ];
        if !self.map_files.is_empty() {
            variables.push((MAP_FILES_VARIABLE, self.map_files));
        }
        command::start(program, &args.command, &variables, mask)
            .map_err(|error| not_started(program, &error))
    }
}

fn try_run(args: &RunArgs) -> anyhow::Result<Event> {
    let part = args.group.as_ref();
    let part = part.map(|name| group::enter(name, args)).transpose()?;
    let lock = match part {
        Some(Part::Joins(membership)) => return membership.run(args),
        Some(Part::Leads(lock)) => Some(lock),
        None => None,
    };
    let mut voice = Voice::new(args.quiet);
    let (mut prepared, command) = prepare(args, &mut voice, find_command)?;
    let (mut supervisor, name) = open(args, &mut prepared, voice)?;
    let mask = supervisor.signals.inherited_mask();
    let variables = Variables {
        engines: &name,
        threshold: threshold(&prepared.limits),
        map_files: &prepared.patterns.1,
    };
    if let Some(name) = &args.group {
        let group = Group::new(name, args, &variables)?;
        supervisor.lead(group).with_context(|| {
            format!(
                "--group {}: other commands could not find this one",
                name.as_str()
            )
        })?;
    }
    drop(lock);

    if args.strict && !supervisor.watch.can_look() {
        anyhow::bail!(
            "--strict was asked for, but /proc is not that of this pid namespace, so nobody's memory can be \
             looked at; mount it (unshare --mount-proc)"
        );
    }

    let before = most_resident_of_children();
    let started = Instant::now();
    let child = variables.start(args, &command, mask)?;
    supervisor.command.has_begun(child);
    let mut end = supervisor.until_end_of(child)?;
    supervisor.command.has_ended();
    let elapsed = started.elapsed();
    if supervisor.has_ended_all()? {
        end = Event::Exited(CANNOT_START.into());
    }

    let all_gone = supervisor.farewell(child.as_raw_nonzero().get())?;
    let ledger = supervisor.sessions.ledger();
    let run = Run {
        elapsed,
        exit_status: end.status(),
        limit_bytes: ledger.limit_pages() * PAGE_BYTES,
        auto: supervisor.auto.bounds(),
        peak_bytes: ledger.peak_charged_pages() * PAGE_BYTES,
        over: ledger.over_limit(),
        unmanaged: *supervisor.watch.peak(),
        unseen_bytes: unseen(&supervisor, before),
        warned: supervisor.voice.has_warned(),
        blind: elapsed > LONG && supervisor.watch.most_resident() == 0,
        totals: supervisor.sessions.totals_now(),
        left_running: match all_gone {
            true => 0,
            false => supervisor.left(),
        },
    };
    for pattern in supervisor.sessions.mapped.unmatched() {
        let text = format!(
            "--map-files '{pattern}' matched no file whose mapping foreswap could serve (`foreswap run --help` says which \
             can be)"
        );
        supervisor.voice.remark(Severity::Warning, &text);
    }
    if !supervisor.voice.is_quiet() {
        let coloured = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
        voice::write(&report::block(&run, coloured));
    }
    if let Some(Err(error)) = prepared.stats.map(|file| file.write(&run)) {
        voice::error(&error.to_string());
    }
    supervisor.write_page(&run);
    if supervisor.sessions.open() == 0 && supervisor.sessions.has_unfinished() {
        let text = "the disk still writes what ended processes had begun; the swap areas are in use until it has";
        supervisor.voice.remark(Severity::Note, text);
    }
    supervisor.write_metrics();
    if all_gone {
        supervisor.end_recording();
        supervisor.areas.erase_all();
        reaping::reap_the_last();
    } else {
        stay_behind(&mut supervisor);
    }
    Ok(end)
}

/// The maximum resident size of a reaped child, file pages included; its descendants count as well.
fn most_resident_of_children() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: room for what is asked for, which is valid if it stays zero.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    u64::try_from(usage.ru_maxrss).unwrap_or(0) << 10
}

/// The maximum resident size of a process, if it exceeds the limit and was reached between two looks, so that its
/// kind is unknown.
fn unseen(supervisor: &Supervisor, before: u64) -> u64 {
    let most = most_resident_of_children();
    let limit = supervisor.sessions.ledger().bound_pages() * PAGE_BYTES;
    let seen = supervisor.watch.most_resident();
    // A process from before the command does not belong to it.
    if most > before && most > limit && most > seen + seen / 4 {
        most
    } else {
        0
    }
}

fn not_started(program: &std::path::Path, error: &io::Error) -> anyhow::Error {
    let path = program.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => ProgramError::NotFound { name: path }.into(),
        _ => ProgramError::NotExecutable {
            path,
            why: error.to_string(),
        }
        .into(),
    }
}

/// The command has ended and left managed processes behind. They need a supervisor, but the caller must not wait: a
/// copy of this process remains, without its streams.
fn stay_behind(supervisor: &mut Supervisor) {
    supervisor.areas.settle();
    // SAFETY: this process has one thread.
    if unsafe { libc::fork() } != 0 {
        // It is the copy's, and would be cleared.
        std::mem::forget(supervisor.sessions.key.take());
        supervisor.control.leave();
        supervisor.listeners.leave();
        return;
    }
    if let Some(key) = &supervisor.sessions.key {
        key.lock_again();
    }
    supervisor.control.hand_over();
    let _ = rustix::process::setsid();
    if let Ok(null) = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
    {
        let _ = rustix::stdio::dup2_stdin(&null);
        let _ = rustix::stdio::dup2_stdout(&null);
        let _ = rustix::stdio::dup2_stderr(&null);
    }
    let served = supervisor.until_all_have_ended();
    drop(supervisor.sessions.key.take());
    supervisor.write_metrics();
    supervisor.end_recording();
    supervisor.areas.erase_all();
    supervisor.control.close();
    supervisor.listeners.close();
    std::process::exit(i32::from(served.is_err()));
}

/// Ends this process as the command ended: by the same signal, without a core dump of its own.
fn end_as(end: Event) -> ExitCode {
    if let Event::Killed(signal) = end {
        let none = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(Resource::Core, none);
        let _ =
            rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
        signals::suffer(signal);
    }
    ExitCode::from(end.status() as u8)
}
