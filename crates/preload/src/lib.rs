//! The shared object that `foreswap run` injects.
//!
//! It stands before the C library in the program and forwards everything; it only notices where
//! memory appears and when the program forks, and tells `foreswap::program`. Nothing here allocates,
//! takes a lock of the engine's or uses thread-local storage: these functions run on the program's
//! threads, in its signal handlers, on stacks that may be managed themselves. A process that stays
//! small gets no thread and not a word; but for a thread that looks now and then where the program can
//! ask for memory past the C library.

mod bypass;
mod emulators;
mod executables;
mod forks;
mod heap;
mod listing;
mod locks;
mod mappings;
mod real;
mod userfaults;

use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering::Relaxed;

use foreswap::lookout;
use foreswap::program::{Program, state};
use foreswap::sys::arena_alloc::EngineAlloc;
use foreswap::sys::modules;

/// What the engine allocates comes from memory of its own, never from the program's heap.
#[global_allocator]
static ALLOCATOR: EngineAlloc = EngineAlloc::new();

static PROGRAM: Program = Program::new(&ALLOCATOR);

/// From how many bytes on a process gets an engine, when the supervisor does not say.
const THRESHOLD: u64 = 8 << 20;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// Runs when the object is loaded, before the program's own constructors.
extern "C" fn start() {
    // Later the program may start its engine from inside dlopen, and the engine's own calls would
    // then wait for the loader's lock.
    heap::look_up();
    mappings::look_up();
    forks::look_up();
    locks::look_up();
    listing::look_up();
    userfaults::look_up();
    let Some(socket) = variable(c"FORESWAP_SOCKET") else {
        return;
    };
    let threshold =
        variable(c"FORESWAP_THRESHOLD").and_then(|text| text.to_str().ok()?.parse().ok());
    heap::begin();
    if let Some(why) = emulators::found() {
        // Never: the program's children are looked at all the same.
        PROGRAM.configure(socket.to_bytes(), u64::MAX);
        executables::say_once(why);
        return;
    }
    let data = modules::static_data();
    // SAFETY: constructors run before any thread of ours, and may use the linker.
    unsafe { modules::bind_to_libc(&data) };
    if PROGRAM.configure(socket.to_bytes(), threshold.unwrap_or(THRESHOLD)) {
        forks::begin();
        mappings::note_what_is_there(&data);
        if PROGRAM.state.load(Relaxed) == state::OFF && bypass::is_possible() {
            PROGRAM.bypasses.store(true, Relaxed);
            lookout::start(&PROGRAM);
        }
    }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: constructors run before any thread could change the environment.
    let value = unsafe { libc::getenv(name.as_ptr()) }.cast_const();
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv gives a zero-terminated string that stays until the variable is changed; it is
    // only read before the constructor returns.
    Some(unsafe { CStr::from_ptr(value.cast::<c_char>()) })
}
