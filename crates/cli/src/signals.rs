//! The supervisor's signals: signals that could end or stop it are read from a descriptor, and those meant for the
//! command are passed on.
//!
//! The command is in the supervisor's process group and on its terminal. Signals from the terminal (Ctrl-C, a
//! hang-up) and signals to the whole group reach it anyway. The kernel marks the former; passing them on would double
//! them. A signal sent to the supervisor alone is meant for the command.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::process::Pid;

/// A received signal.
#[derive(Clone, Copy, Debug)]
pub struct Arrived {
    /// Its number.
    pub signal: i32,
    /// Sent by the kernel for the terminal, not by a process.
    by_kernel: bool,
    sender: u32,
}

impl Arrived {
    /// Whether to pass it to the command: neither a signal that the command got from the terminal, nor one that the
    /// command sent itself (to its group, and so here).
    pub fn is_for(&self, command: Pid) -> bool {
        let own = self.sender == command.as_raw_nonzero().get().cast_unsigned();
        !self.by_kernel && !own && self.signal != libc::SIGCHLD
    }
}

/// Blocked signals, read as they arrive.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
    before: libc::sigset_t,
}

/// All signals that a process sends to another. Not those raised by faults of this process, and not SIGKILL and
/// SIGSTOP, which cannot be blocked.
fn taken() -> libc::sigset_t {
    let mut set = empty();
    let named = [
        libc::SIGHUP,
        libc::SIGABRT,
        libc::SIGURG,
        libc::SIGWINCH,
        libc::SIGINT,
        libc::SIGQUIT,
        libc::SIGUSR1,
        libc::SIGUSR2,
        libc::SIGALRM,
        libc::SIGTERM,
        libc::SIGCHLD,
        libc::SIGCONT,
        libc::SIGTSTP,
        libc::SIGTTIN,
        libc::SIGTTOU,
        libc::SIGVTALRM,
        libc::SIGPROF,
        libc::SIGIO,
        libc::SIGPWR,
        libc::SIGSTKFLT,
    ];
    for signal in named.into_iter().chain(libc::SIGRTMIN()..=libc::SIGRTMAX()) {
        // SAFETY: `set` is initialised, and the numbers are signals.
        unsafe { libc::sigaddset(&mut set, signal) };
    }
    set
}

fn empty() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset initialises the set.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        set.assume_init()
    }
}

fn set_mask(set: &libc::sigset_t) -> libc::sigset_t {
    let mut before = empty();
    // SAFETY: both sets are initialised; allowed after fork.
    unsafe { libc::sigprocmask(libc::SIG_SETMASK, set, &mut before) };
    before
}

impl Signals {
    /// Blocks and reads the signals from here on.
    pub fn take() -> io::Result<Self> {
        let set = taken();
        let mut before = empty();
        // SAFETY: both sets are initialised.
        unsafe { libc::sigprocmask(libc::SIG_BLOCK, &set, &mut before) };
        // SAFETY: a new descriptor for an initialised set.
        let fd = unsafe { libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, nobody else's.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, before })
    }

    /// The next one; `None` if there is none.
    pub fn next(&self) -> Option<Arrived> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is as long as said.
        let got = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if got != size.cast_signed() {
            return None;
        }
        // SAFETY: the kernel filled it, and every bit pattern is valid.
        let info = unsafe { info.assume_init() };
        Some(Arrived {
            signal: info.ssi_signo.cast_signed(),
            by_kernel: info.ssi_code == libc::SI_KERNEL,
            sender: info.ssi_pid,
        })
    }

    /// The supervisor's original mask, which the child restores before exec.
    pub fn inherited_mask(&self) -> InheritedMask {
        InheritedMask(self.before)
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// See [`Signals::inherited_mask`].
#[derive(Clone, Copy)]
pub struct InheritedMask(libc::sigset_t);

impl InheritedMask {
    /// Permitted after fork.
    pub fn restore(&self) {
        set_mask(&self.0);
    }
}

/// Sends a signal to the command; it is no error if the command is gone.
pub fn pass_on(command: Pid, signal: i32) {
    // SAFETY: kill touches no memory.
    unsafe { libc::kill(command.as_raw_nonzero().get(), signal) };
}

/// Lets `signal` have its default effect on this process: stops it (and returns when it continues), or ends it.
/// Returns at once if the signal has no such effect.
pub fn suffer(signal: i32) {
    let mut only = empty();
    // SAFETY: the default action is not a function; the set is initialised; raise touches no memory.
    let (before, handler) = unsafe {
        let handler = libc::signal(signal, libc::SIG_DFL);
        libc::sigaddset(&mut only, signal);
        libc::raise(signal);
        let mut before = empty();
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, &mut before);
        (before, handler)
    };
    set_mask(&before);
    // SAFETY: the previous handler.
    unsafe { libc::signal(signal, handler) };
}
