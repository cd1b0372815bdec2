//! The shared object that `foreswap run` injects.
//!
//! It interposes C library functions and forwards everything. It only notices new memory and forks, and reports them
//! to `foreswap::program`. Code here does not allocate, take a lock of the engine or use thread-local storage: these
//! functions run on the program's threads, in its signal handlers, on stacks that may be managed. A small process
//! gets no engine thread and no message, except the lookout's thread if the program can map memory past the C
//! library.

mod bypass;
mod emulators;
mod executables;
mod files;
mod forks;
mod heap;
mod in_parts;
mod lends;
mod listing;
mod locks;
mod mappings;
mod nested;
mod proc_mem;
mod real;
mod rlimits;
mod robust;
mod userfaults;

use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::Ordering::Relaxed;

use foreswap::lookout;
use foreswap::program::{Program, state};
use foreswap::sys::arena_alloc::EngineAlloc;
use foreswap::sys::modules;

/// The engine allocates from its own memory, never from the program's heap.
#[global_allocator]
static ALLOCATOR: EngineAlloc = EngineAlloc::new();

static PROGRAM: Program = Program::new(&ALLOCATOR);

/// The size in bytes at which a process gets an engine, if the supervisor sets none.
const THRESHOLD: u64 = 8 << 20;

#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = start;

/// Runs when the object is loaded, before the constructors of all others (`-z initfirst`), including the C library's:
/// it uses only functions that need no constructor.
extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // Later the program may start its engine from inside dlopen, and the engine's own calls would then wait for the
    // loader's lock.
    heap::look_up();
    mappings::look_up();
    forks::look_up();
    locks::look_up();
    lends::look_up();
    proc_mem::look_up();
    listing::look_up();
    userfaults::look_up();
    rlimits::look_up();
    robust::look_up();
    let Some(socket) = first_variable(environment, c"FORESWAP_SOCKET") else {
        return;
    };
    let threshold = first_variable(environment, c"FORESWAP_THRESHOLD")
        .and_then(|text| text.to_str().ok()?.parse().ok());
    heap::begin();
    if let Some(why) = emulators::found(|name| first_variable(environment, name).is_some()) {
        // Never; the program's children are still examined.
        PROGRAM.configure(socket.to_bytes(), u64::MAX);
        executables::say_once(why);
        return;
    }
    let data = modules::static_data();
    // SAFETY: constructors run before any thread of ours.
    unsafe { modules::bind_to_libc(&data, mappings::NAMES) };
    if PROGRAM.configure(socket.to_bytes(), threshold.unwrap_or(THRESHOLD)) {
        forks::begin();
        if let Some(patterns) = first_variable(environment, c"FORESWAP_MAP_FILES") {
            files::begin(patterns);
        }
        mappings::note_what_is_there(&data);
        if PROGRAM.state.load(Relaxed) == state::OFF && bypass::is_possible() {
            PROGRAM.bypasses.store(true, Relaxed);
            lookout::start(&PROGRAM);
        }
    }
}

/// The value of a variable. The C library's own lookup does not know the environment yet.
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
