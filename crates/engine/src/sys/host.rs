//! The process beside which the engine runs, as seen from the engine: whether it still exists, and whether it still
//! has the shared memory.
//!
//! Its pidfd reports its end. A process that executes another file gets new memory, and no descriptor reports that:
//! the old memory would stay, charged and useless, as long as the engine does. The host is therefore checked from
//! time to time, and often when the program is known to be about to execute a file.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use linux_raw_sys::general as k;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Dir;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::process;
use super::syscall::syscall;

const KCMP_VM: usize = 1;
/// Consecutive looks that must find different sizes, if the memories cannot be compared.
const LOOKS: u32 = 3;
/// How long a program may take to end by SIGABRT.
const PATIENCE: Duration = Duration::from_secs(1);

/// A process and its memory at the time of opening.
#[derive(Debug)]
pub struct Host {
    pid: u32,
    fd: OwnedFd,
    /// Looks that found different sizes.
    differed: u32,
}

impl Host {
    /// The process `pid`, which must have the caller's memory.
    pub fn open(pid: u32) -> Result<Self, Errno> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let fd = pidfd_open(number.ok_or(Errno::SRCH)?, PidfdFlags::empty())?;
        let host = Host {
            pid,
            fd,
            differed: 0,
        };
        // Its number may already belong to another process.
        match host.compare() {
            Ok(false) => Err(Errno::SRCH),
            _ => Ok(host),
        }
    }

    /// Another handle of the same process.
    pub fn try_clone(&self) -> Result<Self, Errno> {
        Ok(Host {
            pid: self.pid,
            fd: rustix::io::dup(&self.fd)?,
            differed: 0,
        })
    }

    /// Its process id in its own namespace.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Whether its last thread has ended. Waits for that, at most for `wait` and until `other` becomes readable.
    pub fn await_end(&self, wait: Duration, other: Option<BorrowedFd<'_>>) -> bool {
        let fds = [Some(self.fd.as_fd()), other];
        let fds = fds.into_iter().flatten();
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: wait.subsec_nanos().into(),
        };
        poll(&mut fds, Some(&timeout)).is_ok() && !fds[0].revents().is_empty()
    }

    /// Whether its last thread has ended.
    pub fn has_ended(&self) -> bool {
        self.await_end(Duration::ZERO, None)
    }

    /// It has executed another file: the memory is no longer its own.
    pub fn has_left(&mut self) -> bool {
        match self.compare() {
            Ok(same) => !same,
            // No permission any more, or a sandbox: compare the size of the address space as seen from either
            // process.
            Err(_) => {
                let differs = self.sizes_differ().unwrap_or(false);
                self.differed = if differs { self.differed + 1 } else { 0 };
                self.differed >= LOOKS
            }
        }
    }

    /// Whether its memory and the caller's are the same.
    fn compare(&self) -> Result<bool, Errno> {
        has_our_memory(self.pid)
    }

    /// Another process that shares the memory (by vfork, or clone with CLONE_VM) and outlives this one.
    pub fn heir(&self) -> Option<Host> {
        let own = crate::program::own_pid();
        let folder = super::handed::open_in_proc(c"/proc/.").ok()?;
        let mut entries = Dir::read_from(&folder).ok()?;
        entries.find_map(|entry| {
            let pid: u32 = entry.ok()?.file_name().to_str().ok()?.parse().ok()?;
            let shares = pid != own && pid != self.pid && has_our_memory(pid) == Ok(true);
            shares.then(|| Host::open(pid).ok()).flatten()
        })
    }

    fn sizes_differ(&self) -> Option<bool> {
        let own = || size_at("/proc/thread-self/statm");
        let before = own()?;
        let theirs = size_at(&format!("/proc/{}/statm", self.pid))?;
        Some(theirs != before && own()? == before)
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) -> Result<(), Errno> {
        pidfd_send_signal(&self.fd, signal)
    }

    /// Ends it as `abort` does or, if that fails, by SIGKILL; then ends the calling process.
    pub fn abort(&self) -> ! {
        // Without the right to signal it, its threads wait for pages, and the supervisor ends it.
        let _ = self.signal(Signal::ABORT);
        if !self.await_end(PATIENCE, None) {
            let _ = self.signal(Signal::KILL);
        }
        process::exit(134)
    }
}

impl AsFd for Host {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn has_our_memory(pid: u32) -> Result<bool, Errno> {
    let own = crate::program::own_pid() as usize;
    // SAFETY: it compares, and changes nothing.
    let order = unsafe { syscall(k::__NR_kcmp, [own, pid as usize, KCMP_VM, 0, 0]) }?;
    Ok(order == 0)
}

/// The pages of address space in this `statm`.
fn size_at(path: &str) -> Option<u64> {
    let text = super::handed::read_in_proc(path).ok()?;
    let text = core::str::from_utf8(&text).ok()?;
    text.split_ascii_whitespace().next()?.parse().ok()
}

/// Faults of the process `pid` without I/O, all threads together: each may have copied a page. `None` if there is no
/// such process.
pub fn faults(pid: u32) -> Option<u64> {
    let stat = super::handed::read_in_proc(&format!("/proc/{pid}/stat")).ok()?;
    let after_name = stat.iter().rposition(|&byte| byte == b')')?;
    let mut fields = stat[after_name..].split(|&byte| byte == b' ').skip(1);
    // The state is the third field, these are the tenth.
    let field = fields.nth(7)?;
    core::str::from_utf8(field).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_shares_our_memory_is_a_host() {
        let mut own = Host::open(std::process::id()).expect("this process");
        assert!(!own.has_left() && own.sizes_differ() == Some(false));
        let mut other = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("a process");
        assert_eq!(Host::open(other.id()).expect_err("another"), Errno::SRCH);
        // A host that has executed another file looks like this.
        own.pid = other.id();
        assert!(own.has_left());
        assert_eq!(own.sizes_differ(), Some(true));
        other.kill().expect("a kill");
        other.wait().expect("its end");
        assert_eq!(Host::open(other.id()).expect_err("ended"), Errno::SRCH);
    }
}
