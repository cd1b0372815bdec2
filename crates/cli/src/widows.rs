//! Processes whose engine has ended before them.
//!
//! An engine is a process of its own, and ends after its program. If it ends before (killed by a user, or by a bug),
//! the program would wait for ever at its next touch of a swapped page, and with a closed userfaultfd it would read
//! zeros. The supervisor therefore keeps the userfaultfd open, and ends the program.
//!
//! An engine also serves children that its program forked by a system call of its own (*guests*). Nobody knows their
//! pids, so the supervisor keeps their memory, too, and poisons the pages that they lack when they touch them.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use foreswap::ledger::protocol::Severity;
use foreswap::sys::uffd::{Event, RawMsg, Uffd, Why};
use foreswap_core::units::PAGE_SIZE;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, Uid, pidfd_send_signal};

use crate::voice::Voice;

/// How long a process that was killed together with its engine may take to end.
const GRACE: Duration = Duration::from_millis(100);
/// An address at which a userfaultfd accepts requests, and where no program has registered memory.
const LOWEST: usize = 0x1_0000;

/// One of these processes.
#[derive(Debug)]
struct Widow {
    pid: Pid,
    process: OwnedFd,
    /// Its userfaultfd.
    _kept: Vec<OwnedFd>,
    since: Instant,
    was_told: bool,
}

/// The memory of a child that such an engine served.
#[derive(Debug)]
struct Guest {
    memory: Uffd,
    /// Faults that were not answered: address, and whether the page is write-protected.
    faults: Vec<(usize, bool)>,
}

/// All of these processes.
#[derive(Debug, Default)]
pub struct Widows {
    processes: Vec<Widow>,
    guests: Vec<Guest>,
}

/// Whether the process with this memory has neither ended nor executed a file.
pub fn memory_exists(memory: &Uffd) -> bool {
    // No program has registered memory there.
    memory.exists(LOWEST)
}

impl Guest {
    fn of(memory: Uffd) -> Self {
        Guest {
            memory,
            faults: Vec::new(),
        }
    }

    /// Answers all faults that have arrived. Its own children, which lack the same pages, are added to `more`.
    fn answer(&mut self, more: &mut Vec<Guest>) {
        let mut messages = [RawMsg::ZERO; 16];
        while let Ok(events) = self.memory.read(&mut messages) {
            let mut any = false;
            for event in events {
                any = true;
                match event {
                    Event::Fault { addr, flags, .. } => {
                        self.faults.push((addr & !(PAGE_SIZE - 1), flags.wp));
                    }
                    Event::Fork { fd } => more.push(Guest::of(Uffd::of_child(fd))),
                    _ => {}
                }
            }
            if !any {
                break;
            }
        }
        let memory = &self.memory;
        self.faults.retain(|&(address, protected)| {
            let done = match protected {
                true => memory.writeprotect(address, PAGE_SIZE, false),
                false => memory.poison(address, PAGE_SIZE),
            };
            match done {
                Err(short) if short.why == Why::Again => true,
                Err(short) if short.why == Why::Exists => {
                    let _ = memory.wake(address, PAGE_SIZE);
                    false
                }
                _ => false,
            }
        });
    }
}

impl Widows {
    /// The engine of `pid` is gone; `kept` are its descriptors. No action if the process is gone as well.
    pub fn add(&mut self, pid: Pid, process: OwnedFd, kept: Vec<OwnedFd>) {
        if !has_ended(&process) {
            self.processes.push(Widow {
                pid,
                process,
                _kept: kept,
                since: Instant::now(),
                was_told: false,
            });
        }
    }

    /// The engine of `pid` is gone, which served these children as well.
    pub fn add_guests(&mut self, pid: Pid, guests: Vec<Uffd>, voice: &mut Voice) {
        let living = guests.into_iter().filter(memory_exists);
        let before = self.guests.len();
        self.guests.extend(living.map(Guest::of));
        if self.guests.len() > before {
            let pid = pid.as_raw_nonzero();
            let text = format!(
                "the engine of process {pid} was killed; the process forked by a system call of its own, and its child has \
                 lost its swapped pages: a touch of them raises SIGBUS"
            );
            voice.remark(Severity::Error, &text);
        }
    }

    /// Whether there are any.
    pub fn exist(&self) -> bool {
        !self.processes.is_empty() || !self.guests.is_empty()
    }

    /// Ends those that have not ended by themselves, and lets guests go on without what they lack.
    pub fn end(&mut self, voice: &mut Voice) {
        self.guests.retain(|guest| memory_exists(&guest.memory));
        let mut more = Vec::new();
        for guest in &mut self.guests {
            guest.answer(&mut more);
        }
        self.guests.append(&mut more);
        self.processes.retain(|widow| !has_ended(&widow.process));
        for widow in &mut self.processes {
            if widow.was_told || widow.since.elapsed() < GRACE {
                continue;
            }
            widow.was_told = true;
            let pid = widow.pid.as_raw_nonzero();
            let text = match pidfd_send_signal(&widow.process, Signal::KILL) {
                Ok(()) => format!(
                    "the engine of process {pid} was killed, and with it the process, which would have lost its memory"
                ),
                Err(why) => format!(
                    "the engine of process {pid} was killed; the process waits for its memory for ever, and cannot be ended from here ({why})"
                ),
            };
            voice.remark(Severity::Error, &text);
        }
    }
}

/// Whether the last thread of the process with this pidfd has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).is_ok() && !fds[0].revents().is_empty()
}

/// The id of the process with this pidfd in this namespace.
pub fn pid_of(process: &OwnedFd) -> Option<Pid> {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
    let text = std::fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    line.trim().parse().ok().and_then(Pid::from_raw)
}

/// The effective user of the process with this pidfd; `None` if it has ended or is not visible here.
pub fn user_of(process: &OwnedFd) -> Option<Uid> {
    let pid = pid_of(process)?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let user = line.split_ascii_whitespace().nth(1)?.parse().ok()?;
    // Otherwise the number may belong to another process by now.
    (!has_ended(process)).then(|| Uid::from_raw(user))
}

#[cfg(test)]
mod tests {
    use rustix::process::{PidfdFlags, pidfd_open};

    use super::*;

    fn sleeper() -> (std::process::Child, Pid, OwnedFd) {
        let child = std::process::Command::new("sleep").arg("60").spawn();
        let child = child.expect("a process");
        let pid = Pid::from_child(&child);
        let process = pidfd_open(pid, PidfdFlags::empty()).expect("a pidfd");
        (child, pid, process)
    }

    #[test]
    fn a_process_that_outlives_its_engine_is_ended() {
        let (mut child, pid, process) = sleeper();
        assert_eq!(pid_of(&process), Some(pid));
        let (mut widows, mut voice) = (Widows::default(), Voice::new(true));
        widows.add(pid, process, Vec::new());
        widows.end(&mut voice);
        assert!(child.try_wait().expect("a status").is_none(), "not at once");
        while widows.exist() {
            std::thread::sleep(GRACE / 10);
            widows.end(&mut voice);
        }
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(child.wait().expect("its end").signal(), Some(9));
    }

    #[test]
    fn a_process_that_ends_with_its_engine_is_no_widow() {
        let (mut child, pid, process) = sleeper();
        child.kill().expect("a kill");
        child.wait().expect("its end");
        let mut widows = Widows::default();
        widows.add(pid, process, Vec::new());
        assert!(!widows.exist());
    }
}
