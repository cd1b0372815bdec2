//! The lookout: starts the engine of a program whose memory grows behind the C library's back.
//!
//! An engine is started by the call that grows memory past the threshold, as the preload object sees it. A program
//! that calls the kernel itself makes no such call. Code outside cannot make one of its threads run engine code
//! without disturbing it (a signal, or a tracer's stop, interrupts system calls). A program that can bypass the C
//! library therefore gets a thread that only checks the size of its private memory, a few microseconds each time. The
//! thread ends when there is an engine, which checks for itself. The preload object recognises such programs by their
//! code (`bypass.rs`); a wrong guess costs only this thread.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use std::time::Duration;

use crate::program::{Program, state};
use crate::sys::{modules, process, thread};

/// The interval between two looks while memory grows, and while it does not.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(20);

static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(core::ptr::null_mut());
/// Lookouts started in this process and its ancestors.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Start it, on a thread of the program. Without the thread, the memory is found when the engine starts for another
/// reason.
pub fn start(program: &Program) {
    // See `modules::loaded`: a thread of the program must ask.
    modules::loaded();
    PROGRAM.store(core::ptr::from_ref(program).cast_mut(), SeqCst);
    STARTED.fetch_add(1, Relaxed);
    // SAFETY: `look` keeps to the rules for engine threads and needs no argument.
    let _ = unsafe { thread::spawn(c"fs-lookout", 32 << 10, false, look, core::ptr::null_mut()) };
}

extern "C" fn look(_: *mut c_void) {
    // SAFETY: `start` stored a reference to the process' static state before this thread began.
    let Some(program) = (unsafe { PROGRAM.load(SeqCst).as_ref() }) else {
        return;
    };
    // The file table is a copy of the program's and not needed.
    // SAFETY: no descriptor of this thread's table is in use yet.
    if unsafe { process::close_all_files() }.is_err() {
        return;
    }
    let Ok(statm) = process::Statm::open() else {
        return;
    };
    let (mut pause, mut before) = (SOONEST, 0);
    while program.state.load(Acquire) == state::OFF {
        let Some(now) = statm.read().map(|sizes| sizes.anonymous_resident()) else {
            return;
        };
        if now as u64 >= program.threshold.load(Relaxed) {
            crate::pager::start(program, crate::pager::Origin::Fresh);
            return;
        }
        pause = if now > before {
            SOONEST
        } else {
            LATEST.min(pause * 2)
        };
        before = now;
        std::thread::sleep(pause);
    }
}
