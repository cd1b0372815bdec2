//! Reads and writes through a few blocking threads, for sandboxes that refuse io_uring.
//!
//! The threads come from the caller, because they must be made like the engine's own and not by the
//! standard library. One thread queues and reaps, several work. Requests travel through a ring of
//! slot numbers that any worker may take from, ends through a list that the reaping thread takes as
//! a whole; both need no lock. Workers sleep on a futex, the reaping thread on an eventfd, which is
//! written only when the list was empty, so a busy queue costs few system calls.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::thread::futex;

use super::transfer::{Direction, Transfer, Verdict};
use super::{Completion, Io, IoError, IoVec, MAX_DEPTH, QueueError};

/// More threads than this only compete: a disk of a sandboxed machine is busy with four.
const MAX_WORKERS: usize = 16;
/// End of the list of ended slots.
const NONE: u32 = u32::MAX;

/// The caller's closure could not start a thread; it says why itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread was refused: errno {0}")]
pub struct SpawnRefused(pub i32);

/// The pool could not be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolError {
    /// No eventfd for the completions.
    #[error("no event descriptor for the I/O threads: errno {errno} ({})", crate::errno::describe(*.errno))]
    Event {
        /// What `eventfd` answered.
        errno: i32,
    },
    /// Not a single I/O thread could be started.
    #[error("no I/O thread could be started: {0}")]
    Spawn(#[from] SpawnRefused),
    /// A pool without threads would never complete anything.
    #[error("a pool needs at least one thread")]
    NoWorkers,
}

/// What one I/O thread runs: `entry(argument)`, exactly once, on a thread that shares memory and
/// descriptors with the pool's. It returns after the pool was dropped. If the thread cannot be
/// started, drop the `Worker`.
pub struct Worker {
    shared: Arc<Shared>,
}

impl Worker {
    /// Runs the thread's work on the calling thread, until the pool is dropped.
    pub fn run(self) {
        self.shared.work();
    }

    /// For raw clones: a function and its argument. The argument must be passed to the function
    /// exactly once, or back to [`Worker::from_raw`].
    pub fn into_raw(self) -> (unsafe extern "C" fn(*mut c_void), *mut c_void) {
        (worker_entry, Arc::into_raw(self.shared).cast_mut().cast())
    }

    /// Undoes [`Worker::into_raw`], for a thread that could not be started.
    ///
    /// # Safety
    /// `argument` comes from `into_raw` and was not used since.
    pub unsafe fn from_raw(argument: *mut c_void) -> Self {
        // SAFETY: by this function's contract it is the pointer that `Arc::into_raw` gave.
        let shared = unsafe { Arc::from_raw(argument.cast_const().cast::<Shared>()) };
        Worker { shared }
    }
}

unsafe extern "C" fn worker_entry(argument: *mut c_void) {
    // SAFETY: `into_raw` handed out the argument, and its contract says it is used once.
    unsafe { Worker::from_raw(argument) }.run();
}

struct Slot {
    transfer: UnsafeCell<Transfer>,
    result: UnsafeCell<Result<(), IoError>>,
    /// The next slot in the list of ended ones; written before the slot is pushed.
    next: AtomicU32,
}

struct Shared {
    slots: Box<[Slot]>,
    /// Slot numbers handed to the workers: a ring as long as there are slots, so it cannot overrun.
    queue: Box<[AtomicU32]>,
    head: AtomicU64,
    tail: AtomicU64,
    /// The futex: changes with every flush.
    bell: AtomicU32,
    sleepers: AtomicU32,
    stop: AtomicBool,
    /// First of the ended slots that were not reaped yet, or `NONE`.
    ended: AtomicU32,
    /// Pushes onto an empty list: each is followed by adding one to the eventfd.
    notices: AtomicU64,
    event: OwnedFd,
}

// SAFETY: a slot's cells belong to one thread at a time: the queueing thread until `tail` passes
// the slot's entry, the worker whose exchange of `head` won it until it pushed the slot onto `ended`, then
// again the queueing thread, which takes that list. Each handover is a release/acquire pair. The raw
// pointers inside `Transfer` are the caller's memory, lent by `Io`'s contract.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    /// Takes the oldest queued slot.
    fn take(&self) -> Option<u32> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            if head == self.tail.load(Ordering::Acquire) {
                return None;
            }
            let index = self.queue[head as usize % self.queue.len()].load(Ordering::Relaxed);
            match self.head.compare_exchange_weak(
                head,
                head + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some(index),
                Err(seen) => head = seen,
            }
        }
    }

    fn work(&self) {
        loop {
            let bell = self.bell.load(Ordering::SeqCst);
            while let Some(index) = self.take() {
                self.carry_out(index);
            }
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.sleepers.fetch_add(1, Ordering::SeqCst);
            // Any answer is fine: woken, interrupted, or the bell rang meanwhile.
            let _ = futex::wait(&self.bell, futex::Flags::PRIVATE, bell, None);
            self.sleepers.fetch_sub(1, Ordering::SeqCst);
        }
    }

    fn carry_out(&self, index: u32) {
        let slot = &self.slots[index as usize];
        // SAFETY: `take` gave this slot to this thread alone.
        let transfer = unsafe { &mut *slot.transfer.get() };
        let result = loop {
            match transfer.on_result(one_step(transfer)) {
                Verdict::Again => {}
                Verdict::Ended(result) => break result,
            }
        };
        // SAFETY: as above.
        unsafe { *slot.result.get() = result };
        let mut first = self.ended.load(Ordering::Relaxed);
        loop {
            slot.next.store(first, Ordering::Relaxed);
            match self.ended.compare_exchange_weak(
                first,
                index,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(seen) => first = seen,
            }
        }
        if first == NONE {
            self.notices.fetch_add(1, Ordering::AcqRel);
            // Fails only when the counter is about to overflow, and then it is readable anyway.
            let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
        }
    }
}

/// One blocking system call; the answer in the kernel's form.
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
    shared: Arc<Shared>,
    areas: Vec<RawFd>,
    free: Vec<u32>,
    /// Queued since the last flush; the workers cannot see these yet.
    unflushed: u64,
    /// How much of `notices` was read from the eventfd.
    heard: u64,
    /// The list of ended slots is newest first; turned round here.
    order: Vec<u32>,
}

impl Pool {
    /// A pool over open files, for up to `depth` (at most [`MAX_DEPTH`]) transfers at once. `spawn`
    /// is called `workers` times and starts a thread each that runs the [`Worker`]. When some but
    /// not all can be started, the pool works with those.
    pub fn new(
        areas: &[RawFd],
        depth: u32,
        workers: usize,
        mut spawn: impl FnMut(Worker) -> Result<(), SpawnRefused>,
    ) -> Result<Self, PoolError> {
        if workers == 0 {
            return Err(PoolError::NoWorkers);
        }
        let depth = depth.clamp(1, MAX_DEPTH);
        let event =
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(|errno| {
                PoolError::Event {
                    errno: errno.raw_os_error(),
                }
            })?;
        let slots = (0..depth)
            .map(|_| Slot {
                transfer: UnsafeCell::new(Transfer::idle()),
                result: UnsafeCell::new(Ok(())),
                next: AtomicU32::new(NONE),
            })
            .collect();
        let shared = Arc::new(Shared {
            slots,
            queue: (0..depth).map(|_| AtomicU32::new(NONE)).collect(),
            head: AtomicU64::new(0),
            tail: AtomicU64::new(0),
            bell: AtomicU32::new(0),
            sleepers: AtomicU32::new(0),
            stop: AtomicBool::new(false),
            ended: AtomicU32::new(NONE),
            notices: AtomicU64::new(0),
            event,
        });
        for started in 0..workers.min(MAX_WORKERS) {
            let worker = Worker {
                shared: Arc::clone(&shared),
            };
            match spawn(worker) {
                Ok(()) => {}
                Err(refused) if started == 0 => return Err(refused.into()),
                Err(_) => break,
            }
        }
        Ok(Pool {
            shared,
            areas: areas.to_vec(),
            free: (0..depth).rev().collect(),
            unflushed: 0,
            heard: 0,
            order: Vec::with_capacity(depth as usize),
        })
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
        let index = self.free.pop().ok_or(QueueError::Full)?;
        let slot = &self.shared.slots[index as usize];
        // SAFETY: the slot was free, so no worker has it.
        let transfer = unsafe { &mut *slot.transfer.get() };
        transfer.begin(direction, token, fd, offset, wanted, iov);
        let at = self.shared.tail.load(Ordering::Relaxed) + self.unflushed;
        self.shared.queue[at as usize % self.shared.queue.len()].store(index, Ordering::Relaxed);
        self.unflushed += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), IoError> {
        if self.unflushed == 0 {
            return Ok(());
        }
        let wake = u32::try_from(self.unflushed).unwrap_or(MAX_DEPTH);
        self.shared.tail.fetch_add(self.unflushed, Ordering::AcqRel);
        self.unflushed = 0;
        self.shared.bell.fetch_add(1, Ordering::SeqCst);
        if self.shared.sleepers.load(Ordering::SeqCst) > 0 {
            futex::wake(&self.shared.bell, futex::Flags::PRIVATE, wake)
                .map_err(IoError::from_errno)?;
        }
        Ok(())
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        if self.shared.notices.load(Ordering::Acquire) != self.heard {
            let mut count = [0u8; 8];
            // Empty when the worker is between its push and its write; the next call hears it.
            if rustix::io::read(&self.shared.event, &mut count) == Ok(8) {
                self.heard += u64::from_ne_bytes(count);
            }
        }
        // After the eventfd was cleared: what is pushed from here on rings again.
        let mut index = self.shared.ended.swap(NONE, Ordering::AcqRel);
        while index != NONE {
            self.order.push(index);
            index = self.shared.slots[index as usize]
                .next
                .load(Ordering::Relaxed);
        }
        while let Some(index) = self.order.pop() {
            let slot = &self.shared.slots[index as usize];
            // SAFETY: the worker gave the slot back by pushing it onto the list just taken.
            let (token, result) = unsafe { ((*slot.transfer.get()).token, *slot.result.get()) };
            self.free.push(index);
            out.push(Completion { token, result });
        }
    }

    fn wait(&mut self) -> Result<(), IoError> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        self.flush()?;
        while self.shared.ended.load(Ordering::Acquire) == NONE {
            let mut fds = [PollFd::from_borrowed_fd(
                self.shared.event.as_fd(),
                PollFlags::IN,
            )];
            match poll(&mut fds, None) {
                Ok(_) => {
                    let mut count = [0u8; 8];
                    if self.shared.ended.load(Ordering::Acquire) == NONE
                        && rustix::io::read(&self.shared.event, &mut count) == Ok(8)
                    {
                        self.heard += u64::from_ne_bytes(count);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(IoError::from_errno(error)),
            }
        }
        Ok(())
    }

    fn poll_fd(&self) -> RawFd {
        self.shared.event.as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.shared.slots.len() - self.free.len()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        super::set_file(&mut self.areas, area, fd);
    }

    fn name(&self) -> &'static str {
        "threads"
    }
}

impl Drop for Pool {
    /// Lets the workers finish what is in flight, since they write to the callers' memory, and then
    /// sends them home. They hold the shared part until they have left.
    fn drop(&mut self) {
        let mut ended = Vec::with_capacity(self.in_flight());
        while self.in_flight() > 0 && self.wait().is_ok() {
            self.reap(&mut ended);
        }
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.bell.fetch_add(1, Ordering::SeqCst);
        let _ = futex::wake(&self.shared.bell, futex::Flags::PRIVATE, u32::MAX / 2);
    }
}
