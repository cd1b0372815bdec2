//! The guard: an engine thread that ends the engine when the program no longer needs it.
//!
//! The engine is a process of its own and does not end with the program. The memory would stay, charged and useless.
//! This thread waits for the program's end. A few times a second it checks whether the program has executed another
//! file. A program that is about to do so announces it: it may be a forked child, whose memory keeps its parent's
//! from being moved.
//!
//! Conversely, the engine must not end before the program: without a holder of the userfaultfd the kernel fills
//! absent pages with zeros. The supervisor has a copy of the descriptor, and ends the program if the engine is gone
//! (`widows.rs` of the command). [`Uring::keep`] holds one in the program's memory itself, in case the supervisor is
//! gone as well.
//!
//! [`Uring::keep`]: foreswap_store::ring::Uring::keep

use std::ffi::c_void;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;

use super::{guests, handover};
use crate::ledger::protocol::{self, Client, Message};
use crate::program::Program;
use crate::sys::host::Host;
use crate::sys::{process, thread};

/// How often the guard checks whether the program has executed a file.
const PERIOD: Duration = Duration::from_millis(250);
/// The same when the program is about to, and for how long; then how often after that, and until when.
const NOW: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(20));
const SOON: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));

struct Guard {
    host: Host,
    /// Rung when the program is about to execute a file.
    bell: OwnedFd,
    supervisor: OwnedFd,
    program: &'static Program,
}

/// Start the guard of the program `host`. Returns the bell to ring when the program is about to execute a file.
pub(super) fn start(
    program: &'static Program,
    host: &Host,
    client: &Client,
) -> Result<OwnedFd, Errno> {
    let bell = super::boot::event()?;
    let guard = Guard {
        host: host.try_clone()?,
        bell: rustix::io::dup(&bell)?,
        supervisor: rustix::io::dup(client.fd())?,
        program,
    };
    let argument = Box::into_raw(Box::new(guard)).cast::<c_void>();
    // SAFETY: `work` keeps to the rules for engine threads and gets its argument alone.
    let spawned = unsafe { thread::spawn(c"fs-guard", 64 << 10, true, work, argument) };
    spawned?;
    Ok(bell)
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `start` made the pointer from a box and gave it to this thread alone.
    let mut guard = unsafe { Box::from_raw(argument.cast::<Guard>()) };
    let mut announced: Option<Instant> = None;
    loop {
        let since = announced.map(|at| at.elapsed());
        let period = match since {
            Some(since) if since < NOW.1 => NOW.0,
            Some(since) if since < SOON.1 => SOON.0,
            _ => PERIOD,
        };
        if guard.host.await_end(period, Some(guard.bell.as_fd())) {
            // Another process with its memory (a vfork child that outlives its parent, a thread created as a process)
            // would wait for pages for ever.
            match guard.host.heir() {
                Some(heir) => guard.host = heir,
                None => {
                    handover::await_children(guard.program.board.load(Relaxed));
                    guests::see_off(&guard.supervisor);
                    process::exit(0)
                }
            }
        }
        if guard.host.has_left() {
            handover::await_children(guard.program.board.load(Relaxed));
            guests::see_off(&guard.supervisor);
            // It continues without the engine and its old memory. Without a supervisor there is no receiver.
            let _ = protocol::send(&guard.supervisor, &Message::Bye, &[]);
            process::exit(0);
        }
        let mut count = [0; 8];
        if rustix::io::read(&guard.bell, &mut count).is_ok() {
            announced = Some(Instant::now());
        }
    }
}
