//! Why a call failed: the texts that users see, and the last one of each thread.

use core::cell::UnsafeCell;
use core::ffi::c_char;

use rustix::io::Errno;

/// The most bytes of a text, with its zero.
const BYTES: usize = 1024;

/// A failed call.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another one has opened it.
    #[error(
        "the engine of this process is open already, with other options ({now}); foreswap_set_memory changes the limit"
    )]
    OtherOptions {
        /// Those.
        now: String,
    },
    /// The options are too long.
    #[error("the options have {bytes} bytes, and at most {most} are possible")]
    LongOptions {
        /// Their length.
        bytes: usize,
        /// The most.
        most: usize,
    },
    /// It is not open.
    #[error("the engine of this process is not open; call foreswap_open first")]
    NotOpen,
    /// There is no `foreswap`.
    #[error(
        "the command `foreswap` was not found beside {library}, in the folder bin above it, or on PATH; install it, or \
         name it by the variable FORESWAP_COMMAND"
    )]
    NoCommand {
        /// This library.
        library: String,
    },
    /// It does not start.
    #[error(
        "the command {command} could not be started: {why}; try `{command} --version`, or name another `foreswap` by the \
         variable FORESWAP_COMMAND"
    )]
    NotStarted {
        /// The command.
        command: String,
        /// The evidence.
        why: String,
    },
    /// It refused, for this reason.
    #[error("{0}")]
    Refused(String),
    /// A system call failed.
    #[error("{what} failed: {errno}")]
    System {
        /// Its name.
        what: &'static str,
        /// The error.
        errno: Errno,
    },
    /// A region cannot have this size.
    #[error("a region of {bytes} bytes is not possible; expected 1 byte to 64 TiB")]
    Size {
        /// The size.
        bytes: usize,
    },
    /// No address space.
    #[error(
        "no room for a region of {bytes} bytes in this process: {errno} (`ulimit -v`, `vm.overcommit_memory`)"
    )]
    NoRoom {
        /// The size.
        bytes: usize,
        /// The error.
        errno: Errno,
    },
    /// The table is full.
    #[error(
        "this process has {most} regions, the most that are possible; unmap some, or use fewer and larger ones"
    )]
    TooMany {
        /// The bound.
        most: usize,
    },
    /// It was killed, or no process could be started.
    #[error(
        "no engine could be started beside this process: it was killed, or this process may not start another \
         (`ulimit -u`, a seccomp filter, an unshared PID namespace); `foreswap doctor` says more"
    )]
    NoEngine,
    /// The engine is not there, or cannot register the memory.
    #[error("the engine does not manage this memory: {why}")]
    Unmanaged {
        /// The evidence.
        why: String,
    },
    /// An address that is not one of a region.
    #[error(
        "{at:#x} is not the address of a region; expected what foreswap_map has returned, once"
    )]
    NoRegion {
        /// The address.
        at: usize,
    },
    /// The child of a fork past the C library.
    #[error(
        "this process has no regions: it was forked past the C library, by a process that the kernel does not tell of \
         such forks; use fork(), or use no region in this child"
    )]
    Lacks,
    /// Advice beyond a region.
    #[error("{at:#x} and {bytes} bytes behind it are not inside of a region")]
    NotInside {
        /// The address.
        at: usize,
        /// The length.
        bytes: usize,
    },
    /// An unknown number.
    #[error("{0} is no advice; expected one of enum foreswap_advice")]
    NoAdvice(i32),
    /// Part of a page cannot be discarded.
    #[error(
        "{at:#x} and {bytes} bytes are not whole pages of 4096 bytes, and only those can be discarded"
    )]
    NotPages {
        /// The address.
        at: usize,
        /// The length.
        bytes: usize,
    },
    /// No limit was given.
    #[error("no size was given; expected a limit such as \"1G\"")]
    NoSize,
    /// The process is one of a run.
    #[error(
        "this process runs under `foreswap run`, which manages all of its memory; `foreswap ps` and `foreswap set` \
         show and change it"
    )]
    UnderRun,
    /// The supervisor has no control socket, or does not answer.
    #[error("the supervisor of this process does not answer: {0}")]
    Silent(String),
}

struct Last(UnsafeCell<[u8; BYTES]>);

thread_local! {
    /// Without a destructor, and not on the heap, of which a forked child has no copy.
    static LAST: Last = const { Last(UnsafeCell::new([0; BYTES])) };
}

/// The calling thread's call failed.
pub fn note(error: &Error) {
    let text = error.to_string();
    // A zero would end it.
    let bytes = text.bytes().filter(|&byte| byte != 0).chain([0]);
    LAST.with(|last| {
        // SAFETY: only this thread reaches it, and nobody holds a reference.
        let last = unsafe { &mut *last.0.get() };
        for (at, byte) in last[..BYTES - 1].iter_mut().zip(bytes) {
            *at = byte;
        }
    });
}

/// The text; it stays until the thread's next failure.
pub fn last() -> *const c_char {
    LAST.with(|last| last.0.get().cast_const().cast())
}
