//! Processes whose engine has ended before them.
//!
//! An engine is a process of its own, and ends after its program. If it ends before (killed by a user, or by a bug),
//! the program would wait for ever at its next touch of a swapped page, and with a closed userfaultfd it would read
//! zeros. The supervisor therefore keeps the userfaultfd open, and ends the program.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use foreswap::ledger::protocol::Severity;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, Uid, pidfd_send_signal};

use crate::voice::Voice;

/// How long a process that was killed together with its engine may take to end.
const GRACE: Duration = Duration::from_millis(100);

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

/// All of these processes.
#[derive(Debug, Default)]
pub struct Widows(Vec<Widow>);

impl Widows {
    /// The engine of `pid` is gone; `kept` are its descriptors. No action if the process is gone as well.
    pub fn add(&mut self, pid: Pid, process: OwnedFd, kept: Vec<OwnedFd>) {
        if !has_ended(&process) {
            self.0.push(Widow {
                pid,
                process,
                _kept: kept,
                since: Instant::now(),
                was_told: false,
            });
        }
    }

    /// Whether there are any.
    pub fn exist(&self) -> bool {
        !self.0.is_empty()
    }

    /// Ends those that have not ended by themselves.
    pub fn end(&mut self, voice: &mut Voice) {
        self.0.retain(|widow| !has_ended(&widow.process));
        for widow in &mut self.0 {
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
