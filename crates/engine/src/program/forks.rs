//! Forks, from the side of the thread that forks.
//!
//! What a fork needs between its begin and its end belongs to that fork: several threads may be on their way through the
//! C library's fork at a time, and only in memory that is managed does the engine let one pass after the other. The C
//! library's handlers have no frame in common, so a fork is found by its thread's thread pointer, which the child has too.
//!
//! All signals are blocked from the question to the engine until its answer has taken effect, in the child until an engine
//! has its memory: a handler would run on memory of which a part is missing.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};

use super::{Program, end, hold, own_pid, request, say, state};
use crate::sys::thread::{set_signal_mask, thread_pointer};

/// Forks that may be under way at once; one more waits.
const MOST: usize = 64;

/// A fork under way.
struct Fork {
    /// The thread pointer of its thread; 0 where there is none.
    thread: AtomicUsize,
    /// Its result will be told by [`Program::forked`], which ends it.
    reports: AtomicBool,
    /// What the engine answered.
    hold: AtomicU64,
    /// The snapshot that the child starts from.
    snapshot: AtomicUsize,
    /// Its number, once it was released.
    number: AtomicU64,
    /// The thread's signal mask.
    mask: AtomicU64,
}

/// The forks under way in a process.
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
                    hold: AtomicU64::new(0),
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

    /// The calling thread's fork, begun now if it was not.
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
                fork.hold.store(0, Relaxed);
                fork.number.store(0, Relaxed);
                return fork;
            }
            rustix::thread::sched_yield();
        }
    }
}

impl Program {
    /// The thread is about to call what forks, and will say what came of it ([`Program::forked`]).
    pub fn will_fork(&self) {
        // A signal handler that forks as well must not come in between.
        let mask = set_signal_mask(u64::MAX);
        self.forks.begin().reports.store(true, Relaxed);
        set_signal_mask(mask);
    }

    /// About to fork, on the thread that will.
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
        fork.snapshot.store(snapshot as usize, Relaxed);
        // Without an answer nothing is known of what a child would miss.
        let answer = match answer {
            0 => hold::IMPOSSIBLE,
            answer => answer,
        };
        fork.hold.store(answer, Release);
    }

    /// The fork is over; this is the parent.
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

    /// What the fork that this thread has announced came to: the child, or an error. Lets the supervisor see the child's
    /// death before the child has said a word, and frees what was set aside for one that there is not.
    pub fn forked(&self, result: i64) {
        let Some(fork) = self.forks.own() else {
            return;
        };
        let number = fork.number.load(Relaxed);
        fork.thread.store(0, Release);
        if number != 0 {
            self.call([request::FORKED, number, result.max(0) as u64, 0]);
        }
    }

    /// The fork is over; this is the child, with one thread, which had the thread pointer `thread` in the parent. Comes back
    /// when its memory is managed.
    pub fn after_fork_child(&self, thread: usize) {
        self.parent
            .store(self.pid.swap(own_pid(), Relaxed), Relaxed);
        // Whoever made a thread is not here, nor is any other fork.
        self.threads[1].store(self.threads[0].load(Relaxed), Relaxed);
        if self.ring.swap(0, Relaxed) != 0 {
            crate::pager::renounce_parent(self);
        }
        let own = self.forks.of(thread);
        let answer = own.map_or(0, |fork| fork.hold.load(Relaxed));
        let snapshot = own.map_or(0, |fork| fork.snapshot.load(Relaxed));
        let mask = own.map(|fork| fork.mask.load(Relaxed));
        for fork in &self.forks.forks {
            fork.thread.store(0, Relaxed);
        }
        match answer {
            hold::IMPOSSIBLE => {
                say(b"foreswap: a forked child cannot get its parent's swapped memory; it ends\n");
                end(70);
            }
            0 => {
                if self.bypasses.load(Relaxed) && self.state.load(Relaxed) == state::OFF {
                    // The parent's did not follow.
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
