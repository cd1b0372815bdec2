//! Orphans among the command's descendants: every engine is one.
//!
//! Init reaps them. If the first process of a container does not (`sleep`, for example), each engine would remain as
//! a zombie for the life of the container. In that case the supervisor adopts orphans. Not otherwise: a process that
//! the command leaves behind (a daemon) can see its parent.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid, set_child_subreaper};

/// How long engines that have closed their connection may take to end.
const LAST: Duration = Duration::from_millis(20);
const LAST_STEP: Duration = Duration::from_micros(200);

/// Adopts orphans if no other process would reap them.
pub fn begin() {
    let is_first = getpid().is_init();
    if !is_first && !init_cares() {
        // No kernel with the features of an engine refuses it.
        let _ = set_child_subreaper(Some(getpid()));
    }
}

/// Whether the first process handles the signal of a child's end. If unknown, it counts as a real init.
fn init_cares() -> bool {
    fs::read_to_string("/proc/1/status").map_or(true, |status| handles_child_ends(&status))
}

fn handles_child_ends(status: &str) -> bool {
    const CHILD: u64 = 1 << (libc::SIGCHLD - 1);
    // Caught, ignored (then the kernel reaps), or blocked and waited for.
    let masks = ["SigCgt:", "SigIgn:", "SigBlk:"];
    let mask = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        u64::from_str_radix(line.trim(), 16).ok()
    };
    masks
        .into_iter()
        .filter_map(mask)
        .any(|mask| mask & CHILD != 0)
}

/// Reaps ended children except the command, which is reaped elsewhere.
pub fn reap_all_but(command: Pid) {
    let is_other = |pid| pid != command.as_raw_nonzero().get();
    while matches!(ended_child(), Some(Some(pid)) if is_other(pid) && reap(pid)) {}
}

/// Reaps the engines that have just closed their connection and are about to end, if they are children of this
/// process.
pub fn reap_the_last() {
    let end = Instant::now() + LAST;
    while let Some(ended) = ended_child() {
        match ended {
            Some(pid) if reap(pid) => {}
            _ if Instant::now() >= end => return,
            _ => std::thread::sleep(LAST_STEP),
        }
    }
}

/// An ended child, `Some(None)` if others run, `None` without children.
fn ended_child() -> Option<Option<i32>> {
    // SAFETY: all zeros is a valid siginfo, which is what it stays when nobody has ended.
    let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    // SAFETY: the kernel writes to `info` only.
    let (looked, pid) = unsafe {
        let looked = libc::waitid(libc::P_ALL, 0, &mut info, options);
        (looked, info.si_pid())
    };
    (looked == 0).then_some((pid != 0).then_some(pid))
}

fn reap(pid: i32) -> bool {
    // SAFETY: as above.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        libc::waitid(libc::P_PID, pid.cast_unsigned(), &mut info, options) == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_handles_the_signal_is_an_init() {
        let status = |blocked, ignored, caught| {
            format!(
                "Name:\tx\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
            )
        };
        let child = 1_u64 << 16;
        assert!(!handles_child_ends(&status(0, 0x1000, 0x4e8)));
        assert!(handles_child_ends(&status(child, 0, 0)));
        assert!(handles_child_ends(&status(0, child, 0)));
        assert!(handles_child_ends(&status(0, 0, child | 2)));
    }
}
