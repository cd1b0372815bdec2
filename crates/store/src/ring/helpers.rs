//! Helper threads: hashing, compression and encryption for large transfers, beside the thread that queues and reaps.
//!
//! Pages read from a file are hashed; pages for a RAM area are compressed, and pages from there decompressed and
//! hashed; pages for an encrypted area are encrypted, and pages from there decrypted and hashed. This leaves the pager's
//! time for decisions, which no other thread can make. Only transfers of at least [`LARGE`] pages in one piece are handed
//! over: for smaller ones the handoff costs more than the work. If all helpers are busy, the caller does the work itself.
//!
//! The caller provides the threads, as for [`super::Pool`], at the first transfer that is large enough.

use std::ffi::c_void;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::io::Errno;

use super::handoff::{Hand, Handoff};
use super::ram::{PAGE, Refusal, SharedRam};
use super::{Completion, IoError, SpawnRefused};
use crate::seal::SealedArea;

/// Pages of the smallest transfer that is handed over: 256 KiB, about 30 us of hashing.
pub const LARGE: usize = 64;
/// More threads than this only compete for the memory's bandwidth.
pub const MOST_HELPERS: usize = 3;
/// Jobs that may be queued or in progress at once.
const JOBS: usize = 16;
/// The most pages of a job.
const MOST_PAGES: usize = 512;
/// Pages of a job between two checks for other work: 15 us of hashing, 60 of decompression.
const PART: usize = 64;
/// The number of the owner's thread, for jobs that it does itself; the helpers' follow.
const OWNER: usize = 0;

/// The hash of a page, for comparison. Called with pages in order of address.
pub type Hash = fn(&[u8; PAGE]) -> u64;

/// Starts a thread that runs a [`Helper`].
pub type Spawn = Box<dyn FnMut(Helper) -> Result<(), SpawnRefused>>;

/// The task of a job.
pub(super) enum Task {
    Hash,
    Read(Arc<SharedRam>, u32),
    Write(Arc<SharedRam>, u32, bool),
    /// Decrypts the pages of the slots from this one on.
    Open(Arc<SealedArea>, u32),
    Seal(Arc<SealedArea>, Sealed),
}

/// The place of pages that are encrypted.
pub(super) struct Sealed {
    /// The slot and the number of the first.
    slot: u32,
    number: u64,
    to: Lent,
}

impl Task {
    /// Encrypts the pages for the slots from `slot` on, with the numbers from `number` on, into as many pages from `to` on,
    /// which nobody else uses until the job is done.
    pub(super) fn seal(area: Arc<SealedArea>, slot: u32, number: u64, to: *mut [u8; PAGE]) -> Self {
        let to = Lent(to);
        Task::Seal(area, Sealed { slot, number, to })
    }
}

/// The first page of memory that was lent for a transfer.
struct Lent(*mut [u8; PAGE]);

// SAFETY: the owner of the job has the transfer, and with it the memory.
unsafe impl Send for Lent {}

impl Lent {
    /// # Safety
    /// This many pages were lent, and no thread writes to them while the slice is in use.
    unsafe fn drained(&self, pages: usize) -> &[[u8; PAGE]] {
        // SAFETY: lent memory is mapped; the rest is this function's contract.
        unsafe { std::slice::from_raw_parts(self.0, pages) }
    }

    /// # Safety
    /// This many pages were lent, and no other thread uses them while the slice is in use.
    unsafe fn filled(&mut self, pages: usize) -> &mut [[u8; PAGE]] {
        // SAFETY: lent memory is mapped; the rest is this function's contract.
        unsafe { std::slice::from_raw_parts_mut(self.0, pages) }
    }
}

struct Job {
    token: u64,
    first: Lent,
    pages: usize,
    /// Pages completed.
    done: usize,
    task: Task,
    refusal: Refusal,
    result: Result<(), IoError>,
    hashes: Vec<u64>,
}

/// The work of one helper thread, to be run exactly once, on a thread that shares memory and descriptors with the
/// caller's. If the thread cannot be started, drop it.
pub struct Helper {
    jobs: Hand<Job>,
    hash: Hash,
    number: usize,
}

impl Helper {
    /// Does jobs until the [`Helpers`] are dropped.
    pub fn run(self) {
        self.jobs
            .run(|job| while !job.do_part(self.number, self.hash) {});
    }

    /// For raw clones: an argument for [`Helper::from_raw`], to be used exactly once.
    pub fn into_raw(self) -> *mut c_void {
        Box::into_raw(Box::new(self)).cast()
    }

    /// Undoes [`Helper::into_raw`].
    ///
    /// # Safety
    /// `argument` comes from `into_raw` and was not used since.
    pub unsafe fn from_raw(argument: *mut c_void) -> Self {
        // SAFETY: by this function's contract.
        *unsafe { Box::from_raw(argument.cast()) }
    }
}

impl Job {
    /// Does the next [`PART`] pages. Returns whether they were the last.
    fn do_part(&mut self, number: usize, hash: Hash) -> bool {
        // A job that waits to be reaped, or refilled, keeps no area alive.
        let mut task = std::mem::replace(&mut self.task, Task::Hash);
        let part = self.done..self.pages.min(self.done + PART);
        let done = match &mut task {
            Task::Hash => Ok(()),
            Task::Read(area, slot) => area.with_codec(number, |area, codec| {
                // SAFETY: the transfer fills them, and until it has ended nobody else uses them.
                let pages = unsafe { self.first.filled(self.pages) };
                let slot = *slot + part.start as u32;
                area.read(codec, slot, pages[part.clone()].iter_mut())
            }),
            Task::Write(area, slot, as_it_is) => area.with_codec(number, |area, codec| {
                // SAFETY: nobody writes to what the transfer drains. Others may read it.
                let pages = unsafe { self.first.drained(self.pages) };
                let pages = part.clone().zip(&pages[part.clone()]);
                area.write(codec, *slot, pages, *as_it_is, &mut self.refusal)
            }),
            Task::Open(area, slot) => {
                // SAFETY: as for `Task::Read`.
                let pages = unsafe { self.first.filled(self.pages) };
                for (at, page) in part.clone().zip(&mut pages[part.clone()]) {
                    // A page that does not open is one of zeros, and recognised by its hash.
                    let _ = area.open(*slot + at as u32, page);
                }
                Ok(())
            }
            Task::Seal(area, sealed) => {
                let Sealed { slot, number, to } = sealed;
                // SAFETY: as for `Task::Write`; the buffer is the job's.
                let (from, to) = unsafe { (self.first.drained(self.pages), to.filled(self.pages)) };
                for at in part.clone() {
                    area.seal(
                        *slot + at as u32,
                        *number + at as u64,
                        &from[at],
                        &mut to[at],
                    );
                }
                Ok(())
            }
        };
        self.done = part.end;
        let (failed, last) = (done.is_err(), done.is_err() || self.done == self.pages);
        if last || matches!(task, Task::Hash) {
            self.result = done.and(self.refusal.into_result());
        }
        if !failed && !matches!(task, Task::Write(..) | Task::Seal(..)) {
            // SAFETY: they are filled, and still lent.
            let pages = unsafe { self.first.drained(self.pages) };
            self.hashes.extend(pages[part].iter().map(hash));
        }
        if !last {
            self.task = task;
        }
        last
    }
}

/// The queueing and reaping thread's side.
pub struct Helpers {
    jobs: Handoff<Job>,
    hash: Hash,
    spawn: Spawn,
    wanted: usize,
    running: usize,
}

impl Helpers {
    /// Up to `count` threads (at most [`MOST_HELPERS`]), started by `spawn` when there is work. `event` is a
    /// non-blocking eventfd that is written to when a job is done after all others had been reaped.
    pub fn new(count: usize, hash: Hash, event: OwnedFd, spawn: Spawn) -> Self {
        let wanted = count.min(MOST_HELPERS);
        let idle = |_| Job {
            token: 0,
            first: Lent(std::ptr::null_mut()),
            pages: 0,
            done: 0,
            task: Task::Hash,
            refusal: Refusal::default(),
            result: Ok(()),
            hashes: Vec::with_capacity(MOST_PAGES),
        };
        let slots = if wanted > 0 { JOBS } else { 0 };
        Helpers {
            jobs: Handoff::new((0..slots).map(idle), event),
            hash,
            spawn,
            wanted,
            running: 0,
        }
    }

    /// Upper bound of the numbers of workers. Never grows.
    pub(super) fn numbers(&self) -> usize {
        match self.wanted {
            0 => 0,
            wanted => wanted + 1,
        }
    }

    /// Written to when a job is done after all others had been reaped.
    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.jobs.event()
    }

    /// Jobs that were handed over and not reaped.
    pub(super) fn in_flight(&self) -> usize {
        self.jobs.in_flight()
    }

    /// A completed job was not reaped yet.
    pub(super) fn has_ended(&self) -> bool {
        self.jobs.has_ended()
    }

    /// Hands `pages` pages from `first` on to the helpers, who begin at the next [`Helpers::flush`]. False: all are
    /// busy, or none runs.
    pub(super) fn hand_over(
        &mut self,
        token: u64,
        first: *mut [u8; PAGE],
        pages: usize,
        task: Task,
    ) -> bool {
        if pages > MOST_PAGES || !self.start() {
            return false;
        }
        self.jobs.fill(|job| {
            (job.token, job.first, job.pages, job.task) = (token, Lent(first), pages, task);
            (job.done, job.refusal) = (0, Refusal::default());
            // The result if the helper panics.
            job.result = Err(IoError::from_errno(Errno::IO));
            job.hashes.clear();
        })
    }

    /// Lets the helpers begin with the handed-over jobs.
    pub(super) fn flush(&mut self) {
        // Only the waking of a sleeper can fail, and only for wrong arguments.
        let _ = self.jobs.flush();
    }

    /// Does a part of a job on this thread: of the one that it has begun or else, if it may `begin`, of one that no
    /// helper has. False: there is none.
    pub(super) fn help(&mut self, begin: bool) -> bool {
        let hash = self.hash;
        self.jobs.work(begin, |job| job.do_part(OWNER, hash))
    }

    fn start(&mut self) -> bool {
        while self.running < self.wanted {
            let helper = Helper {
                jobs: self.jobs.hand(),
                hash: self.hash,
                number: OWNER + 1 + self.running,
            };
            if (self.spawn)(helper).is_err() {
                self.wanted = self.running;
                break;
            }
            self.running += 1;
        }
        self.running > 0
    }

    /// Appends the jobs that are done.
    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) {
        self.jobs.reap();
        out.extend(self.jobs.reaped().map(|job| Completion {
            token: job.token,
            result: job.result,
        }));
    }

    /// The first byte and the hashes of the pages of a transfer that the last call of `reap` returned.
    pub(super) fn hashes(&self, token: u64) -> Option<(*const u8, &[u64])> {
        let job = self.jobs.reaped().find(|job| job.token == token)?;
        (!job.hashes.is_empty()).then(|| (job.first.0.cast_const().cast(), &job.hashes[..]))
    }
}

impl Drop for Helpers {
    /// Waits for jobs in progress, which use the callers' memory.
    fn drop(&mut self) {
        while self.in_flight() > 0 {
            if !self.help(false) {
                std::thread::yield_now();
            }
            self.jobs.reap();
        }
    }
}

#[cfg(test)]
mod tests;
