//! Asynchronous reads and writes of swap areas, for the engine's threads.
//!
//! One trait, [`Io`], and two backends: [`Uring`] for kernels that allow io_uring, [`Pool`] (a few `pread`/`pwrite`
//! threads) for sandboxes that refuse it. Both make the same guarantees: a transfer completes exactly once; short
//! transfers are continued and interrupted ones retried here, never by the caller; the end of the file is an error
//! and not zeros; every result is reported.
//!
//! The callers are threads without the C library's thread state: code here must not panic, print, or need `errno` or
//! a destructor of a thread-local. After construction nothing is allocated, except that a slot's vector grows once to
//! the longest request it has carried.

mod far;
mod handoff;
mod helpers;
mod pool;
mod ram;
mod sealed;
mod transfer;
mod uring;

pub use helpers::{Hash, Helper, Helpers, MOST_HELPERS, Spawn};
pub use pool::{Pool, PoolError, SpawnRefused, Worker};
pub use ram::{IsUsed, RamHandle, Refusal, WithRam};
pub use sealed::BUFFER_PAGES;
pub use transfer::Direction;
pub use uring::{SetupFlags, Uring, UringUnavailable};

use std::os::fd::RawFd;

use crate::errno;

/// In place of a file for an unused area number.
const NO_FILE: RawFd = -1;

fn file_of(areas: &[RawFd], area: usize) -> Result<RawFd, QueueError> {
    let fd = areas.get(area).copied().filter(|fd| *fd != NO_FILE);
    fd.ok_or(QueueError::NoSuchArea(area))
}

fn set_file(areas: &mut Vec<RawFd>, area: usize, fd: Option<RawFd>) {
    if areas.len() <= area {
        areas.resize(area + 1, NO_FILE);
    }
    areas[area] = fd.unwrap_or(NO_FILE);
}

/// The most transfers a backend accepts at once. A disk is saturated long before; the bound keeps the tables small
/// and turns a caller that never reaps into an error.
pub const MAX_DEPTH: u32 = 256;

/// One piece of memory for a transfer. Same layout as the kernel's `iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// First byte. For areas opened with `O_DIRECT` aligned to 4 KiB.
    pub ptr: *mut u8,
    /// Bytes; with `O_DIRECT` a multiple of 4 KiB.
    pub len: usize,
}

/// A completed transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token of its request.
    pub token: u64,
    /// `Ok` only when every byte was transferred.
    pub result: Result<(), IoError>,
}

/// Why a transfer failed. Contains no text of the C library: see `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The kernel's error.
    #[error("errno {errno} ({})", errno::describe(*.errno))]
    Os {
        /// The positive errno value.
        errno: i32,
    },
    /// The area ended in the middle: it was truncated, or the offset is beyond it.
    #[error("the area ended after {done} of {wanted} bytes")]
    Short {
        /// Bytes transferred.
        done: u64,
        /// Bytes requested.
        wanted: u64,
    },
    /// A RAM area refused some pages of a write; the others are stored.
    #[error("the RAM area has no room for the page, or it does not compress")]
    Refused(Refusal),
}

impl IoError {
    /// The errno to report onwards; a short transfer counts as `EIO`.
    pub fn errno(&self) -> i32 {
        match self {
            IoError::Os { errno } => *errno,
            IoError::Short { .. } => rustix::io::Errno::IO.raw_os_error(),
            IoError::Refused(_) => rustix::io::Errno::NOSPC.raw_os_error(),
        }
    }

    pub(crate) fn from_errno(errno: rustix::io::Errno) -> Self {
        IoError::Os {
            errno: errno.raw_os_error(),
        }
    }
}

/// A transfer was not queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QueueError {
    /// The backend has no room for another transfer: flush, reap, try again.
    #[error("the I/O queue is full")]
    Full,
    /// No area has this number.
    #[error("there is no swap area number {0}")]
    NoSuchArea(usize),
    /// The request names no memory, or more bytes than a file offset can count.
    #[error("the request is empty or longer than a file can be")]
    BadLength,
}

/// Queues transfers and returns their completions. One thread uses it at a time; `Uring` stays with the thread that
/// created it. A forked child has neither the ring's memory nor the pool's threads: it must forget
/// (`std::mem::forget`) its copy of a backend, not use or drop it.
///
/// To sleep less, call [`Io::reap`] in a loop for a while before sleeping on [`Io::poll_fd`]: waking a sleeper costs
/// a third of a fast disk's latency.
pub trait Io {
    /// Queues a read or a write of `area` at byte `offset`; see [`Io::read`] and [`Io::write`].
    ///
    /// # Safety
    /// As for these.
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError>;

    /// Queues a read of `area` from byte `offset` into the memory of `iov`, in order. Nothing is
    /// guaranteed to start before [`Io::flush`].
    ///
    /// # Safety
    /// The memory that `iov` names (not `iov` itself) stays mapped and unused by others until the
    /// token's completion was reaped or the backend was dropped.
    unsafe fn read(
        &mut self,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.start(Direction::Read, token, area, offset, iov) }
    }

    /// Queues a write of the memory of `iov`, in order, to `area` at byte `offset`.
    ///
    /// # Safety
    /// As for [`Io::read`], except that others may read the memory; if they write to it, what
    /// lands in the area is a mixture.
    unsafe fn write(
        &mut self,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.start(Direction::Write, token, area, offset, iov) }
    }

    /// Starts all queued transfers, with one system call if the kernel accepts them at once. After an error,
    /// transfers that were not accepted stay queued: flush again later.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Appends completed transfers to `out`, in the order of completion. Makes no system call if there are none.
    /// Reserve [`MAX_DEPTH`] in `out` once and it never allocates.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Whether [`Io::reap`] would find a completion, judged from memory without a system call.
    fn has_ended(&mut self) -> bool;

    /// Blocks until a completion can be reaped or `poll_fd` would be readable. Returns at once if nothing is in
    /// flight. Starts queued transfers.
    fn wait(&mut self) -> Result<(), IoError>;

    /// Readable (`POLLIN`) when [`Io::reap`] may find something. Level-triggered.
    fn poll_fd(&self) -> RawFd;

    /// Transfers queued or started whose completion has not been reaped.
    fn in_flight(&self) -> usize;

    /// Makes an open file available as area number `area`, or (`None`) removes the number. The file stays open
    /// meanwhile, and no transfer of the area may be in flight.
    fn set_area(&mut self, area: usize, fd: Option<RawFd>);

    /// Names the backend in messages: `io_uring` or `threads`.
    fn name(&self) -> &'static str;
}
