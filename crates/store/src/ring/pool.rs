//! Reads and writes through a few blocking threads, for sandboxes that refuse io_uring.
//!
//! The caller provides the threads, because they must be created like the engine's own and not by the standard
//! library. One thread queues and reaps, several work.

use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::handoff::{Hand, Handoff};
use super::transfer::{Direction, Transfer, Verdict};
use super::{Completion, Io, IoError, IoVec, MAX_DEPTH, QueueError};

/// More threads than this only compete: four keep the disk of a sandboxed machine busy.
const MAX_WORKERS: usize = 16;

/// The caller's closure could not start a thread, and reports the reason itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread was refused: errno {0}")]
pub struct SpawnRefused(pub i32);

/// The pool could not be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No eventfd for the completions.
    #[error("no event descriptor for the I/O threads: errno {errno} ({})", crate::errno::describe(*.errno))]
    Event {
        /// The error of `eventfd`.
        errno: i32,
    },
    /// Not a single I/O thread could be started.
    #[error("no I/O thread could be started: {0}")]
    Spawn(#[from] SpawnRefused),
    /// A pool without threads would never complete anything.
    #[error("a pool needs at least one thread")]
    NoWorkers,
}

/// The work of one I/O thread: `entry(argument)`, exactly once, on a thread that shares memory and descriptors with
/// the pool's. It returns after the pool was dropped. If the thread cannot be started, drop the `Worker`.
pub struct Worker(Hand<Call>);

impl Worker {
    /// Runs the thread's work on the calling thread, until the pool is dropped.
    pub fn run(self) {
        self.0.run(Call::carry_out);
    }

    /// For raw clones: a function and its argument. The argument must be passed to the function
    /// exactly once, or back to [`Worker::from_raw`].
    pub fn into_raw(self) -> (unsafe extern "C" fn(*mut c_void), *mut c_void) {
        (worker_entry, Box::into_raw(Box::new(self)).cast())
    }

    /// Undoes [`Worker::into_raw`], for a thread that could not be started.
    ///
    /// # Safety
    /// `argument` comes from `into_raw` and was not used since.
    pub unsafe fn from_raw(argument: *mut c_void) -> Self {
        // SAFETY: by this function's contract it is the pointer that the box gave.
        *unsafe { Box::from_raw(argument.cast()) }
    }
}

unsafe extern "C" fn worker_entry(argument: *mut c_void) {
    // SAFETY: `into_raw` handed out the argument, and its contract says it is used once.
    unsafe { Worker::from_raw(argument) }.run();
}

/// The content of a slot.
struct Call {
    transfer: Transfer,
    result: Result<(), IoError>,
}

impl Call {
    fn carry_out(&mut self) {
        self.result = loop {
            match self.transfer.on_result(one_step(&self.transfer)) {
                Verdict::Again => {}
                Verdict::Ended(result) => break result,
            }
        };
    }
}

/// One blocking system call; its result in the kernel's form.
fn one_step(transfer: &Transfer) -> i32 {
    // SAFETY: `Io::set_area` and the constructor require the file to stay open. A closed one gives
    // EBADF.
    let fd = unsafe { BorrowedFd::borrow_raw(transfer.fd) };
    let offset = transfer.offset();
    let pieces = transfer.step();
    let answer = match (transfer.direction, pieces) {
        (Direction::Read, [piece]) => {
            let len = Transfer::single_len(piece);
            // SAFETY: the memory was lent for this transfer (`Io::read`).
            let buffer =
                unsafe { std::slice::from_raw_parts_mut(piece.ptr.cast::<MaybeUninit<u8>>(), len) };
            rustix::io::pread(fd, buffer, offset).map(|(filled, _)| filled.len())
        }
        (Direction::Write, [piece]) => {
            let len = Transfer::single_len(piece);
            // SAFETY: the memory was lent for this transfer (`Io::write`).
            let buffer = unsafe { std::slice::from_raw_parts(piece.ptr, len) };
            rustix::io::pwrite(fd, buffer, offset)
        }
        (Direction::Read, pieces) => {
            // SAFETY: `IoSliceMut` is documented to have the layout of iovec, as `IoVec` has; the
            // memory is lent to this thread alone. Only the kernel looks at the mutable pieces.
            let buffers = unsafe {
                std::slice::from_raw_parts_mut(
                    pieces.as_ptr().cast_mut().cast::<IoSliceMut<'_>>(),
                    pieces.len(),
                )
            };
            rustix::io::preadv(fd, buffers, offset)
        }
        (Direction::Write, pieces) => {
            // SAFETY: as above.
            let buffers = unsafe {
                std::slice::from_raw_parts(pieces.as_ptr().cast::<IoSlice<'_>>(), pieces.len())
            };
            rustix::io::pwritev(fd, buffers, offset)
        }
    };
    match answer {
        Ok(bytes) => i32::try_from(bytes).unwrap_or(i32::MAX),
        Err(errno) => -errno.raw_os_error(),
    }
}

/// The backend of blocking threads.
pub struct Pool {
    calls: Handoff<Call>,
    areas: Vec<RawFd>,
}

impl Pool {
    /// A pool over open files, for up to `depth` (at most [`MAX_DEPTH`]) transfers at once. `spawn` is called
    /// `workers` times, and each time starts a thread that runs the [`Worker`]. If only some can be started, the pool
    /// works with those.
    pub fn new(
        areas: &[RawFd],
        depth: u32,
        workers: usize,
        mut spawn: impl FnMut(Worker) -> Result<(), SpawnRefused>,
    ) -> Result<Self, PoolError> {
        if workers == 0 {
            return Err(PoolError::NoWorkers);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags).map_err(|errno| PoolError::Event {
            errno: errno.raw_os_error(),
        })?;
        let idle = |_| Call {
            transfer: Transfer::idle(),
            result: Ok(()),
        };
        let calls = Handoff::new((0..depth.clamp(1, MAX_DEPTH)).map(idle), event);
        for started in 0..workers.min(MAX_WORKERS) {
            match spawn(Worker(calls.hand())) {
                Ok(()) => {}
                Err(refused) if started == 0 => return Err(refused.into()),
                Err(_) => break,
            }
        }
        let areas = areas.to_vec();
        Ok(Pool { calls, areas })
    }
}

impl Io for Pool {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        let fd = super::file_of(&self.areas, area)?;
        let wanted = Transfer::length_of(offset, iov)?;
        let queued = self.calls.fill(|call| {
            let transfer = &mut call.transfer;
            transfer.begin(direction, token, fd, offset, wanted, iov);
            // The result if the worker panics.
            call.result = Err(IoError::from_errno(Errno::IO));
        });
        queued.then_some(()).ok_or(QueueError::Full)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.calls.flush().map_err(IoError::from_errno)
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        // Before the list is taken: later pushes ring again.
        self.calls.hear();
        self.calls.reap();
        out.extend(self.calls.reaped().map(|call| Completion {
            token: call.transfer.token,
            result: call.result,
        }));
        self.calls.put_back();
    }

    fn has_ended(&mut self) -> bool {
        self.calls.has_ended()
    }

    fn wait(&mut self) -> Result<(), IoError> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        self.flush()?;
        while !self.calls.has_ended() {
            let mut fds = [PollFd::from_borrowed_fd(self.calls.event(), PollFlags::IN)];
            match poll(&mut fds, None) {
                Ok(_) if self.calls.has_ended() => {}
                Ok(_) => self.calls.hear(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(IoError::from_errno(error)),
            }
        }
        Ok(())
    }

    fn poll_fd(&self) -> RawFd {
        self.calls.event().as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.calls.in_flight()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        super::set_file(&mut self.areas, area, fd);
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

impl Drop for Pool {
    /// Lets the workers finish transfers in flight, which use the callers' memory.
    fn drop(&mut self) {
        let mut ended = Vec::with_capacity(self.in_flight());
        while self.in_flight() > 0 && self.wait().is_ok() {
            self.reap(&mut ended);
        }
    }
}
