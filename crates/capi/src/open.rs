//! The engine of this process, from its start: one, for all callers, until the process ends.

use core::sync::atomic::Ordering::{Acquire, SeqCst};
use core::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use foreswap::ledger::protocol::SOCKET_VARIABLE;
use foreswap::program::{own_pid, state};
use foreswap::sys::modules;

use crate::error::Error;
use crate::text::Text;
use crate::{PROGRAM, forks, start};

/// The most bytes of all options together.
const OPTIONS: usize = 4096;

/// How regions are managed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// By the engine of this process.
    Own = 1,
    /// As all memory of this process: `foreswap run` has started it.
    Run = 2,
}

static MODE: AtomicU32 = AtomicU32::new(0);
/// The process whose thread is opening it; 0 if none is.
static OPENER: AtomicU32 = AtomicU32::new(0);
static WITH: Text<OPTIONS> = Text::new();

/// `None` before it is open.
pub fn mode() -> Option<Mode> {
    match MODE.load(Acquire) {
        1 => Some(Mode::Own),
        2 => Some(Mode::Run),
        _ => None,
    }
}

/// Starts it with words of `foreswap run`. If it was started with the same ones, nothing happens.
pub fn open(options: &[Vec<u8>]) -> Result<(), Error> {
    let words = options.iter().map(|word| String::from_utf8_lossy(word));
    let text = words.collect::<Vec<_>>().join(" ");
    if text.len() >= OPTIONS {
        return Err(Error::LongOptions {
            bytes: text.len(),
            most: OPTIONS - 1,
        });
    }
    begin();
    let opened = match mode() {
        Some(_) if WITH.get() == text => Ok(()),
        Some(_) => Err(Error::OtherOptions { now: WITH.get() }),
        None => open_once(options).map(|mode| {
            WITH.set(&text);
            MODE.store(mode as u32, SeqCst);
        }),
    };
    OPENER.store(0, SeqCst);
    opened
}

/// Waits until no other thread of this process opens it. A thread that did when its process forked is not in the child.
fn begin() {
    let own = own_pid();
    loop {
        let other = OPENER.load(Ordering::Relaxed);
        let is_free = other != own
            && OPENER
                .compare_exchange(other, own, SeqCst, Ordering::Relaxed)
                .is_ok();
        if is_free {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn open_once(options: &[Vec<u8>]) -> Result<Mode, Error> {
    // Set to nothing, it keeps a program from being managed.
    if std::env::var_os(SOCKET_VARIABLE).is_some_and(|name| !name.is_empty()) {
        return Ok(Mode::Run);
    }
    let system = |what| move |errno| Error::System { what, errno };
    if !PROGRAM.regions.are_all() {
        let data = modules::static_data();
        // SAFETY: one thread opens it, and no other runs more of this module than that wait.
        unsafe { modules::bind_to_libc(&data, &[]) };
        PROGRAM.regions.begin().map_err(system("mmap"))?;
    }
    // Calls that lend memory to the kernel are not seen here.
    PROGRAM.about_to_lend();
    let socket = start::supervisor(options)?;
    if !PROGRAM.configure(socket.as_bytes(), u64::MAX) {
        return Err(Error::Silent(format!("its socket is {socket:?}")));
    }
    forks::begin();
    PROGRAM.start().map_err(|why| {
        // It may be tried again.
        PROGRAM.set_state(state::OFF);
        match why.is_empty() {
            true => Error::NoEngine,
            false => Error::Refused(why),
        }
    })?;
    Ok(Mode::Own)
}
