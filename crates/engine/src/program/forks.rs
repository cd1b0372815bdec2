//! Forks, on the side of the forking thread.
//!
//! The state between the begin and the end of a fork belongs to that fork: several threads may be in the C library's
//! fork at a time, and only in managed memory does the engine admit one after the other. The C library's handlers
//! have no frame in common. A fork is therefore found by its thread's thread pointer, which the child has too.
//!
//! If a child could not have the parent's memory, the kernel has forked all the same, as a handler cannot prevent it. The
//! child ends at once, and the function that forked reports EAGAIN, as if the system had no process left.
//!
//! All signals are blocked from the request to the engine until its answer has taken effect, and in the child until
//! an engine has its memory: a handler would run on incomplete memory.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use linux_raw_sys::general as k;
use rustix::io::Errno;

use super::{Program, end, hold, own_pid, request, say, state};
use crate::sys::syscall::syscall;
use crate::sys::thread::{set_signal_mask, thread_pointer};

/// Forks that may be in progress at once; a further one waits.
const MOST: usize = 64;

/// A fork in progress.
struct Fork {
    /// The thread pointer of its thread; 0 if unused.
    thread: AtomicUsize,
    /// [`Program::forked`] will report its result, and end it.
    reports: AtomicBool,
    /// Its child cannot have the memory.
    fails: AtomicBool,
    /// The engine's answer.
    hold: AtomicU64,
    /// The parent's engine expects the child's.
    counted: AtomicBool,
    /// The snapshot that the child starts from.
    snapshot: AtomicUsize,
    /// Its number, once released.
    number: AtomicU64,
    /// The thread's signal mask.
    mask: AtomicU64,
}

/// The forks in progress in a process.
pub struct Forks {
    forks: [Fork; MOST],
}

impl Forks {
    pub(super) const fn new() -> Self {
        Forks {
            forks: [const {
                Fork {
                    thread: AtomicUsize::new(0),
                    reports: AtomicBool::new(false),
                    fails: AtomicBool::new(false),
                    hold: AtomicU64::new(0),
                    counted: AtomicBool::new(false),
                    snapshot: AtomicUsize::new(0),
                    number: AtomicU64::new(0),
                    mask: AtomicU64::new(0),
                }
            }; MOST],
        }
    }

    /// The calling thread's fork.
    fn own(&self) -> Option<&Fork> {
        self.of(thread_pointer())
    }

    fn of(&self, thread: usize) -> Option<&Fork> {
        self.forks
            .iter()
            .find(|fork| fork.thread.load(Relaxed) == thread)
    }

    /// The calling thread's fork, begun now if necessary.
    fn begin(&self) -> &Fork {
        loop {
            if let Some(fork) = self.own() {
                return fork;
            }
            let free = self.forks.iter().find(|fork| {
                let thread = thread_pointer();
                let taken = fork.thread.compare_exchange(0, thread, Acquire, Relaxed);
                taken.is_ok()
            });
            if let Some(fork) = free {
                fork.reports.store(false, Relaxed);
                fork.fails.store(false, Relaxed);
                fork.counted.store(false, Relaxed);
                fork.hold.store(0, Relaxed);
                fork.number.store(0, Relaxed);
                return fork;
            }
            rustix::thread::sched_yield();
        }
    }
}

impl Program {
    /// The thread is about to call a function that forks, and will report the result ([`Program::forked`]).
    pub fn will_fork(&self) {
        // A signal handler that forks must not interrupt.
        let mask = set_signal_mask(u64::MAX);
        self.forks.begin().reports.store(true, Relaxed);
        set_signal_mask(mask);
    }

    /// About to fork, on the forking thread.
    pub fn before_fork(&self) {
        let mask = set_signal_mask(u64::MAX);
        let fork = self.forks.begin();
        fork.mask.store(mask, Relaxed);
        if self.state.load(Acquire) == state::STARTING {
            self.await_start();
        }
        if !matches!(self.state.load(Acquire), state::BARE | state::ARMED) {
            return;
        }
        let [answer, snapshot, ..] = self.call([request::HOLD, 0, 0, 0]);
        if answer == 0 && self.state.load(Acquire) == state::FAILED {
            return;
        }
        fork.snapshot.store(snapshot as usize, Relaxed);
        fork.counted.store(answer != 0, Relaxed);
        // Without an answer, the child's missing pages are unknown.
        let answer = match answer {
            0 => hold::IMPOSSIBLE,
            answer => answer,
        };
        fork.fails.store(answer == hold::IMPOSSIBLE, Relaxed);
        fork.hold.store(answer, Release);
    }

    /// The fork is over, in the parent.
    pub fn after_fork_parent(&self) {
        let Some(fork) = self.forks.own() else {
            return;
        };
        if fork.hold.swap(0, Relaxed) != 0 {
            let [number, ..] = self.call([request::RELEASE, 0, 0, 0]);
            fork.number.store(number, Relaxed);
        }
        set_signal_mask(fork.mask.load(Relaxed));
        if !fork.reports.load(Relaxed) {
            fork.thread.store(0, Release);
        }
    }

    /// The result of the announced fork: the child, or an error. The supervisor can then see the child's death before
    /// its first message, and the reservation for a child that does not exist is freed. Returns whether the program has
    /// this child.
    pub fn forked(&self, result: i64) -> bool {
        let Some(fork) = self.forks.own() else {
            return true;
        };
        let number = fork.number.load(Relaxed);
        let fails = fork.fails.load(Relaxed) && result > 0;
        if result < 0 && fork.counted.load(Relaxed) {
            crate::pager::child_is_up(self.board.load(Relaxed));
        }
        fork.thread.store(0, Release);
        let child = if fails { 0 } else { result.max(0) };
        if number != 0 {
            self.call([request::FORKED, number, child as u64, 0]);
        }
        if fails {
            await_end(result);
        }
        !fails
    }

    /// The fork is over, in the child, which has one thread; its thread pointer in the parent was `thread`. Returns
    /// when its memory is managed.
    pub fn after_fork_child(&self, thread: usize) {
        self.parent
            .store(self.pid.swap(own_pid(), Relaxed), Relaxed);
        // Threads that were creating threads are absent, as are other forks.
        self.threads[1].store(self.threads[0].load(Relaxed), Relaxed);
        if self.ring.swap(0, Relaxed) != 0 {
            crate::pager::renounce_parent(self);
        }
        let own = self.forks.of(thread);
        let answer = own.map_or(0, |fork| fork.hold.load(Relaxed));
        let snapshot = own.map_or(0, |fork| fork.snapshot.load(Relaxed));
        let mask = own.map(|fork| fork.mask.load(Relaxed));
        let reported = own.is_some_and(|fork| fork.reports.load(Relaxed));
        for fork in &self.forks.forks {
            fork.thread.store(0, Relaxed);
        }
        match answer {
            hold::IMPOSSIBLE => {
                if !reported {
                    say(b"foreswap: a forked child cannot get its parent's swapped memory; it ends\n");
                }
                if own.is_some_and(|fork| fork.counted.load(Relaxed)) {
                    crate::pager::child_is_up(self.board.load(Relaxed));
                }
                end(70);
            }
            0 => {
                if self.bypasses.load(Relaxed) && self.state.load(Relaxed) == state::OFF {
                    // The parent's lookout did not follow.
                    crate::lookout::start(self);
                }
            }
            answer => {
                self.state.store(state::OFF, Relaxed);
                self.spare.store(0, Relaxed);
                crate::pager::start(self, crate::pager::Origin::Forked(snapshot));
                if answer == hold::READY && self.state.load(Acquire) != state::ARMED {
                    say(b"foreswap: a forked child cannot reach its parent's swapped memory; it ends\n");
                    end(70);
                }
            }
        }
        if let Some(mask) = mask {
            set_signal_mask(mask);
        }
    }
}

/// Wait for a child that ends at once, whatever signal it sends then.
fn await_end(child: i64) {
    let arguments = [child as usize, 0, k::__WALL as usize, 0];
    // SAFETY: the kernel writes nothing.
    while unsafe { syscall(k::__NR_wait4, arguments) } == Err(Errno::INTR) {}
}
