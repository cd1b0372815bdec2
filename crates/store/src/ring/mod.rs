//! Asynchronous reads and writes of swap areas, for the engine's threads.
//!
//! One trait, [`Io`], and two backends: [`Uring`] for kernels that allow io_uring, [`Pool`] (a few
//! `pread`/`pwrite` threads) for sandboxes that refuse it. Both give the same promises: a transfer
//! completes exactly once; short transfers are continued and interrupted ones retried here, never
//! by the caller; the end of the file is an error and not zeros; nobody's result goes unread.
//!
//! The callers are threads without the C library's thread state: nothing here may panic, print,
//! need `errno` or a destructor of a thread-local. After construction nothing is allocated, except
//! that a slot's vector grows once to the longest request it has carried.

mod handoff;
mod helpers;
mod pool;
mod ram;
mod transfer;
mod uring;

pub use helpers::{Hash, Helper, Helpers, MOST_HELPERS, Spawn};
pub use pool::{Pool, PoolError, SpawnRefused, Worker};
pub use ram::{IsUsed, Port, Refusal, WithRam};
pub use transfer::Direction;
pub use uring::{SetupFlags, Uring, UringUnavailable};

use std::os::fd::RawFd;

use crate::errno;

/// In the place of a file that an area number does not have.
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

/// The most transfers a backend accepts at once. A disk is saturated long before; the bound keeps
/// the tables small and turns a caller that never reaps into an error.
pub const MAX_DEPTH: u32 = 256;

/// One piece of memory that a transfer fills or drains. Same layout as the kernel's `iovec`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct IoVec {
    /// First byte. For areas opened with `O_DIRECT` aligned to 4 KiB.
    pub ptr: *mut u8,
    /// Bytes; with `O_DIRECT` a multiple of 4 KiB.
    pub len: usize,
}

/// A transfer that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The token that the transfer was queued with.
    pub token: u64,
    /// `Ok` only when every byte was transferred.
    pub result: Result<(), IoError>,
}

/// Why a transfer failed. Carries no text of the C library's: see `errno`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The kernel's refusal.
    #[error("errno {errno} ({})", errno::describe(*.errno))]
    Os {
        /// The positive errno value.
        errno: i32,
    },
    /// The area ended in the middle: it was truncated, or the offset is beyond it.
    #[error("the area ended after {done} of {wanted} bytes")]
    Short {
        /// Bytes that were transferred.
        done: u64,
        /// Bytes that were asked for.
        wanted: u64,
    },
    /// A RAM area did not take all pages of a write; the others are where they should be.
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
    /// As many transfers are in flight as the backend has room for: flush, reap, try again.
    #[error("the I/O queue is full")]
    Full,
    /// No area of this number was given or added.
    #[error("there is no swap area number {0}")]
    NoSuchArea(usize),
    /// The request names no memory at all, or more bytes than a file offset can count.
    #[error("the request is empty or longer than a file can be")]
    BadLength,
}

/// Queues transfers and hands back their completions. One thread uses it at a time; `Uring` stays
/// with the thread that made it. A forked child has neither the ring's memory nor the pool's threads:
/// it must forget (`std::mem::forget`) its copy of a backend, not use or drop it.
///
/// To sleep less, call [`Io::reap`] in a loop for a while before sleeping on [`Io::poll_fd`]: waking a
/// sleeper costs a third of a fast disk's latency.
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

    /// Starts everything that is queued, with one system call where the kernel takes it at once.
    /// After an error what was not taken stays queued: flush again later.
    fn flush(&mut self) -> Result<(), IoError>;

    /// Appends the transfers that have ended to `out`, in the order of their ends. Makes no system
    /// call when none has ended. Reserve [`MAX_DEPTH`] in `out` once and it never allocates.
    fn reap(&mut self, out: &mut Vec<Completion>);

    /// Whether [`Io::reap`] has something to do, as far as memory tells. Makes no system call.
    fn has_ended(&mut self) -> bool;

    /// Blocks until a completion can be reaped or `poll_fd` would be readable. Returns at once when
    /// nothing is in flight. Starts what is queued.
    fn wait(&mut self) -> Result<(), IoError>;

    /// Readable (`POLLIN`) when [`Io::reap`] may find something. Level-triggered.
    fn poll_fd(&self) -> RawFd;

    /// Transfers queued or started whose completion has not been reaped.
    fn in_flight(&self) -> usize;

    /// Makes an open file reachable as area number `area`, or (`None`) takes a number away. The file
    /// stays open as long as it is reachable, and no transfer of the area may be in flight.
    fn set_area(&mut self, area: usize, fd: Option<RawFd>);

    /// Names the backend in messages: `io_uring` or `threads`.
    fn name(&self) -> &'static str;
}
