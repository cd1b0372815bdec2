//! On which CPU the pager runs.
//!
//! On a virtual machine the wake-up of an idle CPU costs several times the fault itself. While one
//! thread of the program does all the faulting, the pager runs on that thread's CPU: it is free the
//! moment the thread waits, and so is the thread's when the pager has served it. As soon as several
//! threads fault, the scheduler decides.

use foreswap_core::units::Nanos;

use crate::sys::cpu::{self, LastCpu};

/// How often the choice is looked at again.
const PERIOD: Nanos = 4_000_000;

/// The pager's placement.
pub struct Placement {
    all: Vec<usize>,
    here: Option<usize>,
    /// The only thread that has faulted since the last look; `None` when there were several.
    only: Option<u32>,
    faults: u32,
    last: LastCpu,
    due: Nanos,
}

impl Placement {
    /// Starts wherever the scheduler put us.
    pub fn new() -> Self {
        let all = cpu::allowed().unwrap_or_default();
        Placement {
            all,
            here: None,
            only: None,
            faults: 0,
            last: LastCpu::new(),
            due: 0,
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
}
