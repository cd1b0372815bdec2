//! Runs a machine such that any end is detected: an assertion of the oracle, a panic of the core, or a hang of the
//! core in a loop of its own.
//!
//! A run has a thread of its own. The shipped program aborts on a panic; the panic is therefore caught in the hook,
//! which reports it and then, if it cannot unwind, keeps the thread for ever. Such a lost thread costs the memory of
//! its machine, a few hundred KiB.

use std::cell::RefCell;
use std::panic;
use std::sync::Once;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use foreswap_model::{Machine, Plan, Step, Summary};

/// A run without a sign of life for this many checks hangs. Checks instead of time: this process may have been
/// stopped.
const HANG: u32 = 60;
const LOOK: Duration = Duration::from_secs(1);
/// Steps between two signs of life.
const SIGN: usize = 4096;

/// The result of a run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// It ended normally.
    Sound(Box<Summary>),
    /// It found a bug.
    Bug(Finding),
}

/// A bug that was found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The failed assertion.
    pub what: String,
    /// Its place in the source.
    pub place: String,
    /// The step that showed it, from 1; one more than the last for the end of the run.
    pub step: u64,
}

enum Told {
    Alive,
    Ended(Verdict),
}

thread_local! {
    /// For a thread that runs a machine: the channel for its result, and its current step.
    static RUN: RefCell<Option<(Sender<Told>, u64)>> = const { RefCell::new(None) };
}

fn at_step(step: u64) {
    RUN.with_borrow_mut(|run| {
        if let Some((sender, at)) = run {
            *at = step;
            if step.is_multiple_of(SIGN as u64) {
                // The receiver may be gone.
                let _ = sender.send(Told::Alive);
            }
        }
    });
}

fn tell(panic: &panic::PanicHookInfo<'_>) -> bool {
    RUN.with_borrow_mut(|run| {
        let Some((sender, step)) = run.take() else {
            return false;
        };
        let what = panic.payload_as_str().unwrap_or("a panic").to_owned();
        let place = panic
            .location()
            .map_or_else(String::new, ToString::to_string);
        let finding = Finding { what, place, step };
        let _ = sender.send(Told::Ended(Verdict::Bug(finding)));
        true
    })
}

/// Panics of runs are reported to their callers; all others as before.
fn set_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            if !tell(panic) {
                before(panic);
                return;
            }
            if cfg!(panic = "abort") {
                loop {
                    thread::park();
                }
            }
        }));
    });
}

/// Runs `steps` on a machine of `plan`.
pub fn run(plan: Plan, steps: impl Iterator<Item = Step> + Send + 'static) -> Verdict {
    set_hook();
    let (sender, receiver) = mpsc::channel();
    let thread = thread::Builder::new().name("torture".into());
    let body = move || {
        RUN.set(Some((sender.clone(), 0)));
        let mut machine = Machine::new(plan);
        let mut count = 1;
        for step in steps {
            at_step(count);
            machine.step(&step);
            count += 1;
        }
        at_step(count);
        let summary = machine.end();
        RUN.set(None);
        let _ = sender.send(Told::Ended(Verdict::Sound(Box::new(summary))));
    };
    let mut step = 0;
    let lost = |what: &str, step| {
        Verdict::Bug(Finding {
            what: what.into(),
            place: String::new(),
            step,
        })
    };
    if let Err(error) = thread.spawn(body) {
        return lost(&format!("no thread could be started: {error}"), 0);
    }
    let mut looks = 0;
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(Told::Alive) => (step, looks) = (step + SIGN as u64, 0),
            Ok(Told::Ended(verdict)) => return verdict,
            Err(RecvTimeoutError::Timeout) if looks < HANG => looks += 1,
            Err(RecvTimeoutError::Timeout) => {
                return lost("the core has not come back for a minute of host time", step);
            }
            Err(RecvTimeoutError::Disconnected) => return lost("the run vanished", step),
        }
    }
}
