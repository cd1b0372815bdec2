//! The shared object that `foreswap run` injects.
//!
//! It stands before the C library in the program and forwards everything; it only notices where
//! memory appears and when the program forks, and tells `foreswap::program`. Nothing here allocates,
//! takes a lock of the engine's or uses thread-local storage: these functions run on the program's
//! threads, in its signal handlers, on stacks that may be managed themselves. A process that stays
//! small gets no thread and not a word.

mod executables;
mod forks;
mod heap;
mod lends;
mod locks;
mod mappings;
mod real;

use core::ffi::{CStr, c_char, c_int};

use foreswap::program::Program;
use foreswap::sys::arena_alloc::EngineAlloc;

/// What the engine allocates comes from memory of its own, never from the program's heap.
#[global_allocator]
static ALLOCATOR: EngineAlloc = EngineAlloc::new();

static PROGRAM: Program = Program::new(&ALLOCATOR);

/// From how many bytes on a process gets an engine, when the supervisor does not say.
const THRESHOLD: u64 = 8 << 20;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs when the object is loaded, before the constructors of all others (`-z initfirst`), the C library's included: of
/// that only what needs no constructor is used here.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // Later the program may start its engine from inside dlopen, and the engine's own calls would
    // then wait for the loader's lock.
    heap::look_up();
    mappings::look_up();
    forks::look_up();
    locks::look_up();
    lends::look_up();
    let Some(socket) = first_variable(environment, c"FORESWAP_SOCKET") else {
        return;
    };
    let threshold = first_variable(environment, c"FORESWAP_THRESHOLD")
        .and_then(|text| text.to_str().ok()?.parse().ok());
    heap::begin();
    if PROGRAM.configure(socket.to_bytes(), threshold.unwrap_or(THRESHOLD)) {
        forks::begin();
    }
}

/// The value of a variable. The C library's own does not know the environment yet.
fn first_variable(environment: *const *const c_char, name: &CStr) -> Option<&'static CStr> {
    let mut at = environment;
    loop {
        // SAFETY: the loader passes pointers to zero-terminated strings, and a null at the end.
        let entry = unsafe { at.as_ref() }.filter(|entry| !entry.is_null())?;
        // SAFETY: as above. The strings stay where they are, as nobody unmaps the first stack.
        let entry: &'static CStr = unsafe { CStr::from_ptr(*entry) };
        let rest = entry.to_bytes_with_nul().strip_prefix(name.to_bytes());
        if let Some(value) = rest.and_then(|rest| rest.strip_prefix(b"=")) {
            return CStr::from_bytes_with_nul(value).ok();
        }
        at = at.wrapping_add(1);
    }
}

fn variable(name: &CStr) -> Option<&'static CStr> {
    // SAFETY: as the program's own use of the function.
    let value = unsafe { libc::getenv(name.as_ptr()) }.cast_const();
    if value.is_null() {
        return None;
    }
    // SAFETY: getenv gives a zero-terminated string that stays until the variable is changed; it is only looked at by who
    // called.
    Some(unsafe { CStr::from_ptr(value.cast::<c_char>()) })
}
