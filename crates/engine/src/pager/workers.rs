//! The workers of an engine: I/O, hashing and compression.
//!
//! I/O goes through io_uring if the kernel allows it, else through a few threads. The options set the number of
//! helpers.

use std::ffi::c_void;

use foreswap_store::ring::{Helper, Io, Pool, Spawn, SpawnRefused, Uring, Worker};
use rustix::fd::RawFd;

use super::boot::BootError;
use crate::ledger::protocol::{Client, Severity};
use crate::ledger::{IoBackend, Options};
use crate::sys::cpu::Cpus;
use crate::sys::thread;

/// Stack of a helper: it hashes and compresses.
const HELPER_STACK: usize = 256 << 10;
/// I/Os in flight.
pub const DEPTH: u32 = 128;
/// Threads that replace io_uring.
const POOL_THREADS: usize = 4;

/// Opens the I/O backend, and keeps `descriptors` open in the program's memory itself, see [`Uring::keep`].
pub(super) fn open_io(
    options: &Options,
    client: &Client,
    descriptors: &[RawFd],
) -> Result<Box<dyn Io>, BootError> {
    let refused = match options.io {
        IoBackend::Threads => None,
        IoBackend::Auto | IoBackend::Uring => match Uring::new(&[], DEPTH) {
            Ok(ring) => {
                // If it is refused, the supervisor alone keeps them.
                let _ = ring.keep(descriptors);
                return Ok(Box::new(ring));
            }
            Err(why) => Some(why.to_string()),
        },
    };
    if let Some(why) = refused {
        if options.io == IoBackend::Uring {
            return Err(BootError::Io(why));
        }
        let text = format!("io_uring is not available ({why}); {POOL_THREADS} threads do the I/O");
        // The supervisor prints it once for all processes; without a supervisor there is no reader.
        let _ = client.log(Severity::Note, &text);
    }
    if let Ok(ring) = Uring::new(&[], 1) {
        // For this purpose only, and as long as the memory exists.
        let _ = ring.keep(descriptors);
        core::mem::forget(ring);
    }
    let spawn = |worker: Worker| {
        let (_, argument) = worker.into_raw();
        // SAFETY: a worker keeps to the rules for engine threads and gets its argument alone.
        let spawned = unsafe { thread::spawn(c"fs-io", 64 << 10, true, work, argument) };
        spawned.map(drop).map_err(|errno| {
            // SAFETY: the thread did not start, so the argument was not used.
            drop(unsafe { Worker::from_raw(argument) });
            SpawnRefused(errno.raw_os_error())
        })
    };
    match Pool::new(&[], DEPTH, POOL_THREADS, spawn) {
        Ok(pool) => Ok(Box::new(pool)),
        Err(why) => Err(BootError::Io(why.to_string())),
    }
}

/// Starts a helper, which may run on `cpus`.
pub(super) fn helpers_of(cpus: Cpus) -> Spawn {
    Box::new(move |helper: Helper| {
        let argument = helper.into_raw();
        // SAFETY: a helper keeps to the rules for engine threads and gets its argument alone.
        let spawned =
            unsafe { thread::spawn(c"fs-help", HELPER_STACK, true, run_helper, argument) };
        spawned
            .map(|thread| cpus.free(thread.tid()))
            .map_err(|errno| {
                // SAFETY: the thread did not start, so the argument was not used.
                drop(unsafe { Helper::from_raw(argument) });
                SpawnRefused(errno.raw_os_error())
            })
    })
}

extern "C" fn run_helper(argument: *mut c_void) {
    // SAFETY: `helpers_of` made the argument from a helper and gave it to this thread alone.
    unsafe { Helper::from_raw(argument) }.run();
}

extern "C" fn work(argument: *mut c_void) {
    // SAFETY: `open_io` made the argument from a worker and gave it to this thread alone.
    unsafe { Worker::from_raw(argument) }.run();
}
