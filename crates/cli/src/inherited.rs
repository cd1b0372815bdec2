//! State of the process at its start, for the command: Rust's runtime changes a part of it before `main`, and
//! foreswap changes another after.
//!
//! The runtime ignores SIGPIPE and opens /dev/null in place of missing standard streams. A constructor that runs
//! before it records the original state.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use foreswap::ledger::MAX_PROCESSES;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::sessions::{DESCRIPTORS, SPARE};

const PIPE_IGNORED: u32 = 1 << 3;
const CHILD_IGNORED: u32 = 1 << 4;

/// Bits 0 to 2: that standard stream was closed. Above them: signals that were ignored.
static STATE: AtomicU32 = AtomicU32::new(0);

extern "C" fn note() {
    let mut state = 0;
    for fd in 0..3 {
        // SAFETY: F_GETFD only asks.
        if unsafe { libc::fcntl(fd, libc::F_GETFD) } == -1 {
            state |= 1 << fd;
        }
    }
    for (signal, bit) in [
        (libc::SIGPIPE, PIPE_IGNORED),
        (libc::SIGCHLD, CHILD_IGNORED),
    ] {
        // SAFETY: all zeros is a valid sigaction, and the call with a null new action only asks.
        let handler = unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &mut action);
            action.sa_sigaction
        };
        if handler == libc::SIG_IGN {
            state |= bit;
        }
    }
    STATE.store(state, Relaxed);
}

// SAFETY: the loader calls the entries of .init_array as functions of this type; this one needs
// nothing of the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

/// Descriptors that the supervisor may need: for the processes of a run, and a quarter to look at their memory.
const FILES: u64 = (MAX_PROCESSES * DESCRIPTORS + SPARE).div_ceil(3) as u64 * 4;
/// The original limit of open files, for the command.
static FILES_BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// The limit of descriptors that the supervisor gives itself, if it began with `limit`.
pub fn most_files(limit: Rlimit) -> Option<u64> {
    let most = limit.maximum.unwrap_or(FILES).min(FILES);
    limit.current.map(|current| current.max(most))
}

/// Raises the supervisor's limit of descriptors to the number for the most managed processes, if permitted.
pub fn allow_files() {
    let before = getrlimit(Resource::Nofile);
    let current = most_files(before);
    if before.current != current && FILES_BEFORE.set(before).is_ok() {
        let raised = Rlimit { current, ..before };
        // Not refused below the hard limit; otherwise a large run would lack descriptors.
        let _ = setrlimit(Resource::Nofile, raised);
    }
}

/// The state before `main`.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    /// Standard streams that were closed.
    closed: [bool; 3],
    pipe_ignored: bool,
    child_ignored: bool,
    files: Option<Rlimit>,
}

impl Inherited {
    /// As recorded by the constructor.
    pub fn at_start() -> Self {
        let state = STATE.load(Relaxed);
        Self {
            closed: [0, 1, 2].map(|fd| state & 1 << fd != 0),
            pipe_ignored: state & PIPE_IGNORED != 0,
            child_ignored: state & CHILD_IGNORED != 0,
            files: FILES_BEFORE.get().copied(),
        }
    }

    /// Restores it in the child, right before exec. Only calls that are permitted after fork.
    pub fn restore_in_child(&self) {
        for (signal, ignored) in [
            (libc::SIGPIPE, self.pipe_ignored),
            (libc::SIGCHLD, self.child_ignored),
        ] {
            let handler = if ignored {
                libc::SIG_IGN
            } else {
                libc::SIG_DFL
            };
            // SAFETY: neither is a function.
            unsafe { libc::signal(signal, handler) };
        }
        if let Some(files) = self.files {
            let _ = setrlimit(Resource::Nofile, files);
        }
        for (fd, closed) in (0..).zip(self.closed) {
            if closed {
                // SAFETY: it was opened by the runtime in place of a closed one, nobody else's.
                unsafe { libc::close(fd) };
            }
        }
    }
}

/// Resets SIGCHLD in this process: if it were ignored, the kernel would discard the command's exit status.
pub fn wait_for_children() {
    // SAFETY: the default action is not a function.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
}
