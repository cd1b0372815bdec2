//! Helper threads: the work on the bytes of large transfers, beside the thread that queues and reaps.
//!
//! What a file gave is hashed; what goes to a RAM area is compressed, and what comes from there unfolded and
//! hashed. The thread that decides then has time to decide, which is all that nobody can do for it. Only
//! transfers of [`LARGE`] pages and more in one piece are handed over: for less the way there and back costs
//! more than the work, and when all helpers have enough to do the caller goes on by itself.
//!
//! The threads come from the caller, like [`super::Pool`]'s, and not before the first transfer that is large
//! enough. They hold a lock only to take a job and to give it back, a few thousand times a second.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::ram::{Counter, PAGE};
use super::{Completion, IoError, SpawnRefused};

/// Pages of the smallest transfer that is handed over: 256 KiB, some 30 us of hashing.
pub const LARGE: usize = 64;
/// More threads than this only compete for the memory's bandwidth.
pub const MOST_HELPERS: usize = 3;
/// Jobs that may wait or be done at once.
const JOBS: usize = 16;
/// The most pages of a job.
const MOST_PAGES: usize = 512;

/// The number by which the bytes of pages are compared. Called with the pages in order of address.
pub type Hash = fn(&[u8; PAGE]) -> u64;

/// Starts a thread that runs a [`Helper`].
pub type Spawn = Box<dyn FnMut(Helper) -> Result<(), SpawnRefused>>;

/// What is to be done with the pages of a job.
pub(super) enum Task {
    Hash,
    Read(Arc<Counter>, u32),
    Write(Arc<Counter>, u32, bool),
}

struct Job {
    token: u64,
    first: *mut [u8; PAGE],
    pages: usize,
    task: Task,
    result: Result<(), IoError>,
    hashes: Vec<u64>,
}

// SAFETY: the memory was lent for the transfer, and whoever has the job has the transfer.
unsafe impl Send for Job {}

#[derive(Default)]
struct Jobs {
    todo: VecDeque<Job>,
    done: Vec<Job>,
    stop: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    /// Rung for the helpers.
    more: Condvar,
    /// Jobs that are done; a look at it needs no lock.
    done: AtomicUsize,
    hash: Hash,
    /// Rung for the reaping thread when the first of `done` comes.
    event: OwnedFd,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one helper thread runs, exactly once, on a thread that shares memory and descriptors with the
/// caller's. If the thread cannot be started, drop it.
pub struct Helper {
    shared: Arc<Shared>,
    number: usize,
}

impl Helper {
    /// Does jobs until the [`Helpers`] are dropped.
    pub fn run(self) {
        loop {
            let jobs = self.shared.jobs();
            let idle = |jobs: &mut Jobs| jobs.todo.is_empty() && !jobs.stop;
            let waited = self.shared.more.wait_while(jobs, idle);
            let Some(mut job) = waited
                .unwrap_or_else(PoisonError::into_inner)
                .todo
                .pop_front()
            else {
                return;
            };
            job.carry_out(self.number, self.shared.hash);
            let first = {
                let mut jobs = self.shared.jobs();
                jobs.done.push(job);
                self.shared.done.store(jobs.done.len(), Ordering::Release);
                jobs.done.len() == 1
            };
            if first {
                // Fails only when the counter is about to overflow, and then it is readable anyway.
                let _ = rustix::io::write(self.shared.event.as_fd(), &1u64.to_ne_bytes());
            }
        }
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
    fn carry_out(&mut self, number: usize, hash: Hash) {
        // SAFETY: `pages` pages from `first` on are mapped and were lent for the transfer; only a write's
        // may be read by others meanwhile, and that does not make use of the right to write.
        let pages = unsafe { std::slice::from_raw_parts_mut(self.first, self.pages) };
        self.result = match &self.task {
            Task::Hash => Ok(()),
            Task::Read(area, slot) => area.with_tools(number, |area, tools| {
                area.read(tools, *slot, pages.iter_mut())
            }),
            Task::Write(area, slot, as_it_is) => area.with_tools(number, |area, tools| {
                area.write(tools, *slot, pages.iter(), *as_it_is)
            }),
        };
        if self.result.is_ok() && !matches!(self.task, Task::Write(..)) {
            self.hashes.extend(pages.iter().map(hash));
        }
    }
}

/// The queueing and reaping thread's side.
pub struct Helpers {
    shared: Arc<Shared>,
    spawn: Spawn,
    wanted: usize,
    running: usize,
    free: Vec<Job>,
    /// Reaped, and their hashes may still be asked for.
    ended: Vec<Job>,
}

impl Helpers {
    /// Up to `count` threads (at most [`MOST_HELPERS`]), started by `spawn` when there is something to do.
    /// `event` is an eventfd that is written to when a job is done after all had been reaped.
    pub fn new(count: usize, hash: Hash, event: OwnedFd, spawn: Spawn) -> Self {
        let job = || Job {
            token: 0,
            first: std::ptr::null_mut(),
            pages: 0,
            task: Task::Hash,
            result: Ok(()),
            hashes: Vec::with_capacity(MOST_PAGES),
        };
        let wanted = count.min(MOST_HELPERS);
        let jobs = Jobs {
            todo: VecDeque::with_capacity(JOBS),
            done: Vec::with_capacity(JOBS),
            stop: false,
        };
        Helpers {
            shared: Arc::new(Shared {
                jobs: Mutex::new(jobs),
                more: Condvar::new(),
                done: AtomicUsize::new(0),
                hash,
                event,
            }),
            spawn,
            wanted,
            running: 0,
            free: (0..if wanted > 0 { JOBS } else { 0 })
                .map(|_| job())
                .collect(),
            ended: Vec::with_capacity(JOBS),
        }
    }

    /// Jobs that were handed over and not reaped.
    pub(super) fn in_flight(&self) -> usize {
        match self.wanted {
            0 => 0,
            _ => JOBS - self.free.len() - self.ended.len(),
        }
    }

    /// A job is done that was not reaped.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) > 0
    }

    /// Leaves `pages` pages from `first` on to the helpers. False: they have enough to do, or none runs.
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
        let Some(mut job) = self.free.pop() else {
            return false;
        };
        (job.token, job.first, job.pages, job.task) = (token, first, pages, task);
        self.shared.jobs().todo.push_back(job);
        self.shared.more.notify_one();
        true
    }

    fn start(&mut self) -> bool {
        while self.running < self.wanted {
            let helper = Helper {
                shared: Arc::clone(&self.shared),
                number: self.running,
            };
            if (self.spawn)(helper).is_err() {
                self.wanted = self.running;
                if self.running == 0 {
                    self.free.clear();
                }
                break;
            }
            self.running += 1;
        }
        self.running > 0
    }

    /// Appends the jobs that are done.
    pub(super) fn reap(&mut self, out: &mut Vec<Completion>) {
        for mut job in self.ended.drain(..) {
            job.hashes.clear();
            job.task = Task::Hash;
            self.free.push(job);
        }
        if self.has_ended() {
            let mut jobs = self.shared.jobs();
            self.shared.done.store(0, Ordering::Release);
            self.ended.append(&mut jobs.done);
        }
        out.extend(self.ended.iter().map(|job| Completion {
            token: job.token,
            result: job.result,
        }));
    }

    /// The first byte and the hashes of the pages that a transfer brought which the last call of `reap` gave.
    pub(super) fn hashes(&self, token: u64) -> Option<(*const u8, &[u64])> {
        let job = self.ended.iter().find(|job| job.token == token)?;
        (!job.hashes.is_empty()).then(|| (job.first.cast_const().cast(), &job.hashes[..]))
    }
}

impl Drop for Helpers {
    /// Waits for what is being done, as it is done to the callers' memory.
    fn drop(&mut self) {
        let mut reaped = Vec::with_capacity(JOBS);
        while self.in_flight() > 0 {
            self.reap(&mut reaped);
            std::thread::yield_now();
        }
        self.shared.jobs().stop = true;
        self.shared.more.notify_all();
    }
}

#[cfg(test)]
mod tests;
