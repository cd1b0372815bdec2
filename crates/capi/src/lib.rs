//! Regions of memory beyond RAM, for programs that foreswap did not start: `libforeswap_capi.so`.
//!
//! `include/foreswap.h` declares these functions and is their documentation; Rust (`crates/regions`) and Python
//! (`python/`) call them too. The engine needs an object of its own: its threads must not allocate from the program's heap,
//! whose locks a forking thread holds while the engine serves that fork, and Rust has one allocator for each object.
//!
//! A call checks what it gets and reports errors by its result and [`foreswap_error`]; no call panics or exits. What
//! it keeps between calls is in static memory: a forked child has no copy of this object's heap.

mod control;
mod error;
mod forks;
mod open;
mod opener;
mod regions;
mod start;
mod text;

use core::ffi::{CStr, c_char, c_int, c_void};

use error::Error;
use foreswap::program::Program;
use foreswap::sys::arena_alloc::EngineAlloc;
use foreswap::sys::modules;

/// The engine allocates from its own memory, never from the program's heap.
#[global_allocator]
static ALLOCATOR: EngineAlloc = EngineAlloc::new();

static PROGRAM: Program = Program::new(&ALLOCATOR);

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

/// Runs when the object is loaded: no fork copies these in the middle of a change.
extern "C" fn loaded() {
    modules::loaded();
    forks::begin();
}

/// The words of a null-terminated array of strings.
///
/// # Safety
/// It is null, or such an array.
unsafe fn words(array: *const *const c_char) -> Vec<Vec<u8>> {
    let mut words = Vec::new();
    let mut at = array;
    // SAFETY: the caller's promise; the loop ends at the null.
    while let Some(word) = unsafe { at.as_ref() }.filter(|word| !word.is_null()) {
        // SAFETY: the caller's promise.
        words.push(unsafe { CStr::from_ptr(*word) }.to_bytes().to_vec());
        at = at.wrapping_add(1);
    }
    words
}

fn status(result: Result<(), Error>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(error) => {
            error::note(&error);
            -1
        }
    }
}

/// Starts the engine of this process.
///
/// # Safety
/// `options` is null or a null-terminated array of strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_open(options: *const *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    status(open::open(&unsafe { words(options) }))
}

/// Whether it was started: 1 or 0.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_is_open() -> c_int {
    open::mode().is_some().into()
}

/// Maps a region of at least `bytes` zeros; null on error.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_map(bytes: usize) -> *mut c_void {
    match regions::map(bytes) {
        Ok(at) => at,
        Err(error) => {
            error::note(&error);
            core::ptr::null_mut()
        }
    }
}

/// Unmaps the region at `address`.
///
/// # Safety
/// Nobody uses the region any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_unmap(address: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { regions::unmap(address as usize) })
}

/// Advice for a part of a region.
///
/// # Safety
/// If the advice is to discard, nobody needs the content.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_advise(
    address: *mut c_void,
    bytes: usize,
    advice: c_int,
) -> c_int {
    // SAFETY: the caller's promise.
    status(unsafe { regions::advise(address as usize, bytes, advice) })
}

/// Changes the limit.
///
/// # Safety
/// `memory` is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_set_memory(memory: *const c_char) -> c_int {
    if memory.is_null() {
        return status(Err(Error::NoSize));
    }
    // SAFETY: the caller's promise.
    let memory = unsafe { CStr::from_ptr(memory) };
    status(control::set_memory(&memory.to_string_lossy()))
}

/// Writes the figures as JSON to `buffer`, as far as they fit in `bytes`, with a zero at the end. Returns the length of the
/// whole text without the zero, or -1.
///
/// # Safety
/// `buffer` has `bytes` writable bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn foreswap_stats(buffer: *mut c_char, bytes: usize) -> isize {
    match control::figures() {
        Ok(text) => {
            if !buffer.is_null() && bytes > 0 {
                let kept = text.len().min(bytes - 1);
                // SAFETY: the caller's promise.
                unsafe {
                    core::ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, kept);
                    buffer.add(kept).write(0);
                }
            }
            text.len().cast_signed()
        }
        Err(error) => {
            error::note(&error);
            -1
        }
    }
}

/// Why the calling thread's last call failed; empty if none has.
#[unsafe(no_mangle)]
pub extern "C" fn foreswap_error() -> *const c_char {
    error::last()
}
