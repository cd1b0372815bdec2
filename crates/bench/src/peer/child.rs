//! Runs one command to its end, with its output, its time and its exit status. It can also exchange lines with the
//! command while it runs ([`Talk`]), for example at moments at which the command pauses to be measured
//! ([`run_marked`]).
//!
//! The child dies with us, can start inside a cgroup, and leads a process group of its own, which is ended with it when it
//! takes too long or a signal asks us to end: a shell alone would leave what it runs behind.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};

use crate::interrupt;
use crate::progress::Progress;
use crate::usemem::{Mark, Moment};

/// A command that ended well.
#[derive(Debug)]
pub struct Finished {
    /// Its standard output.
    pub output: Vec<u8>,
    /// From before its start to its end, without the pauses for counting.
    pub elapsed: Duration,
    /// The most resident memory of it, or of a descendant that it has waited for, in bytes.
    pub peak: u64,
}

/// A command that was ended because it took too long.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("ended after {} s", .0.as_secs())]
pub struct TimedOut(Duration);

/// How often a waiting bench checks for signals.
const LOOK_MS: libc::c_int = 100;
/// How long a child may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `command`, inside the cgroup whose `cgroup.procs` is `door` if there is one. It is ended after `timeout`.
pub fn run(
    command: &[OsString],
    door: Option<&Path>,
    timeout: Option<Duration>,
    progress: &Progress,
) -> anyhow::Result<Finished> {
    // Files, not pipes: nothing has to be read while the child runs.
    let (mut output, mut errors) = (memory_file()?, memory_file()?);
    let start = Instant::now();
    let (stdin, stdout) = (Stdio::null(), output.try_clone()?.into());
    let mut child = start_child(command, door, stdin, stdout, &errors)?;
    let (status, peak) = wait(&mut child, timeout, progress)?;
    let elapsed = start.elapsed();
    if !status.success() {
        return Err(failure(command, status, &mut errors));
    }
    Ok(Finished {
        output: content(&mut output)?,
        elapsed,
        peak,
    })
}

/// As [`run`], for a command that reports moments (`--marks`): `count` is called at each, with the process that was
/// started, while the command pauses.
pub fn run_marked(
    command: &[OsString],
    door: Option<&Path>,
    progress: &Progress,
    mut count: impl FnMut(u32, Moment) -> anyhow::Result<()>,
) -> anyhow::Result<Finished> {
    let start = Instant::now();
    let mut talk = Talk::start(command, door)?;
    let mut line = talk.listen(progress)?;
    let mut paused = Duration::ZERO;
    while let Ok(Mark { mark }) = serde_json::from_slice(&line) {
        let pause = Instant::now();
        count(talk.pid(), mark)?;
        paused += pause.elapsed();
        line = talk.ask("go on", progress)?;
    }
    let peak = talk.finish(progress)?;
    Ok(Finished {
        output: line,
        elapsed: start.elapsed().saturating_sub(paused),
        peak,
    })
}

fn start_child(
    command: &[OsString],
    door: Option<&Path>,
    stdin: Stdio,
    stdout: Stdio,
    errors: &File,
) -> anyhow::Result<Child> {
    interrupt::check()?;
    let (program, arguments) = command.split_first().context("an empty command")?;
    let door = door
        .map(|path| OpenOptions::new().write(true).open(path))
        .transpose()
        .context("cannot open the cgroup")?;
    let mut starting = Command::new(program);
    starting
        .args(arguments)
        .stdin(stdin)
        .stdout(stdout)
        .stderr(errors.try_clone()?)
        .process_group(0);
    let us = std::process::id();
    // SAFETY: the closure only makes system calls, as is allowed after a fork.
    unsafe { starting.pre_exec(move || before_exec(us, door.as_ref())) };
    starting
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))
}

/// The failure of a command, in its own words.
fn failure(command: &[OsString], status: ExitStatus, errors: &mut File) -> anyhow::Error {
    let said = content(errors).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let line: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    anyhow!("`{}` {how}: {said}", line.join(" "))
}

/// A running command that answers each line with a line; ended when dropped.
pub struct Talk {
    child: Child,
    command: Vec<OsString>,
    errors: File,
    stdin: Option<ChildStdin>,
    stdout: ChildStdout,
    read: Vec<u8>,
}

impl Talk {
    /// Starts `command`, inside the cgroup whose `cgroup.procs` is `door` if there is one.
    pub fn start(command: &[OsString], door: Option<&Path>) -> anyhow::Result<Self> {
        let errors = memory_file()?;
        let mut child = start_child(command, door, Stdio::piped(), Stdio::piped(), &errors)?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a child without pipes");
        };
        Ok(Self {
            child,
            command: command.to_vec(),
            errors,
            stdin: Some(stdin),
            stdout,
            read: Vec::new(),
        })
    }

    /// The process that was started.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `line`, and returns the answer.
    pub fn ask(&mut self, line: &str, progress: &Progress) -> anyhow::Result<Vec<u8>> {
        let said = match &mut self.stdin {
            Some(stdin) => writeln!(stdin, "{line}"),
            None => Ok(()),
        };
        // A child that has ended gives its reason when we wait for its next line.
        match said {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
            _ => self.listen(progress),
        }
    }

    /// Waits for the next line.
    pub fn listen(&mut self, progress: &Progress) -> anyhow::Result<Vec<u8>> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let rest = self.read.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.read, rest));
            }
            interrupt::check()?;
            progress.tick();
            if !readable(Some(self.stdout.as_raw_fd()), LOOK_MS) {
                continue;
            }
            let mut part = [0; 4096];
            match self.stdout.read(&mut part) {
                Ok(0) => {
                    let (status, _) = wait(&mut self.child, None, progress)?;
                    return Err(failure(&self.command, status, &mut self.errors));
                }
                Ok(n) => self.read.extend_from_slice(&part[..n]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Closes its input and waits until it has ended well. Returns its peak, as in [`Finished`].
    pub fn finish(mut self, progress: &Progress) -> anyhow::Result<u64> {
        self.stdin = None;
        let (status, peak) = wait(&mut self.child, None, progress)?;
        match status.success() {
            true => Ok(peak),
            false => Err(failure(&self.command, status, &mut self.errors)),
        }
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = end(&mut self.child);
        }
    }
}

fn before_exec(parent: u32, door: Option<&File>) -> io::Result<()> {
    // SAFETY: sets an attribute of this process and reads its parent's id; writes one
    // byte to a descriptor that is open.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        if libc::getppid() as u32 != parent {
            libc::_exit(4);
        }
        if let Some(door) = door
            && libc::write(door.as_raw_fd(), c"0".as_ptr().cast(), 1) != 1
        {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Waits for the end of `child`: its status and its peak.
fn wait(
    child: &mut Child,
    timeout: Option<Duration>,
    progress: &Progress,
) -> anyhow::Result<(ExitStatus, u64)> {
    let start = Instant::now();
    // SAFETY: opens a descriptor for a child that is not waited for yet.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    // SAFETY: a descriptor that was just opened for us, where it was.
    let ended = (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) });
    loop {
        if let Some(ended) = try_wait(child)? {
            interrupt::check()?;
            return Ok(ended);
        }
        if let Some(timeout) = timeout.filter(|timeout| start.elapsed() > *timeout) {
            end(child)?;
            return Err(TimedOut(timeout).into());
        }
        if let Err(interrupted) = interrupt::check() {
            end(child)?;
            return Err(interrupted.into());
        }
        progress.tick();
        // Without a pidfd (before Linux 5.3) this only sleeps, and a bit less.
        let wait = if ended.is_some() { LOOK_MS } else { 1 };
        readable(ended.as_ref().map(AsRawFd::as_raw_fd), wait);
    }
}

/// As [`Child::try_wait`], with the peak. The child is not to be waited for again.
fn try_wait(child: &mut Child) -> io::Result<Option<(ExitStatus, u64)>> {
    let mut status = 0;
    // SAFETY: plain integers, for which zero is a value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    let pid = child.id() as libc::pid_t;
    // SAFETY: our child, which nobody else waits for; both places are ours.
    match unsafe { libc::wait4(pid, &raw mut status, libc::WNOHANG, &raw mut usage) } {
        0 => Ok(None),
        waited if waited == pid => {
            let peak = (usage.ru_maxrss as u64).saturating_mul(1024);
            Ok(Some((ExitStatus::from_raw(status), peak)))
        }
        _ => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(None),
            error => Err(error),
        },
    }
}

/// Waits until `fd` has something to read, but no longer than `ms`.
fn readable(fd: Option<RawFd>, ms: libc::c_int) -> bool {
    let mut polled = libc::pollfd {
        fd: fd.unwrap_or(-1),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry, ours; a signal ends the wait early.
    unsafe { libc::poll(&mut polled, 1, ms) > 0 }
}

/// Ends the group that `child` leads: by SIGTERM, and whoever is left by SIGKILL. Waits for the child.
pub fn end(child: &mut Child) -> io::Result<()> {
    let group = -(child.id() as libc::pid_t);
    // SAFETY: a signal to the group of a child that is not waited for, so the id is still its own.
    unsafe { libc::kill(group, libc::SIGTERM) };
    let start = Instant::now();
    while start.elapsed() < GRACE && !has_ended(child)? {
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: as above. The group may outlive its leader.
    unsafe { libc::kill(group, libc::SIGKILL) };
    child.wait().map(drop)
}

/// Whether the child has ended; it is still to be waited for.
fn has_ended(child: &Child) -> io::Result<bool> {
    // SAFETY: plain integers and pointers that are not followed, for which zero is a value.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: our child; the place is ours.
    match unsafe { libc::waitid(libc::P_PID, child.id(), &raw mut info, flags) } {
        // SAFETY: written by the call, or zero.
        0 => Ok(unsafe { info.si_pid() } != 0),
        _ => Err(io::Error::last_os_error()),
    }
}

fn memory_file() -> io::Result<File> {
    // SAFETY: a new descriptor with a constant name.
    let raw = unsafe { libc::memfd_create(c"foreswap-bench".as_ptr(), libc::MFD_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and ours.
    Ok(unsafe { File::from_raw_fd(raw) })
}

fn content(file: &mut File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut text)?;
    Ok(text)
}
