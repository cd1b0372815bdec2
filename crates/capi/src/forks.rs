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
//! (CAP_SYS_PTRACE). Otherwise the engine keeps the regions from such a child, which gets SIGSEGV there.

use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use foreswap::program::own_pid;
use foreswap::sys::own_memory;
use foreswap::sys::thread::thread_pointer;
use foreswap::sys::uffd::{Features, Uffd};

use crate::PROGRAM;
use crate::open::{Mode, OPENER, mode};

/// There is an engine, and the kernel does not tell it of forks: it keeps regions from children.
static UNSEEN: AtomicBool = AtomicBool::new(false);

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

unsafe extern "C" fn before() {
    OPENER.pause();
    PROGRAM.before_fork();
}

unsafe extern "C" fn in_parent() {
    PROGRAM.after_fork_parent();
    OPENER.go_on();
}

unsafe extern "C" fn in_child() {
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
}
