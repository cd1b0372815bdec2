//! Forks: by the C library, and past it.
//!
//! Around a fork of the C library, the engine pauses, and the child gets its own engine. The C library calls these
//! handlers, unlike those of the preload object, first before a fork and last after it: other objects have registered
//! theirs before. A handler of another object that touches a region in the child would find absent pages as zeros
//! (docs/ARRAYS.md). No allocator does: a region is nobody's heap.
//!
//! Of a fork past the C library, the kernel tells the engine, which then serves the child, if it has the right to be told
//! (CAP_SYS_PTRACE). Otherwise the child would read zeros for absent pages. So the regions are kept from children
//! (MADV_DONTFORK) except while these handlers are at work: such a child gets SIGSEGV instead.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use foreswap::sys::gate::Gate;
use foreswap::sys::thread::thread_pointer;
use foreswap::sys::uffd::{Features, Uffd};

use crate::PROGRAM;

/// Threads that unmap a region are inside.
pub static GATE: Gate = Gate::new();
/// How long a fork waits for them. A thread that forks in a signal handler may be inside itself.
const PATIENCE: Duration = Duration::from_millis(100);
/// The kernel does not tell the engine of forks.
static UNSEEN: AtomicBool = AtomicBool::new(false);

/// From here on, once.
pub fn begin() {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, SeqCst) {
        let told = Uffd::open(Features::NEEDED | Features::EVENT_FORK).is_ok();
        UNSEEN.store(!told, SeqCst);
        // SAFETY: the three functions may be called around any fork.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    }
}

/// A new region.
pub fn keep_from_children(region: &Range<usize>) {
    if UNSEEN.load(Relaxed) {
        advise(region, libc::MADV_DONTFORK);
    }
}

/// Refused only for memory that is gone.
fn advise(region: &Range<usize>, advice: c_int) {
    // SAFETY: changes nothing but whether children have the memory.
    unsafe { libc::madvise(region.start as *mut c_void, region.len(), advice) };
}

/// Between the engine's permission to fork and its end, which one thread at a time has.
fn advise_all(advice: c_int) {
    if !UNSEEN.load(Relaxed) {
        return;
    }
    // Other memory must not come to a region's place meanwhile.
    GATE.close();
    let began = Instant::now();
    while !GATE.is_empty() && began.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    for region in PROGRAM.regions.ranges() {
        advise(&region, advice);
    }
    GATE.open();
}

unsafe extern "C" fn before() {
    PROGRAM.before_fork();
    advise_all(libc::MADV_DOFORK);
}

unsafe extern "C" fn in_parent() {
    advise_all(libc::MADV_DONTFORK);
    PROGRAM.after_fork_parent();
}

unsafe extern "C" fn in_child() {
    GATE.reset();
    PROGRAM.after_fork_child(thread_pointer());
    advise_all(libc::MADV_DONTFORK);
}
