//! The watcher: an engine thread that wakes the pager when other processes press, and that ends the
//! process, with a word, when the pager itself hangs.
//!
//! The pager must never touch managed memory: its own fault would wait for itself. Should it happen,
//! nobody would be left to notice, so this thread looks at the pager's pulse: a turn of the loop that
//! does not end while the pager sleeps in the kernel is such a fault.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::Duration;

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use super::Pager;
use crate::ledger::Ledger;
use crate::ledger::protocol::{Client, Severity};
use crate::program::{Program, own_pid};
use crate::sys::{process, thread};

/// How often the pulse is felt.
const PERIOD: Duration = Duration::from_millis(500);
/// Looks that find the same turn asleep before the process is ended.
const LOOKS: u32 = 8;

/// Signs of life of the pager.
#[derive(Default)]
pub(crate) struct Pulse {
    turn: AtomicU64,
    asleep: AtomicBool,
    paused: AtomicBool,
    tid: AtomicU32,
}

impl Pulse {
    /// The loop begins, on this thread.
    pub(crate) fn begin(&self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.tid.store(tid.cast_unsigned(), SeqCst);
    }

    /// The loop waits for something to happen.
    pub(crate) fn sleep(&self) {
        self.asleep.store(true, Relaxed);
    }

    /// Something happened.
    pub(crate) fn wake(&self) {
        self.turn.fetch_add(1, Relaxed);
        self.asleep.store(false, Relaxed);
    }

    /// The loop waits for the supervisor.
    pub(crate) fn pause(&self, paused: bool) {
        self.paused.store(paused, Relaxed);
    }
}

struct Watch {
    pulse: Arc<Pulse>,
    program: &'static Program,
    ledger: &'static Ledger,
    bell: OwnedFd,
}

/// Start the watcher of `pager`.
pub(crate) fn start(pager: &Pager) -> Result<(), Errno> {
    let watch = Watch {
        pulse: Arc::clone(&pager.pulse),
        program: pager.program,
        ledger: pager.w.ledger,
        bell: rustix::io::dup(&pager.bell)?,
    };
    let argument = Box::into_raw(Box::new(watch)).cast::<c_void>();
    // SAFETY: `work` keeps to what engine threads may do and gets its argument alone.
    let spawned = unsafe { thread::spawn(c"fs-watch", 64 << 10, true, work, argument) };
    spawned.map(drop)
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `start` made the pointer from a box and gave it to this thread alone.
    let watch = unsafe { Box::from_raw(argument.cast::<Watch>()) };
    let mut pressure = watch.ledger.pressure();
    let (mut last, mut looks) = (u64::MAX, 0);
    loop {
        let seen = watch.ledger.wait_pressure(pressure, PERIOD);
        if seen != pressure {
            pressure = seen;
            let _ = rustix::io::write(watch.bell.as_fd(), &1u64.to_ne_bytes());
            continue;
        }
        let pulse = &watch.pulse;
        let turn = pulse.turn.load(Relaxed);
        let tid = pulse.tid.load(Relaxed);
        let stuck = turn == last
            && tid != 0
            && !pulse.asleep.load(Relaxed)
            && !pulse.paused.load(Relaxed)
            && is_asleep(tid);
        last = turn;
        looks = if stuck { looks + 1 } else { 0 };
        if looks >= LOOKS {
            let text = format!(
                "the pager thread (tid {tid}) of process {} waits inside the kernel, most likely for a page that only it could bring; the process is ended",
                own_pid()
            );
            // If the supervisor is gone there is nobody to tell.
            let _ = Client::connect(&watch.program.socket_name())
                .and_then(|client| client.log(Severity::Error, &text));
            process::abort();
        }
    }
}

/// Whether a thread of this process sleeps in the kernel, by the state in its stat line.
fn is_asleep(tid: u32) -> bool {
    let Ok(stat) = std::fs::read(format!("/proc/self/task/{tid}/stat")) else {
        return false;
    };
    let after_name = stat.iter().rposition(|&b| b == b')').map_or(0, |at| at + 2);
    matches!(stat.get(after_name), Some(b'S' | b'D'))
}
