//! The I/O thread of a cache: it starts transfers of files and announces their ends.
//!
//! A short read that a program waits for and that begins no readahead is not made here: two changes of threads would
//! cost as much as a quarter of a fast disk's latency. This thread carries the others, first those that a program waits
//! for, in batches: one system call starts what has come together since the last. Where io_uring is refused, four threads with blocking calls take its place.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foreswap_store::ring::{
    Completion, Direction, Io, IoError, Pool, QueueError, SpawnRefused, Uring,
};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

use super::{Done, Span};

/// Transfers in flight.
const DEPTH: u32 = 128;
/// Threads in place of io_uring.
const THREADS: usize = 4;
/// In place of a file for a token without a transfer.
const NONE: Option<RawFd> = None;

#[derive(Debug)]
struct Job {
    file: Arc<File>,
    span: Span,
    done: Done,
}

#[derive(Debug, Default)]
struct Jobs {
    /// Reads that a thread waits for, which go first, and the others; each in the order in which they came.
    awaited: VecDeque<Job>,
    queue: VecDeque<Job>,
    closed: bool,
}

impl Jobs {
    fn next(&mut self) -> Option<Job> {
        self.awaited.pop_front().or_else(|| self.queue.pop_front())
    }

    fn take_all(&mut self) -> VecDeque<Job> {
        let mut all = std::mem::take(&mut self.awaited);
        all.append(&mut self.queue);
        all
    }

    fn are_none(&self) -> bool {
        self.awaited.is_empty() && self.queue.is_empty()
    }
}

#[derive(Debug)]
struct Shared {
    jobs: Mutex<Jobs>,
    /// The thread sleeps, or is about to.
    sleeps: AtomicBool,
    bell: OwnedFd,
}

impl Shared {
    fn jobs(&self) -> MutexGuard<'_, Jobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        if self.sleeps.swap(false, Ordering::SeqCst) {
            // It cannot fail: the counter of an event descriptor does not overflow by ones.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }
}

/// The thread, shared by all files that were opened on it. It ends when the last of them is closed.
#[derive(Debug)]
pub struct Ring {
    shared: Arc<Shared>,
}

impl Ring {
    /// Starts the thread.
    ///
    /// # Errors
    /// No descriptor or no thread is left.
    pub fn new() -> io::Result<Arc<Self>> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            jobs: Mutex::default(),
            sleeps: AtomicBool::new(false),
            bell,
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("foreswap-files".to_owned());
        thread.spawn(move || Worker::run(&worker))?;
        Ok(Arc::new(Ring { shared }))
    }

    /// Starts a transfer.
    pub(super) fn start(&self, file: &Arc<File>, span: Span, done: Done) {
        let (file, awaited) = (Arc::clone(file), span.is_awaited());
        let job = Job { file, span, done };
        let mut jobs = self.shared.jobs();
        if awaited {
            jobs.awaited.push_back(job);
        } else {
            jobs.queue.push_back(job);
        }
        drop(jobs);
        self.shared.wake();
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.jobs().closed = true;
        self.shared.wake();
    }
}

/// The thread's own state.
struct Worker<'a> {
    shared: &'a Shared,
    io: Box<dyn Io>,
    /// The transfers in flight, by their tokens, which are also the numbers of their files for `io`.
    jobs: Vec<Option<Job>>,
    idle: Vec<usize>,
    ended: Vec<Completion>,
}

fn backend() -> Result<Box<dyn Io>, String> {
    if let Ok(ring) = Uring::new(&[], DEPTH) {
        return Ok(Box::new(ring));
    }
    let spawn = |worker: foreswap_store::ring::Worker| {
        let thread = std::thread::Builder::new().name("foreswap-files".to_owned());
        let started = thread.spawn(move || worker.run());
        started
            .map(|_| ())
            .map_err(|error| SpawnRefused(error.raw_os_error().unwrap_or(0)))
    };
    match Pool::new(&[], DEPTH, THREADS, spawn) {
        Ok(pool) => Ok(Box::new(pool)),
        Err(error) => Err(error.to_string()),
    }
}

impl Worker<'_> {
    fn run(shared: &Shared) {
        match backend() {
            Ok(io) => {
                let worker = Worker {
                    shared,
                    io,
                    jobs: (0..DEPTH).map(|_| None).collect(),
                    idle: (0..DEPTH as usize).rev().collect(),
                    ended: Vec::new(),
                };
                worker.serve();
            }
            Err(error) => refuse_all(shared, &error),
        }
    }

    fn serve(mut self) {
        loop {
            let closed = self.take_jobs();
            let flushed = self.io.flush();
            self.io.reap(&mut self.ended);
            if self.ended.is_empty() {
                if closed && self.io.in_flight() == 0 {
                    return;
                }
                if flushed.is_err() {
                    // The kernel is short of memory; what is queued starts with the next attempt.
                    std::thread::yield_now();
                    continue;
                }
                self.sleep();
            }
            for completion in std::mem::take(&mut self.ended) {
                self.on_end(completion);
            }
        }
    }

    /// Starts what was queued, as far as there is room. Returns whether nothing more will come.
    fn take_jobs(&mut self) -> bool {
        while let Some(token) = self.idle.pop() {
            let (job, closed) = {
                let mut jobs = self.shared.jobs();
                (jobs.next(), jobs.closed)
            };
            let Some(job) = job else {
                self.idle.push(token);
                return closed;
            };
            self.io.set_area(token, Some(job.file.as_raw_fd()));
            let (direction, offset) = (job.span.direction(), job.span.offset());
            // SAFETY: the job keeps the span, whose memory is the cache's until `done`, and stays until the
            // completion.
            let queued = unsafe {
                self.io
                    .start(direction, token as u64, token, offset, job.span.pieces())
            };
            match queued {
                Ok(()) => self.jobs[token] = Some(job),
                Err(error) => {
                    self.io.set_area(token, NONE);
                    self.idle.push(token);
                    job.done.end(Err(error_of(error)));
                }
            }
        }
        false
    }

    fn on_end(&mut self, completion: Completion) {
        let token = completion.token as usize;
        let Some(job) = self.jobs[token].take() else {
            return;
        };
        self.io.set_area(token, NONE);
        self.idle.push(token);
        let result = match completion.result {
            Ok(()) => Ok(job.span.bytes() as u64),
            Err(IoError::Short { done, .. }) if job.span.direction() == Direction::Read => Ok(done),
            Err(error) => Err(io::Error::from_raw_os_error(error.errno())),
        };
        job.done.end(result);
    }

    fn sleep(&mut self) {
        self.shared.sleeps.store(true, Ordering::SeqCst);
        let has_work = {
            let jobs = self.shared.jobs();
            !self.idle.is_empty() && !jobs.are_none() || jobs.closed && self.io.in_flight() == 0
        };
        if !has_work && !self.io.has_ended() {
            // SAFETY: the backend lives as long as the poll.
            let ring = unsafe { BorrowedFd::borrow_raw(self.io.poll_fd()) };
            let bell = self.shared.bell.as_fd();
            let mut fds = [ring, bell].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
            let _ = poll(&mut fds, None);
        }
        self.shared.sleeps.store(false, Ordering::SeqCst);
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
    }
}

fn error_of(error: QueueError) -> io::Error {
    io::Error::other(error)
}

/// Without any backend each transfer fails, with the reason.
fn refuse_all(shared: &Shared, reason: &str) {
    loop {
        shared.sleeps.store(true, Ordering::SeqCst);
        let (jobs, closed) = {
            let mut jobs = shared.jobs();
            (jobs.take_all(), jobs.closed)
        };
        if jobs.is_empty() && !closed {
            let mut fds = [PollFd::new(&shared.bell, PollFlags::IN)];
            let _ = poll(&mut fds, None);
            let _ = rustix::io::read(&shared.bell, &mut [0; 8]);
        }
        for job in jobs {
            job.done.end(Err(io::Error::other(reason.to_owned())));
        }
        if closed {
            return;
        }
    }
}
