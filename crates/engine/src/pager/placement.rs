//! On which CPU the pager runs.
//!
//! On a virtual machine the wake-up of an idle CPU costs several times the fault itself. While a single thread of the
//! program faults, the pager runs *beside* it, on the same CPU. That CPU is free as soon as the thread waits, and
//! again as soon as the pager has served it.
//!
//! The scheduler would move the thread when the pager wakes it. To keep it there, the pager yields to all tasks
//! (`SCHED_IDLE`), if it may (root) and as long as it does not starve. If a third task needs the CPU, the scheduler
//! moves the thread anyway, and the pager follows.
//!
//! One of two CPUs may be better (see `interrupted`). The pager does not change the affinity of the thread. To move
//! the thread, the pager stops yielding while it wakes the thread. The scheduler then wakes it on the other CPU, and
//! the pager follows.
//!
//! A thread that follows streams, or fills memory in order, needs the pager mostly for future pages, and the pager
//! can work while the thread runs. The scheduler then places the pager, as it does when several threads fault. Pinned
//! to the other CPUs, the pager would share them with the helpers while the thread waits and its CPU is idle.

mod interrupted;

use foreswap_core::units::Nanos;

use self::interrupted::Interrupted;
use crate::sys::cpu::{self, LastCpu, RunDelay};
use crate::sys::interrupts::Interrupts;

/// How often the placement is reconsidered.
const PERIOD: Nanos = 4_000_000;
/// How soon the pager looks for the thread after it slept beside it: the thread may have been moved.
const AFTER_SLEEP: Nanos = 300_000;
/// The pager is starved after this much waiting, in consecutive periods spent mostly waiting.
const STARVED: Nanos = 32_000_000;
/// How long the pager does not yield after it starved: the first time, and the maximum.
const HOLD_OFF: (Nanos, Nanos) = (500_000_000, 16_000_000_000);

/// Pages mapped per fault above which the program follows streams.
const STREAMING: u64 = 8;

/// Where the pager runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// On any CPU of the scheduler's choice.
    Anywhere,
    /// On this CPU, beside the faulting thread.
    Beside(usize),
}

/// The pager's placement.
pub struct Placement {
    all: Vec<usize>,
    here: Place,
    /// The only thread that has faulted since the last look; `None` if several have.
    only: Option<u32>,
    faults: u64,
    /// Pages mapped ahead, or by first touches, until the last look.
    ahead: u64,
    last: LastCpu,
    due: Nanos,
    /// The interrupt counts, if they matter and can be read.
    interrupts: Option<Interrupts>,
    interrupted: Interrupted,
    /// The CPU on which the thread should run.
    wish: Option<usize>,
    /// When the thread's CPU was last looked up, and whether the pager has slept since.
    found: Nanos,
    slept: bool,
    may_yield: bool,
    /// The pager's total wait for a CPU.
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
    /// The start of the current yielding.
    since: Option<Nanos>,
    /// The wait in consecutive periods spent mostly waiting.
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

    /// Whether to yield from `now` on, if `wanted`. In the last `passed` nanoseconds the pager was runnable without a
    /// CPU for `waited`.
    fn yields(&mut self, now: Nanos, wanted: bool, waited: Nanos, passed: Nanos) -> bool {
        if let Some(since) = self.since {
            // Some waiting is intended: the served thread runs first. Three quarters of the time mean that another
            // task needs this CPU, unless it ends soon.
            self.waited = match waited > passed / 4 * 3 {
                true => self.waited + waited,
                false => 0,
            };
            if self.waited >= STARVED {
                self.waited = 0;
                self.not_before = now + self.hold_off;
                self.hold_off = (self.hold_off * 2).min(HOLD_OFF.1);
            } else if now.saturating_sub(since) > self.hold_off {
                // The other task is gone.
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
    /// Starts on any CPU, on the pager's thread. `program` is the process whose threads fault.
    pub fn new(program: u32) -> Self {
        let all = cpu::allowed().unwrap_or_default();
        let may_yield = rustix::process::geteuid().is_root();
        // With more than two CPUs, the pager cannot choose the CPU on which the scheduler wakes the thread.
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

    /// The pager has slept. Beside the faulting thread it rarely needs to.
    pub fn on_slept(&mut self) {
        self.slept = true;
    }

    /// Stay beside the faulting thread, if the scheduler has moved it.
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

    /// Reconsider the placement; cheap when nothing is due. `ahead` pages were mapped ahead or by first touches so
    /// far, and `reads` made. `at_work`: the pager has work besides faults.
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

    /// Decide whether to yield.
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

    /// On another CPU, each of the thread's faults takes twice as long.
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

    /// A task that used the CPU for a while must not slow down faults hours later.
    #[test]
    fn a_starved_pager_holds_off_for_a_while() {
        let mut patience = Patience::new();
        let ms = |n: u64| n * 1_000_000;
        assert!(patience.yields(ms(4), true, 0, ms(4)));
        // The wait may end at once.
        assert!(patience.yields(ms(4), true, ms(4), ms(4)));
        // Starved: no yielding for half a second; starved again: for a whole second.
        assert!(!patience.yields(ms(8), true, ms(28), ms(28)));
        assert!(!patience.yields(ms(507), true, 0, ms(4)));
        assert!(patience.yields(ms(508), true, 0, ms(4)));
        assert!(!patience.yields(ms(512), true, ms(32), ms(32)));
        assert!(!patience.yields(ms(1511), true, 0, ms(4)));
        assert!(patience.yields(ms(1512), true, 0, ms(4)));
        // Yielding went well for longer than the next hold-off.
        assert!(patience.yields(ms(3513), true, 0, ms(4)));
        assert!(!patience.yields(ms(3517), true, ms(32), ms(32)));
        assert!(patience.yields(ms(4017), true, 0, ms(4)));
        assert!(!patience.yields(ms(4021), false, 0, ms(4)), "not wanted");
        // Waits before the end of yielding are forgotten.
        let mut patience = Patience::new();
        assert!(patience.yields(ms(4), true, 0, ms(4)));
        assert!(!patience.yields(ms(32), false, ms(28), ms(28)));
        assert!(!patience.yields(ms(36), false, 0, ms(4)));
        assert!(patience.yields(ms(40), true, 0, ms(4)));
        assert!(patience.yields(ms(44), true, ms(4), ms(4)));
    }
}
