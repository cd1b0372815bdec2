//! On which CPU the pager runs.
//!
//! On a virtual machine the wake-up of an idle CPU costs several times the fault itself. While one
//! thread of the program does all the faulting, the pager runs on that thread's CPU: it is free the
//! moment the thread waits, and so is the thread's when the pager has served it. For the scheduler
//! to leave the thread there although the pager runs when it wakes it, the pager yields to everybody
//! (`SCHED_IDLE`), where it may (root) and as long as that does not starve it. As soon as several
//! threads fault, the scheduler decides.

use foreswap_core::units::Nanos;

use crate::sys::cpu::{self, LastCpu, RunDelay};

/// How often the choice is looked at again.
const PERIOD: Nanos = 4_000_000;
/// For how long the pager does not yield after it was starved: the first time, and at the most.
const HOLD_OFF: (Nanos, Nanos) = (500_000_000, 16_000_000_000);

/// The pager's placement.
pub struct Placement {
    all: Vec<usize>,
    here: Option<usize>,
    /// The only thread that has faulted since the last look; `None` when there were several.
    only: Option<u32>,
    faults: u32,
    last: LastCpu,
    due: Nanos,
    /// Where the pager may yield: its waiting for a CPU so far.
    delay: Option<RunDelay>,
    delayed: Nanos,
    looked: Nanos,
    yielding: bool,
    hold_off: Nanos,
    not_before: Nanos,
}

impl Placement {
    /// Starts wherever the scheduler put us, on the pager's thread.
    pub fn new() -> Self {
        let may_yield = rustix::process::geteuid().is_root();
        let delay = may_yield
            .then(RunDelay::of_this_thread)
            .and_then(Result::ok);
        Placement {
            all: cpu::allowed().unwrap_or_default(),
            here: None,
            only: None,
            faults: 0,
            last: LastCpu::new(),
            due: 0,
            delay,
            delayed: 0,
            looked: 0,
            yielding: false,
            hold_off: HOLD_OFF.0,
            not_before: 0,
        }
    }

    /// A thread faulted.
    pub fn on_fault(&mut self, tid: u32) {
        if self.faults == 0 {
            self.only = Some(tid);
        } else if self.only != Some(tid) {
            self.only = None;
        }
        self.faults += 1;
    }

    /// On the CPU of the only thread that faults.
    pub fn is_beside_the_program(&self) -> bool {
        self.here.is_some()
    }

    /// Move if that is better; cheap when nothing is due.
    pub fn look(&mut self, now: Nanos) {
        if now < self.due || self.faults == 0 {
            return;
        }
        self.due = now + PERIOD;
        self.faults = 0;
        let wanted = self.only.and_then(|tid| self.last.of(tid));
        let wanted = wanted.filter(|cpu| self.all.contains(cpu));
        self.look_at_delay(now);
        if wanted == self.here {
            return;
        }
        let set = match wanted {
            Some(cpu) => cpu::set_affinity([cpu]),
            None => cpu::set_affinity(self.all.iter().copied()),
        };
        if set.is_ok() {
            self.here = wanted;
        }
    }

    /// Yield or not.
    fn look_at_delay(&mut self, now: Nanos) {
        let Some(total) = self.delay.as_ref().and_then(RunDelay::total) else {
            return;
        };
        let waited = total - core::mem::replace(&mut self.delayed, total).min(total);
        let passed = now - core::mem::replace(&mut self.looked, now).min(now);
        // Some waiting is the purpose: the thread that was served goes first. Three quarters of the
        // time mean that somebody else needs this CPU.
        if self.yielding && waited > passed / 4 * 3 {
            self.not_before = now + self.hold_off;
            self.hold_off = (self.hold_off * 2).min(HOLD_OFF.1);
        }
        let yielding = self.only.is_some() && now >= self.not_before;
        if yielding != self.yielding && cpu::set_yielding(yielding).is_ok() {
            self.yielding = yielding;
        }
    }
}
