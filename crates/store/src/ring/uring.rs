//! Reads and writes through io_uring: one system call starts a whole batch, completions are read from shared memory
//! without any.
//!
//! The `io-uring` crate builds the ring with its `direct-syscall` feature: errors are returned as values and not
//! through `errno`, which the engine's threads have only in a thread block of foreswap's making. Only building and
//! dropping a ring calls the C library (mmap, madvise, close).
//!
//! Files are passed as plain descriptors and memory as plain addresses. Registered buffers would pin the frames, and
//! a pinned page cannot be moved to the program.

use std::marker::PhantomData;
use std::os::fd::{AsRawFd, RawFd};

use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;

use super::transfer::{Direction, Transfer, Verdict};
use super::{Completion, Io, IoError, IoVec, MAX_DEPTH, QueueError};
use crate::errno;

/// `IORING_ENTER_GETEVENTS`: run deferred work of the kernel, and wait on request.
const GETEVENTS: u32 = 1;
/// How often a batch is submitted again while the kernel says "not now".
const MAX_SUBMIT_RETRIES: u32 = 1024;

/// How the kernel delivers completions. Measured on Linux 6.18, one 4 KiB read at a time, sleeping in `poll` on the
/// ring: all three are within 2 us of each other and of a bare `pread`. The default does not interrupt a thread that
/// is busy with a fault.
///
/// `DEFER_TASKRUN` is left out on purpose. Polled instead of entered, such a ring stopped delivering on 6.18 after a
/// few hundred reads at most, with the disk idle (cause unknown; 60,000 reads in each of these modes did not), and
/// where it worked it was no faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SetupFlags {
    /// The kernel interrupts the thread to post a completion.
    Plain,
    /// `COOP_TASKRUN`: completions are posted at the thread's next entry to the kernel.
    Cooperative,
    /// `SINGLE_ISSUER`, and the completions as in `Cooperative`.
    #[default]
    SingleIssuer,
}

/// io_uring cannot be used here; the caller falls back to [`super::Pool`] and reports that once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("io_uring is not available: errno {errno} ({}); {}", errno::describe(*.errno), self.reason())]
pub struct UringUnavailable {
    /// The error of `io_uring_setup` or of the mapping of the ring.
    pub errno: i32,
}

impl UringUnavailable {
    fn from_io(error: &std::io::Error) -> Self {
        UringUnavailable {
            errno: error.raw_os_error().unwrap_or(0),
        }
    }

    /// The usual cause and the remedy.
    pub fn reason(&self) -> &'static str {
        match Errno::from_raw_os_error(self.errno.clamp(1, 4095)) {
            Errno::PERM | Errno::ACCESS => {
                "a sandbox's seccomp profile refuses it, or the sysctl kernel.io_uring_disabled is \
                 set; allow it there for full speed"
            }
            Errno::NOSYS => "the kernel was built without it, or a sandbox hides it",
            Errno::NOMEM => "not enough lockable memory; raise `ulimit -l`",
            Errno::MFILE | Errno::NFILE => "no file descriptor is left; raise `ulimit -n`",
            _ => "the kernel refuses the ring",
        }
    }
}

struct Slot {
    transfer: Transfer,
    busy: bool,
}

/// The io_uring backend. Stays with the thread that created it.
pub struct Uring {
    ring: IoUring,
    areas: Vec<RawFd>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    flags: SetupFlags,
    /// The kernel ties a single-issuer ring to one thread.
    _stays: PhantomData<*mut ()>,
}

impl Uring {
    /// A ring over open files, for up to `depth` (at most [`MAX_DEPTH`]) transfers at once. The
    /// files stay open as long as the ring lives. Call it on the thread that will use the ring.
    pub fn new(areas: &[RawFd], depth: u32) -> Result<Self, UringUnavailable> {
        let mut refusal = UringUnavailable { errno: 0 };
        for flags in [
            SetupFlags::default(),
            SetupFlags::Cooperative,
            SetupFlags::Plain,
        ] {
            match Self::with_flags(areas, depth, flags) {
                Err(error) if error.errno == Errno::INVAL.raw_os_error() => refusal = error,
                other => return other,
            }
        }
        Err(refusal)
    }

    /// As [`Uring::new`], with a chosen delivery of completions and no fallback.
    pub fn with_flags(
        areas: &[RawFd],
        depth: u32,
        flags: SetupFlags,
    ) -> Result<Self, UringUnavailable> {
        let depth = depth.clamp(1, MAX_DEPTH);
        let mut builder = IoUring::builder();
        // A forked child must not see or use the parent's ring.
        builder.dontfork();
        match flags {
            SetupFlags::Plain => {}
            SetupFlags::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            SetupFlags::SingleIssuer => {
                builder
                    .setup_coop_taskrun()
                    .setup_taskrun_flag()
                    .setup_single_issuer();
            }
        }
        if flags != SetupFlags::Plain {
            // A refused entry must not hold back the entries after it.
            builder.setup_submit_all();
        }
        // The completion queue has twice the length, more than can ever be in flight: no overflow.
        let ring = builder
            .build(depth)
            .map_err(|error| UringUnavailable::from_io(&error))?;
        let slots = (0..depth)
            .map(|_| Slot {
                transfer: Transfer::idle(),
                busy: false,
            })
            .collect();
        Ok(Uring {
            ring,
            areas: areas.to_vec(),
            slots,
            free: (0..depth).rev().collect(),
            flags,
            _stays: PhantomData,
        })
    }

    /// Keeps `files` open as long as the ring is mapped in some process' memory, even if the holders of their
    /// descriptors are killed: the files are registered with the ring, and the mapping keeps the ring alive.
    pub fn keep(&self, files: &[RawFd]) -> Result<(), Errno> {
        let kept = self.ring.submitter().register_files(files);
        kept.map_err(|error| {
            Errno::from_raw_os_error(error.raw_os_error().unwrap_or(5).clamp(1, 4095))
        })
    }

    /// The delivery of completions.
    pub fn flags(&self) -> SetupFlags {
        self.flags
    }

    /// One `io_uring_enter`. Returns the number of entries that the kernel accepted.
    fn enter(&mut self, want: u32, flags: u32) -> Result<usize, Errno> {
        let queued = self.ring.submission().len() as u32;
        // SAFETY: no argument is passed, and every queued entry was built by `start` or `reap`.
        unsafe { self.ring.submitter().enter::<()>(queued, want, flags, None) }.map_err(|error| {
            Errno::from_raw_os_error(error.raw_os_error().unwrap_or(5).clamp(1, 4095))
        })
    }

    fn submit_all(&mut self) -> Result<(), Errno> {
        let mut retries = 0;
        while !self.ring.submission().is_empty() {
            match self.enter(0, 0) {
                Ok(taken) if taken > 0 => retries = 0,
                Ok(_) | Err(Errno::INTR | Errno::AGAIN | Errno::BUSY)
                    if retries < MAX_SUBMIT_RETRIES =>
                {
                    retries += 1;
                }
                Ok(_) => return Err(Errno::AGAIN),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Lets the kernel post completions that it defers until this thread enters it.
    fn run_deferred(&mut self) {
        if self.flags != SetupFlags::Plain && self.ring.submission().taskrun() {
            // A failure shows again at the next call: the flag stays set.
            let _ = self.enter(0, GETEVENTS);
        }
    }
}

/// The kernel's form of a transfer's next step.
fn entry_of(transfer: &Transfer, index: u32) -> squeue::Entry {
    let fd = types::Fd(transfer.fd);
    let offset = transfer.offset();
    let entry = match (transfer.direction, transfer.step()) {
        // A single piece needs no vector for the kernel to copy.
        (Direction::Read, [piece]) => {
            opcode::Read::new(fd, piece.ptr, Transfer::single_len(piece) as u32)
                .offset(offset)
                .build()
        }
        (Direction::Write, [piece]) => {
            opcode::Write::new(fd, piece.ptr, Transfer::single_len(piece) as u32)
                .offset(offset)
                .build()
        }
        (Direction::Read, pieces) => {
            opcode::Readv::new(fd, pieces.as_ptr().cast(), pieces.len() as u32)
                .offset(offset)
                .build()
        }
        (Direction::Write, pieces) => {
            opcode::Writev::new(fd, pieces.as_ptr().cast(), pieces.len() as u32)
                .offset(offset)
                .build()
        }
    };
    entry.user_data(u64::from(index))
}

impl Io for Uring {
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
        let index = *self.free.last().ok_or(QueueError::Full)?;
        let slot = &mut self.slots[index as usize];
        slot.transfer
            .begin(direction, token, fd, offset, wanted, iov);
        let entry = entry_of(&slot.transfer, index);
        // SAFETY: the entry points at the slot's own vector, which is not touched before the
        // completion, and at memory that the caller of `read`/`write` keeps alive until then.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| QueueError::Full)?;
        slot.busy = true;
        self.free.pop();
        Ok(())
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.submit_all().map_err(IoError::from_errno)
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        self.run_deferred();
        let mut resubmit = false;
        {
            let (_, mut submission, completions) = self.ring.split();
            for entry in completions {
                let Ok(index) = u32::try_from(entry.user_data()) else {
                    continue;
                };
                let Some(slot) = self.slots.get_mut(index as usize).filter(|slot| slot.busy) else {
                    continue;
                };
                let result = match slot.transfer.on_result(entry.result()) {
                    Verdict::Ended(result) => result,
                    Verdict::Again => {
                        let next = entry_of(&slot.transfer, index);
                        // SAFETY: as in `start`; the request is still the caller's, unfinished.
                        match unsafe { submission.push(&next) } {
                            Ok(()) => {
                                resubmit = true;
                                continue;
                            }
                            // The queue is as long as there are slots: this does not happen. If it did, a reported
                            // failure would be better than a lost transfer.
                            Err(_) => Err(IoError::from_errno(Errno::BUSY)),
                        }
                    }
                };
                slot.busy = false;
                self.free.push(index);
                out.push(Completion {
                    token: slot.transfer.token,
                    result,
                });
            }
        }
        if resubmit {
            // Transfers that are not accepted now stay queued for the next flush.
            let _ = self.submit_all();
        }
    }

    fn has_ended(&mut self) -> bool {
        // The flag reports deferred completions in every mode but `Plain`.
        self.ring.submission().taskrun() || !self.ring.completion().is_empty()
    }

    fn wait(&mut self) -> Result<(), IoError> {
        if self.in_flight() == 0 {
            return Ok(());
        }
        self.submit_all().map_err(IoError::from_errno)?;
        while self.ring.completion().is_empty() {
            match self.enter(1, GETEVENTS) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(IoError::from_errno(error)),
            }
        }
        Ok(())
    }

    fn poll_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        super::set_file(&mut self.areas, area, fd);
    }

    fn name(&self) -> &'static str {
        "io_uring"
    }
}

impl Drop for Uring {
    /// The kernel writes to the callers' memory until a transfer has ended, even if the ring is closed: wait for the
    /// end here.
    fn drop(&mut self) {
        let mut ended = Vec::with_capacity(self.in_flight());
        while self.in_flight() > 0 && self.wait().is_ok() {
            self.reap(&mut ended);
        }
    }
}
