//! One thread at a time opens the engine, or forks.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use foreswap::program::own_pid;

/// How long a thread waits before it looks again.
const STEP: Duration = Duration::from_millis(1);

/// The right of one thread to open the engine, or to fork.
pub struct Opener {
    /// The process id of its thread, and the thread id; 0 if nobody has it. In the child of a fork past the C library, a
    /// thread of the parent does not have it.
    thread: AtomicU64,
    /// Forks in progress of the thread that has it, but for the one that took it: in signal handlers.
    nested: AtomicU64,
}

impl Opener {
    /// Nobody has it.
    pub const fn new() -> Self {
        Opener {
            thread: AtomicU64::new(0),
            nested: AtomicU64::new(0),
        }
    }

    /// Takes it, once no other thread has it. False if this thread has it already.
    fn take(&self) -> bool {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        let own = u64::from(own_pid()) << 32 | u64::from(tid.cast_unsigned());
        loop {
            let other = self.thread.load(Relaxed);
            if other == own {
                return false;
            }
            let is_free = other == 0 || other >> 32 != own >> 32;
            if is_free
                && self
                    .thread
                    .compare_exchange(other, own, SeqCst, Relaxed)
                    .is_ok()
            {
                return true;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Does `work`, which no other thread does meanwhile, nor does one fork by the C library.
    pub fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        let taken = self.take();
        let result = work();
        if taken {
            self.thread.store(0, SeqCst);
        }
        result
    }

    /// The thread is about to fork.
    pub fn pause(&self) {
        if !self.take() {
            self.nested.fetch_add(1, Relaxed);
        }
    }

    /// The fork is over, in the parent.
    pub fn go_on(&self) {
        let less = |nested: u64| nested.checked_sub(1);
        if self.nested.fetch_update(Relaxed, Relaxed, less).is_err() {
            self.thread.store(0, SeqCst);
        }
    }

    /// The fork is over, in the child, which has one thread.
    pub fn reset(&self) {
        self.nested.store(0, Relaxed);
        self.thread.store(0, SeqCst);
    }
}
