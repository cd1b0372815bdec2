//! Making pages movable again after a fork.
//!
//! UFFDIO_MOVE refuses a page that parent and child share, even after one of them has ended, until it is written to.
//! MADV_POPULATE_WRITE is a write that changes nothing. It may hit an absent page and wait for the pager. It
//! therefore runs on a thread of its own, which starts at the first shared page.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};

use foreswap_core::units::{PAGE_SIZE, Vpn};
use rustix::fd::{AsFd, OwnedFd};
use rustix::mm::{Advice, madvise};
use rustix::thread::futex;

use crate::sys::cpu::Cpus;
use crate::sys::thread;

struct Shared {
    /// The run that is to be written to.
    run: Mutex<Option<(Vpn, u32)>>,
    bell: AtomicU32,
    /// Rings the pager when the run has been written to.
    done: OwnedFd,
}

/// The pager's side.
pub struct Unsharer {
    shared: Arc<Shared>,
    cpus: Cpus,
    tid: Option<u32>,
}

impl Unsharer {
    /// `done` is an eventfd that is written to when all requests have been tried.
    pub fn new(done: OwnedFd) -> Self {
        Unsharer {
            shared: Arc::new(Shared {
                run: Mutex::new(None),
                bell: AtomicU32::new(0),
                done,
            }),
            cpus: Cpus::now(),
            tid: None,
        }
    }

    /// Whether a request is not done yet. If the other thread holds the lock, it is not.
    pub fn is_busy(&self) -> bool {
        self.shared.run.try_lock().map_or(true, |run| run.is_some())
    }

    /// Write to `n` pages from `page` on, soon. Not at all if another run is being written to: two runs that overlap
    /// would bring back pages that left in between. A caller that still needs it asks again.
    pub fn ask(&mut self, page: Vpn, n: u32) {
        {
            // The other thread may have been preempted with the lock held.
            let Ok(mut run) = self.shared.run.try_lock() else {
                return;
            };
            if run.is_some() {
                return;
            }
            *run = Some((page, n));
        }
        if self.tid.is_none() {
            let argument = Arc::into_raw(Arc::clone(&self.shared))
                .cast_mut()
                .cast::<c_void>();
            // SAFETY: `work` keeps to the rules for engine threads and gets its argument alone.
            let spawned = unsafe { thread::spawn(c"fs-unshare", 64 << 10, true, work, argument) };
            let Ok(thread) = spawned else {
                // SAFETY: the thread did not start, so the reference that it was to get is still ours.
                drop(unsafe { Arc::from_raw(argument.cast_const().cast::<Shared>()) });
                // Shared pages stay in place; the next request tries again. No other thread has the lock.
                *self
                    .shared
                    .run
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner) = None;
                return;
            };
            self.tid = Some(thread.tid());
            self.cpus.free(thread.tid());
        }
        self.shared.bell.fetch_add(1, SeqCst);
        let _ = futex::wake(&self.shared.bell, futex::Flags::PRIVATE, 1);
    }
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `ask` made the pointer from an Arc and gave its reference to this thread.
    let shared = unsafe { Arc::from_raw(argument.cast_const().cast::<Shared>()) };
    loop {
        let bell = shared.bell.load(SeqCst);
        let run = *shared.run.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((page, n)) = run else {
            let _ = futex::wait(&shared.bell, futex::Flags::PRIVATE, bell, None);
            continue;
        };
        let bytes = n as usize * PAGE_SIZE;
        // SAFETY: writing to a page without changing it; a range that is gone meanwhile is refused.
        let _ = unsafe {
            madvise(
                page.address() as *mut c_void,
                bytes,
                Advice::LinuxPopulateWrite,
            )
        };
        *shared.run.lock().unwrap_or_else(PoisonError::into_inner) = None;
        let _ = rustix::io::write(shared.done.as_fd(), &1u64.to_ne_bytes());
    }
}
