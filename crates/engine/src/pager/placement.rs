//! On which CPU the pager runs.
//!
//! On a virtual machine the wake-up of an idle CPU costs several times the fault itself. While one
//! thread of the program does all the faulting, the pager runs *beside* it, on that thread's CPU: it is
//! free the moment the thread waits, and so is the thread's when the pager has served it. For the
//! scheduler to leave the thread there although the pager runs when it wakes it, the pager yields to
//! everybody (`SCHED_IDLE`), where it may (root) and as long as that does not starve it. When a third has something to do
//! on this CPU the scheduler moves the thread all the same, and the pager follows. Of two CPUs one may be the better (see
//! `interrupted`). The thread's own affinity is not ours to change: when it shall be on the other CPU, the pager does not yield to
//! it while it wakes it, so that the scheduler puts it there, and follows.
//!
//! When that thread follows streams, or fills memory in order, most of the work is not for a fault but for
//! the pages to come, and can be done while the thread runs. Then, and as soon as several threads fault, the
//! scheduler decides: pinned to the other CPUs the pager would have to share them with the helpers while the thread
//! waits and its CPU is idle.

mod interrupted;

use foreswap_core::units::Nanos;

use self::interrupted::Interrupted;
use crate::sys::cpu::{self, LastCpu, RunDelay};
use crate::sys::interrupts::Interrupts;

/// How often the choice is looked at again.
const PERIOD: Nanos = 4_000_000;
/// And after it slept although it is beside the thread, which may have been moved.
const AFTER_SLEEP: Nanos = 300_000;
/// Waiting without a period in which it waited less that counts as starved.
const STARVED: Nanos = 32_000_000;
/// For how long the pager does not yield after it was starved: the first time, and at the most.
const HOLD_OFF: (Nanos, Nanos) = (500_000_000, 16_000_000_000);

/// Pages mapped for each fault, from which on the program follows streams.
const STREAMING: u64 = 8;

/// Where the pager runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// Wherever the scheduler puts it.
    Anywhere,
    /// On this CPU, with the thread that faults.
    Beside(usize),
}

/// The pager's placement.
pub struct Placement {
    all: Vec<usize>,
    here: Place,
    /// The only thread that has faulted since the last look; `None` when there were several.
    only: Option<u32>,
    faults: u64,
    /// Pages that had been mapped before they were touched, or by a first touch, at the last look.
    ahead: u64,
    last: LastCpu,
    due: Nanos,
    /// What tells of interrupts, where that matters and can be seen.
    interrupts: Option<Interrupts>,
    interrupted: Interrupted,
    /// The CPU that the thread shall be on.
    wish: Option<usize>,
    /// When the thread's CPU was looked up last, and whether the pager slept since.
    found: Nanos,
    slept: bool,
    may_yield: bool,
    /// The pager's waiting for a CPU so far.
    delay: Option<RunDelay>,
    delayed: Nanos,
    looked: Nanos,
    yielding: bool,
    patience: Patience,
}

/// When the pager yields its CPU.
struct Patience {
    hold_off: Nanos,
    not_before: Nanos,
    /// It yields since then.
    since: Option<Nanos>,
    /// For how long it has waited, in periods of which it waited for most.
    waited: Nanos,
}

impl Patience {
    const fn new() -> Self {
        Patience {
            hold_off: HOLD_OFF.0,
            not_before: 0,
            since: None,
            waited: 0,
        }
    }

    fn is_yielding(&self) -> bool {
        self.since.is_some()
    }

    /// Whether to yield from `now` on, where that is wanted. Of the last `passed` nanoseconds the pager was ready to
    /// run and had no CPU for `waited`.
    fn yields(&mut self, now: Nanos, wanted: bool, waited: Nanos, passed: Nanos) -> bool {
        if let Some(since) = self.since {
            // Some waiting is the purpose: the thread that was served goes first. Three quarters of the time mean
            // that somebody else needs this CPU, if it is not over at once.
            self.waited = match waited > passed / 4 * 3 {
                true => self.waited + waited,
                false => 0,
            };
            if self.waited >= STARVED {
                self.waited = 0;
                self.not_before = now + self.hold_off;
                self.hold_off = (self.hold_off * 2).min(HOLD_OFF.1);
            } else if now.saturating_sub(since) > self.hold_off {
                // Whoever it was is gone.
                self.hold_off = HOLD_OFF.0;
            }
        } else {
            self.waited = 0;
        }
        let yields = wanted && now >= self.not_before;
        self.since = yields.then(|| self.since.unwrap_or(now));
        yields
    }
}

impl Placement {
    /// Starts wherever the scheduler put us, on the pager's thread. `program` is the process whose threads fault.
    pub fn new(program: u32) -> Self {
        let all = cpu::allowed().unwrap_or_default();
        let may_yield = rustix::process::geteuid().is_root();
        // Of more than two the pager cannot choose where the scheduler puts the thread.
        let chooses = may_yield && all.len() == 2;
        Placement {
            all,
            here: Place::Anywhere,
            only: None,
            faults: 0,
            ahead: 0,
            last: LastCpu::new(program),
            due: 0,
            interrupts: chooses.then(Interrupts::open).and_then(Result::ok),
            interrupted: Interrupted::new(),
            wish: None,
            found: 0,
            slept: false,
            may_yield,
            delay: RunDelay::of_this_thread().ok(),
            delayed: 0,
            looked: 0,
            yielding: false,
            patience: Patience::new(),
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
        matches!(self.here, Place::Beside(_))
    }

    /// The pager has slept: beside the thread that faults it mostly need not.
    pub fn on_slept(&mut self) {
        self.slept = true;
    }

    /// Stay beside the thread that faults, if the scheduler has moved it.
    fn follow(&mut self, now: Nanos) {
        let Place::Beside(here) = self.here else {
            return;
        };
        if !self.slept || self.faults == 0 || now < self.found + AFTER_SLEEP {
            return;
        }
        (self.slept, self.found) = (false, now);
        let theirs = self.only.and_then(|tid| self.last.of(tid));
        if let Some(cpu) = theirs.filter(|cpu| *cpu != here && self.all.contains(cpu))
            && cpu::set_affinity([cpu]).is_ok()
        {
            self.here = Place::Beside(cpu);
            let is_right = self.wish.is_none_or(|wish| wish == cpu);
            self.set_yielding(self.patience.is_yielding() && is_right);
        }
    }

    /// Move if that is better; cheap when nothing is due. So far, `ahead` pages were mapped ahead, or by first touches, and
    /// so many `reads` made; the pager is `at_work` on something else than faults.
    pub fn look(&mut self, now: Nanos, ahead: u64, reads: u64, at_work: bool) {
        if now < self.due || self.faults == 0 && !at_work {
            self.follow(now);
            return;
        }
        self.slept = false;
        (self.due, self.found) = (now + PERIOD, now);
        let mapped = ahead - core::mem::replace(&mut self.ahead, ahead);
        let streaming = mapped > STREAMING * core::mem::take(&mut self.faults);
        let theirs = self.only.and_then(|tid| self.last.of(tid));
        let wanted = match theirs.filter(|cpu| self.all.contains(cpu)) {
            _ if at_work => Place::Anywhere,
            Some(cpu) if !streaming => Place::Beside(cpu),
            _ => Place::Anywhere,
        };
        self.wish = match (wanted, &mut self.interrupts) {
            (Place::Beside(at), Some(interrupts)) => {
                let counts = || interrupts.counts();
                self.interrupted.on_period(now, at, reads, counts)
            }
            _ => None,
        };
        self.look_at_delay(now, wanted);
        if wanted == self.here {
            return;
        }
        let others = self.all.iter().copied();
        let set = match wanted {
            Place::Anywhere => cpu::set_affinity(others),
            Place::Beside(cpu) => cpu::set_affinity([cpu]),
        };
        if set.is_ok() {
            self.here = wanted;
        }
    }

    /// Yield or not.
    fn look_at_delay(&mut self, now: Nanos, place: Place) {
        let Some(total) = self.delay.as_ref().and_then(RunDelay::total) else {
            return;
        };
        let waited = total - core::mem::replace(&mut self.delayed, total).min(total);
        let passed = now - core::mem::replace(&mut self.looked, now).min(now);
        let beside = matches!(place, Place::Beside(_));
        let yields = self
            .patience
            .yields(now, beside && self.may_yield, waited, passed);
        let goes_over = self.wish.is_some_and(|cpu| place != Place::Beside(cpu));
        self.set_yielding(yields && !goes_over);
    }

    fn set_yielding(&mut self, yielding: bool) {
        if yielding != self.yielding && cpu::set_yielding(yielding).is_ok() {
            self.yielding = yielding;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Apart from it each of its faults takes twice as long.
    #[test]
    fn it_follows_the_thread_that_was_moved() {
        std::thread::spawn(|| {
            let cpus = cpu::allowed().expect("allowed");
            assert!(cpus.len() > 1, "this test needs two CPUs");
            let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let mut placement = Placement::new(std::process::id());
            let ms = |n: u64| n * 1_000_000;
            let place = |placement: &mut Placement, on: usize, now: Nanos| {
                cpu::set_affinity([cpus[on]]).expect("pin");
                placement.on_fault(me);
                placement.look(now, 0, 0, false);
                placement.here == Place::Beside(cpus[on])
            };
            assert!(place(&mut placement, 0, ms(10)));
            assert!(!place(&mut placement, 1, ms(11)), "it did not sleep");
            placement.on_slept();
            assert!(place(&mut placement, 1, ms(12)));
            placement.on_slept();
            assert!(!place(&mut placement, 0, ms(12) + 1), "just looked up");
            assert!(place(&mut placement, 0, ms(13)));
            assert!(
                !place(&mut placement, 1, ms(13) + 500_000),
                "it did not sleep"
            );
            assert!(place(&mut placement, 1, ms(14)), "due anyway");
            cpu::set_affinity(cpus.iter().copied()).expect("unpin");
        })
        .join()
        .expect("no panic");
    }

    /// Whoever wanted the CPU for a while must not cost the faults of later hours.
    #[test]
    fn who_was_starved_holds_off_and_forgets_it() {
        let mut patience = Patience::new();
        let ms = |n: u64| n * 1_000_000;
        assert!(patience.yields(ms(4), true, 0, ms(4)));
        // That may be over at once.
        assert!(patience.yields(ms(4), true, ms(4), ms(4)));
        // Starved: not for half a second, then, starved again, not for a whole one.
        assert!(!patience.yields(ms(8), true, ms(28), ms(28)));
        assert!(!patience.yields(ms(507), true, 0, ms(4)));
        assert!(patience.yields(ms(508), true, 0, ms(4)));
        assert!(!patience.yields(ms(512), true, ms(32), ms(32)));
        assert!(!patience.yields(ms(1511), true, 0, ms(4)));
        assert!(patience.yields(ms(1512), true, 0, ms(4)));
        // It went well for longer than the next time would be.
        assert!(patience.yields(ms(3513), true, 0, ms(4)));
        assert!(!patience.yields(ms(3517), true, ms(32), ms(32)));
        assert!(patience.yields(ms(4017), true, 0, ms(4)));
        assert!(!patience.yields(ms(4021), false, 0, ms(4)), "not wanted");
        // What it waited before it stopped is forgotten.
        let mut patience = Patience::new();
        assert!(patience.yields(ms(4), true, 0, ms(4)));
        assert!(!patience.yields(ms(32), false, ms(28), ms(28)));
        assert!(!patience.yields(ms(36), false, 0, ms(4)));
        assert!(patience.yields(ms(40), true, 0, ms(4)));
        assert!(patience.yields(ms(44), true, ms(4), ms(4)));
    }
}
