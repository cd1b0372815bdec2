//! Orphans among the command's descendants: every engine is one.
//!
//! Init reaps them. Where a container's first process does not look after its children (`sleep`, say),
//! each engine would be left as a zombie, as long as the container runs and as many as there were
//! processes. There the supervisor has orphans become its own children. Not elsewhere: what the command
//! leaves running (a daemon) sees who its parent is.

use std::fs;

use rustix::process::{Pid, getpid, set_child_subreaper};

/// Has orphans come to us if nobody else would reap them.
pub fn begin() {
    let is_first = getpid().is_init();
    if !is_first && !init_cares() {
        // Refused by no kernel that has what an engine needs.
        let _ = set_child_subreaper(Some(getpid()));
    }
}

/// Whether the first process handles the signal that tells of a child's end. If that cannot be seen, it
/// is taken for a real init.
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
    masks.into_iter().filter_map(mask).any(|mask| mask & CHILD != 0)
}

/// Reaps children that have ended, but for the command, whose end is its own matter.
pub fn reap_all_but(command: Pid) {
    loop {
        // SAFETY: all zeros is a valid siginfo, which is what it stays when nobody has ended.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        let look = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        // SAFETY: the kernel writes to `info` only.
        let (looked, pid) = unsafe {
            let looked = libc::waitid(libc::P_ALL, 0, &mut info, look | libc::__WALL);
            (looked, info.si_pid())
        };
        if looked != 0 || pid == 0 || pid == command.as_raw_nonzero().get() {
            return;
        }
        let options = libc::WEXITED | libc::WNOHANG | libc::__WALL;
        // SAFETY: as above.
        if unsafe { libc::waitid(libc::P_PID, pid.cast_unsigned(), &mut info, options) } != 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_handles_the_signal_is_an_init() {
        let status = |blocked, ignored, caught| {
            format!("Name:\tx\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n")
        };
        let child = 1_u64 << 16;
        assert!(!handles_child_ends(&status(0, 0x1000, 0x4e8)));
        assert!(handles_child_ends(&status(child, 0, 0)));
        assert!(handles_child_ends(&status(0, child, 0)));
        assert!(handles_child_ends(&status(0, 0, child | 2)));
    }
}
