//! Forks: by the C library, and past it.
//!
//! Around a fork of the C library, the engine pauses, and the child gets its own engine. The handlers are registered when
//! this object is loaded. Those that other objects have registered before run in the child before the engine is there:
//! one that touches a region would find absent pages as zeros (docs/ARRAYS.md). No allocator does: a region is nobody's
//! heap.
//!
//! A fork waits until no thread opens the engine, and the other way round: no child has a copy of a state in the middle of
//! that.
//!
//! Of a fork past the C library, the kernel tells the engine, which then serves the child, if it has the right to be told
//! (CAP_SYS_PTRACE). Otherwise the child would read zeros for absent pages. So the regions are kept from children
//! (MADV_DONTFORK) except while these handlers are at work: such a child gets SIGSEGV instead.

use core::ffi::{c_int, c_void};
use core::ops::Range;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use foreswap::program::own_pid;
use foreswap::sys::gate::Gate;
use foreswap::sys::own_memory;
use foreswap::sys::thread::thread_pointer;
use foreswap::sys::uffd::{Features, Uffd};

use crate::PROGRAM;
use crate::open::{Mode, OPENER, mode};

/// Threads that list, unlist or unmap a region are inside: what is listed is mapped, and is kept from children or not as
/// all others are.
pub static GATE: Gate = Gate::new();
/// How long a fork waits for them. A thread that forks in a signal handler may be inside itself.
const PATIENCE: Duration = Duration::from_millis(100);
/// There is an engine, and the kernel does not tell it of forks: regions are kept from children.
static UNSEEN: AtomicBool = AtomicBool::new(false);
/// A fork of the C library is in progress: its child gets the regions. Changes while nobody is inside the gate.
static GIVES: AtomicBool = AtomicBool::new(false);

/// This object was loaded.
pub fn begin() {
    // SAFETY: the three functions may be called around any fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// The engine is about to start, with the rights that this process has now.
pub fn note_rights() {
    UNSEEN.store(!are_told(), SeqCst);
}

/// Whether the kernel would tell an engine of this process of forks.
fn are_told() -> bool {
    Uffd::open(Features::NEEDED | Features::EVENT_FORK).is_ok()
}

/// Whether this process may lack the regions, as the child of a fork past the C library: other memory may be in their
/// places.
pub fn lacks_regions() -> bool {
    UNSEEN.load(SeqCst) && PROGRAM.pid.load(Relaxed) != own_pid()
}

/// A new region, by a thread that is inside. The child of a fork in progress has it if the list has it.
pub fn keep_from_children(region: &Range<usize>) {
    if UNSEEN.load(SeqCst) && !GIVES.load(SeqCst) {
        advise(region, libc::MADV_DONTFORK);
    }
}

/// Refused only for memory that is gone.
fn advise(region: &Range<usize>, advice: c_int) {
    // SAFETY: changes nothing but whether children have the memory.
    unsafe { libc::madvise(region.start as *mut c_void, region.len(), advice) };
}

/// Gives all regions to children from now on, or keeps them. Between the engine's permission to fork and its end, which
/// one thread at a time has.
fn give_all(gives: bool) {
    if !UNSEEN.load(SeqCst) {
        return;
    }
    // Other memory must not come to a region's place meanwhile.
    GATE.close();
    let began = Instant::now();
    while !GATE.is_empty() && began.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    GIVES.store(gives, SeqCst);
    let advice = if gives {
        libc::MADV_DOFORK
    } else {
        libc::MADV_DONTFORK
    };
    for region in PROGRAM.regions.ranges() {
        advise(&region, advice);
    }
    GATE.open();
}

unsafe extern "C" fn before() {
    OPENER.pause();
    PROGRAM.before_fork();
    give_all(true);
}

unsafe extern "C" fn in_parent() {
    give_all(false);
    PROGRAM.after_fork_parent();
    OPENER.go_on();
}

unsafe extern "C" fn in_child() {
    GATE.reset();
    OPENER.reset();
    if PROGRAM.ring.load(Relaxed) == 0 {
        // Otherwise `after_fork_child` does it. Another thread may have been allocating.
        own_memory::forget_after_fork();
        // SAFETY: this thread is alone, and what the others had allocated is not used any more.
        unsafe { PROGRAM.heap.forget_after_fork() };
    }
    PROGRAM.after_fork_child(thread_pointer());
    if mode() == Some(Mode::Own) && !UNSEEN.load(SeqCst) && !are_told() {
        // The parent may have given up rights after it had opened its engine, which has kept them.
        UNSEEN.store(true, SeqCst);
    }
    give_all(false);
}
