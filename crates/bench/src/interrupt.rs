//! Ctrl-C and SIGTERM: recorded, and checked wherever the bench waits.
//!
//! The handler only sets a flag. Every change to the system is therefore undone on the ordinary path, by dropping its
//! guard.

use std::process::ExitCode;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

/// How often a pause looks for a signal.
const LOOK: Duration = Duration::from_millis(50);

static RECEIVED: AtomicI32 = AtomicI32::new(0);

/// A signal asked us to end.
#[derive(Debug, Clone, Copy, thiserror::Error)]
#[error("interrupted; all changes to the system are undone")]
pub struct Interrupted(i32);

impl Interrupted {
    /// 128 + the signal's number, as a shell reports it.
    pub fn exit_code(self) -> ExitCode {
        ExitCode::from(128u8.saturating_add(self.0 as u8))
    }
}

extern "C" fn remember(signal: libc::c_int) {
    RECEIVED.store(signal, Ordering::Relaxed);
}

/// Begins to record SIGINT, SIGTERM and SIGHUP. Blocking system calls are interrupted (no SA_RESTART), so that the flag
/// is seen at once.
pub fn watch() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which a handler may do.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = remember as *const () as usize;
            libc::sigemptyset(&mut action.sa_mask);
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

/// Sleeps for `time`; fails as soon as a signal has come.
pub fn pause(time: Duration) -> Result<(), Interrupted> {
    let end = Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(LOOK));
    }
}

/// Fails once a signal has come.
pub fn check() -> Result<(), Interrupted> {
    match RECEIVED.load(Ordering::Relaxed) {
        0 => Ok(()),
        signal => Err(Interrupted(signal)),
    }
}
