//! Functions of other objects between this one and the C library.
//!
//! An allocator or a tracer that is loaded after this object may define the same functions (tcmalloc defines `mmap`,
//! `munmap` and `mremap`) and make the system call itself, by the C library's `syscall`. That resolves to this object
//! again. Such a call is the one that this object has just passed on: it goes to the kernel, and nothing is noted
//! twice. Otherwise each of both objects would call the other for ever.

use core::ffi::c_long;
use core::sync::atomic::{AtomicI64, AtomicUsize, Ordering::Relaxed};

use foreswap::sys::thread::thread_pointer;

/// Calls that are passed on at a time. The calls beyond are not noted here.
const MOST: usize = 64;
const NOBODY: usize = 0;

/// A call that a thread has passed on.
struct Call {
    thread: AtomicUsize,
    number: AtomicI64,
}

/// A thread-local would be allocated by the program's allocator, which may be the caller.
static CALLS: [Call; MOST] = [const {
    Call {
        thread: AtomicUsize::new(NOBODY),
        number: AtomicI64::new(0),
    }
}; MOST];

/// Pass a call on whose system call has this number.
#[inline]
pub fn pass_on<T>(number: c_long, call: impl FnOnce() -> T) -> T {
    let thread = thread_pointer();
    let is_free = |call: &&Call| {
        let free = call.thread.load(Relaxed) == NOBODY;
        free && call
            .thread
            .compare_exchange(NOBODY, thread, Relaxed, Relaxed)
            .is_ok()
    };
    // Threads begin at different places.
    let first = thread >> 12;
    let mine = (0..MOST).map(|n| &CALLS[(first + n) % MOST]).find(is_free);
    if let Some(mine) = mine {
        mine.number.store(number, Relaxed);
    }
    let result = call();
    if let Some(mine) = mine {
        mine.thread.store(NOBODY, Relaxed);
    }
    result
}

/// Whether the calling thread has passed on a call with this number.
pub fn is_passed_on(number: c_long) -> bool {
    let thread = thread_pointer();
    let is_mine =
        |call: &Call| call.thread.load(Relaxed) == thread && call.number.load(Relaxed) == number;
    CALLS.iter().any(is_mine)
}

/// In a fork child: the other threads are gone.
pub fn reset() {
    for call in &CALLS {
        call.thread.store(NOBODY, Relaxed);
    }
}
