//! One move of memory (mremap) at a time.
//!
//! The kernel reports a move after it has released the address space lock. The events of two threads can therefore be
//! read in another order than they happened: one thread moves P to Q, another R to the freed place, and the pager
//! reads the second event first. It could not tell what P contains then. The program's threads therefore move memory
//! one after the other, each until its events were read. The wait is bounded, because an unlikely disorder is better
//! than a certain standstill. The bound exceeds the time of a fork on a busy machine, during which nothing moves.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::thread::futex::{self, Flags, Timespec};

/// How often a thread waits, and for how long each time: 30 s in all.
const WAITS: u32 = 3000;
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 10_000_000,
};

/// Lets one thread through at a time. Safe in signal handlers: a thread that is inside is let through again.
#[derive(Debug)]
pub struct MremapLock(AtomicU32);

/// The right to be inside, until it is dropped.
#[derive(Debug)]
pub struct Turn<'a>(Option<&'a AtomicU32>);

impl MremapLock {
    /// The mremap_lock is free.
    #[expect(clippy::new_without_default, reason = "it is a static's initial value")]
    pub const fn new() -> Self {
        MremapLock(AtomicU32::new(0))
    }

    /// Wait for the turn.
    pub fn enter(&self) -> Turn<'_> {
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        for _ in 0..WAITS {
            match self.0.compare_exchange(0, me, Acquire, Relaxed) {
                Ok(_) => return Turn(Some(&self.0)),
                Err(inside) if inside == me => break,
                // A time-out, a signal or a change: look again.
                Err(inside) => _ = futex::wait(&self.0, Flags::PRIVATE, inside, Some(&WAIT)),
            }
        }
        Turn(None)
    }

    /// As [`MremapLock::enter`], until [`MremapLock::leave`].
    pub fn hold(&self) {
        core::mem::forget(self.enter());
    }

    /// The calling thread goes out, if it is inside.
    pub fn leave(&self) {
        let me = rustix::thread::gettid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned();
        if self.0.load(Relaxed) == me {
            drop(Turn(Some(&self.0)));
        }
    }

    /// In a fork child: the thread that was inside is absent.
    pub fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(inside) = self.0 {
            inside.store(0, Release);
            let _ = futex::wake(inside, Flags::PRIVATE, 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_at_a_time_and_a_thread_inside_goes_on() {
        static LOCK: MremapLock = MremapLock::new();
        static INSIDE: AtomicU32 = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2_000 {
                        let turn = LOCK.enter();
                        assert_eq!(INSIDE.fetch_add(1, Relaxed), 0);
                        drop(LOCK.enter());
                        assert!(turn.0.is_some());
                        assert_eq!(INSIDE.fetch_sub(1, Relaxed), 1);
                    }
                });
            }
        });
        let outside = LOCK.enter();
        assert!(outside.0.is_some());
        LOCK.reset();
        LOCK.hold();
        std::thread::scope(|scope| scope.spawn(|| LOCK.leave()).join().expect("no panic"));
        assert_ne!(LOCK.0.load(Relaxed), 0);
        LOCK.leave();
        assert_eq!(LOCK.0.load(Relaxed), 0);
    }
}
