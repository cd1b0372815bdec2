//! The engine of this process, from its start: one, for all callers, until the process ends.

use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, SeqCst};

use foreswap::ledger::protocol::SOCKET_VARIABLE;
use foreswap::program::state;
use foreswap::sys::modules;

use crate::error::Error;
use crate::opener::Opener;
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
/// One thread opens it, and none forks meanwhile.
pub static OPENER: Opener = Opener::new();
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
    OPENER.alone(|| match mode() {
        Some(_) if WITH.get() == text => Ok(()),
        Some(_) => Err(Error::OtherOptions { now: WITH.get() }),
        None => open_once(options).map(|mode| {
            WITH.set(&text);
            MODE.store(mode as u32, SeqCst);
        }),
    })
}

fn open_once(options: &[Vec<u8>]) -> Result<Mode, Error> {
    let system = |what| move |errno| Error::System { what, errno };
    let is_first = !PROGRAM.regions.are_all();
    if is_first {
        PROGRAM.regions.begin().map_err(system("mmap"))?;
    }
    // Set to nothing, it keeps a program from being managed.
    if std::env::var_os(SOCKET_VARIABLE).is_some_and(|name| !name.is_empty()) {
        return Ok(Mode::Run);
    }
    if is_first {
        let data = modules::static_data();
        // SAFETY: one thread opens it, and no other runs more of this module than that wait, and the first steps of a fork.
        unsafe { modules::bind_to_libc(&data, &[]) };
    }
    // Calls that lend memory to the kernel are not seen here.
    PROGRAM.about_to_lend();
    let socket = start::supervisor(options)?;
    if !PROGRAM.configure(socket.as_bytes(), u64::MAX) {
        return Err(Error::Silent(format!("its socket is {socket:?}")));
    }
    forks::note_rights();
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
