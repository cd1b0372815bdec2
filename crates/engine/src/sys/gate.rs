//! A gate that lets the engine put memory in the place of the program's.
//!
//! The engine may replace a mapping only while it is certain what is there: a thread could unmap it, and another get
//! the address for new memory, between the engine's look and its call. Calls of the C library that unmap or replace
//! memory pass this gate, in programs that have mapped a file. The engine closes it, waits until nobody is inside, and
//! opens it when it is done. It closes it for a moment only, and gives up if somebody stays inside: a signal handler may
//! wait at the gate while the call that it interrupted is inside.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::SeqCst;

use rustix::thread::futex::{self, Flags, Timespec};

/// A thread that is woken too late looks by itself.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};

/// See the module.
#[derive(Debug)]
pub struct Gate {
    inside: AtomicU32,
    closed: AtomicU32,
}

/// The right to be inside, until it is dropped.
#[derive(Debug)]
pub struct Inside<'a>(&'a Gate);

impl Gate {
    /// Open, with nobody inside.
    #[expect(clippy::new_without_default, reason = "it is a static's initial value")]
    pub const fn new() -> Self {
        Gate {
            inside: AtomicU32::new(0),
            closed: AtomicU32::new(0),
        }
    }

    /// Goes inside, once the gate is open.
    pub fn enter(&self) -> Inside<'_> {
        loop {
            self.inside.fetch_add(1, SeqCst);
            if self.closed.load(SeqCst) == 0 {
                return Inside(self);
            }
            self.inside.fetch_sub(1, SeqCst);
            let _ = futex::wait(&self.closed, Flags::PRIVATE, 1, Some(&WAIT));
        }
    }

    /// Nobody goes inside from now on.
    pub fn close(&self) {
        self.closed.store(1, SeqCst);
    }

    /// Whether nobody is inside.
    pub fn is_empty(&self) -> bool {
        self.inside.load(SeqCst) == 0
    }

    /// Threads may go inside again.
    pub fn open(&self) {
        self.closed.store(0, SeqCst);
        let _ = futex::wake(&self.closed, Flags::PRIVATE, i32::MAX as u32);
    }

    /// In a fork child: the threads that were inside are absent.
    pub fn reset(&self) {
        self.inside.store(0, SeqCst);
        self.closed.store(0, SeqCst);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::AtomicBool;

    use super::*;

    #[test]
    fn nobody_is_inside_while_it_is_closed() {
        static GATE: Gate = Gate::new();
        static REPLACES: AtomicBool = AtomicBool::new(false);
        static DONE: AtomicBool = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !DONE.load(SeqCst) {
                        let inside = GATE.enter();
                        assert!(!REPLACES.load(SeqCst));
                        drop(inside);
                    }
                });
            }
            for _ in 0..2_000 {
                GATE.close();
                while !GATE.is_empty() {
                    std::thread::yield_now();
                }
                REPLACES.store(true, SeqCst);
                REPLACES.store(false, SeqCst);
                GATE.open();
            }
            DONE.store(true, SeqCst);
        });
        assert!(GATE.is_empty());
    }
}
