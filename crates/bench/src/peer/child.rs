//! Runs one command to its end: what it printed, how long it took, how it ended.
//!
//! The child dies with us, can be born inside a cgroup, and is killed (by its process
//! id) when a signal asks us to end.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::interrupt;
use crate::progress::Progress;

/// A command that ended well.
#[derive(Debug)]
pub struct Finished {
    /// Its standard output.
    pub output: Vec<u8>,
    /// From before it was started to its end.
    pub elapsed: Duration,
}

/// How often a waiting bench looks around.
const LOOK_MS: libc::c_int = 100;
/// How long a child may take to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);

/// Runs `command`, inside the cgroup whose `cgroup.procs` is `door` if there is one.
pub fn run(
    command: &[OsString],
    door: Option<&Path>,
    progress: &Progress,
) -> anyhow::Result<Finished> {
    interrupt::check()?;
    let (program, arguments) = command.split_first().context("an empty command")?;
    // Files, not pipes: nothing has to be read while the child runs.
    let (mut output, mut errors) = (memory_file()?, memory_file()?);
    let door = door
        .map(|path| OpenOptions::new().write(true).open(path))
        .transpose()
        .context("cannot open the cgroup")?;
    let mut starting = Command::new(program);
    starting
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(errors.try_clone()?);
    let us = std::process::id();
    // SAFETY: the closure only makes system calls, as is allowed after a fork.
    unsafe { starting.pre_exec(move || before_exec(us, door.as_ref())) };
    let start = Instant::now();
    let mut child = starting
        .spawn()
        .with_context(|| format!("cannot start {}", program.display()))?;
    let status = wait(&mut child, progress)?;
    let elapsed = start.elapsed();
    if status.success() {
        return Ok(Finished {
            output: content(&mut output)?,
            elapsed,
        });
    }
    let said = String::from_utf8_lossy(&content(&mut errors)?)
        .trim()
        .to_owned();
    let how = match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".to_owned(),
    };
    let line: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
    bail!("`{}` {how}: {said}", line.join(" "))
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

fn wait(child: &mut Child, progress: &Progress) -> anyhow::Result<std::process::ExitStatus> {
    // SAFETY: opens a descriptor for a child that is not waited for yet.
    let raw = unsafe { libc::syscall(libc::SYS_pidfd_open, child.id(), 0) };
    // SAFETY: a descriptor that was just opened for us, where it was.
    let ended = (raw >= 0).then(|| unsafe { OwnedFd::from_raw_fd(raw as libc::c_int) });
    loop {
        if let Some(status) = child.try_wait()? {
            interrupt::check()?;
            return Ok(status);
        }
        if let Err(interrupted) = interrupt::check() {
            end(child)?;
            return Err(interrupted.into());
        }
        progress.tick();
        let mut polled = libc::pollfd {
            fd: ended.as_ref().map_or(-1, AsRawFd::as_raw_fd),
            events: libc::POLLIN,
            revents: 0,
        };
        // Without a pidfd (before Linux 5.3) this only sleeps, and a bit less.
        let wait = if ended.is_some() { LOOK_MS } else { 1 };
        // SAFETY: one entry, ours; a signal ends the wait early.
        unsafe { libc::poll(&mut polled, 1, wait) };
    }
}

fn end(child: &mut Child) -> io::Result<()> {
    // SAFETY: a signal to a child that is not waited for, so its id is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
    let start = Instant::now();
    while start.elapsed() < GRACE {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill()?;
    child.wait().map(drop)
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
