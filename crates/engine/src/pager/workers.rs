//! What does the I/O of an engine, and what hashes and compresses for it.
//!
//! io_uring where the kernel gives it, else some threads; helpers as many as the options say.

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
pub(super) const DEPTH: u32 = 128;
/// Threads that stand in for io_uring.
const POOL_THREADS: usize = 4;

/// Opens what does the I/O, and keeps `descriptors` open in the program's memory itself, as [`Uring::keep`] says.
pub(super) fn open_io(
    options: &Options,
    client: &Client,
    descriptors: &[RawFd],
) -> Result<Box<dyn Io>, BootError> {
    let refused = match options.io {
        IoBackend::Threads => None,
        IoBackend::Auto | IoBackend::Uring => match Uring::new(&[], DEPTH) {
            Ok(ring) => {
                // Where it is refused the supervisor alone keeps them.
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
        // The supervisor says it once for all processes; if it is gone there is nobody to tell.
        let _ = client.log(Severity::Note, &text);
    }
    if let Ok(ring) = Uring::new(&[], 1) {
        // For this alone, and as long as the memory lives.
        let _ = ring.keep(descriptors);
        core::mem::forget(ring);
    }
    let spawn = |worker: Worker| {
        let (_, argument) = worker.into_raw();
        // SAFETY: a worker keeps to what engine threads may do and gets its argument alone.
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
        // SAFETY: a helper keeps to what engine threads may do and gets its argument alone.
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
