//! Starts the command as a shell would: same process group, terminal, streams and working directory, with the
//! original signals, and bound to the life of this process.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions};

use crate::inherited::Inherited;
use crate::reaping;
use crate::signals::{self, InheritedMask, Signals};

/// A change of state of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// It exited by itself.
    Exited(i32),
    /// A signal ended it.
    Killed(i32),
    /// A signal stopped it.
    Stopped(i32),
    /// It continues.
    Continued,
}

impl Event {
    /// As a shell reports it.
    pub fn status(self) -> i32 {
        match self {
            Self::Exited(status) => status,
            Self::Killed(signal) | Self::Stopped(signal) => 128 + signal,
            Self::Continued => 0,
        }
    }
}

/// Starts `program` with the words of the command line. Must be called on the main thread: the command dies when the
/// thread that started it does.
pub fn start(
    program: &Path,
    words: &[OsString],
    variables: &[(&str, &OsStr)],
    mask: InheritedMask,
) -> io::Result<Pid> {
    let inherited = Inherited::at_start();
    let ours = rustix::process::getpid();
    let mut command = Command::new(program);
    let mut words = words.iter();
    if let Some(name) = words.next() {
        command.arg0(name);
    }
    command.args(words);
    for (name, value) in variables {
        command.env(name, value);
    }
    command.env_remove(foreswap_far::address::PASSWORD_VARIABLE);
    let before_exec = move || {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // This process may have died before the request, and then the signal would never be delivered.
        if rustix::process::getppid() != Some(ours) {
            return Err(io::Error::from(rustix::io::Errno::SRCH));
        }
        inherited.restore_in_child();
        mask.restore();
        Ok(())
    };
    // SAFETY: only system calls that are allowed after fork; this process has one thread.
    unsafe { command.pre_exec(before_exec) };
    let child = command.spawn()?;
    // The supervisor waits for it, by pid.
    Pid::from_raw(child.id().cast_signed()).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
}

/// Handles every received signal: passes on what is meant for the command, and follows it when it stops. Returns the
/// command's end, if that was among them.
pub fn on_signals(signals: &Signals, command: Pid) -> io::Result<Option<Event>> {
    while let Some(arrived) = signals.next() {
        match arrived.signal {
            libc::SIGCHLD => {
                while let Some(event) = next_event(command)? {
                    match event {
                        Event::Exited(_) | Event::Killed(_) => return Ok(Some(event)),
                        // Job control: the shell must see its job stop, and the job is this process.
                        Event::Stopped(
                            signal @ (libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU),
                        ) => {
                            signals::suffer(signal);
                        }
                        Event::Stopped(_) | Event::Continued => {}
                    }
                }
                reaping::reap_all_but(command);
            }
            signal if arrived.is_for(command) => signals::pass_on(command, signal),
            _ => {}
        }
    }
    Ok(None)
}

/// The next event of the command; `None` if there is none yet.
pub fn next_event(command: Pid) -> io::Result<Option<Event>> {
    let options = WaitOptions::NOHANG | WaitOptions::UNTRACED | WaitOptions::CONTINUED;
    let Some((_, status)) = rustix::process::waitpid(Some(command), options)? else {
        return Ok(None);
    };
    Ok(if let Some(code) = status.exit_status() {
        Some(Event::Exited(code))
    } else if let Some(signal) = status.terminating_signal() {
        Some(Event::Killed(signal))
    } else if let Some(signal) = status.stopping_signal() {
        Some(Event::Stopped(signal))
    } else {
        Some(Event::Continued)
    })
}
