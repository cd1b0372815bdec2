//! The lookout: starts the engine of a program whose memory grows behind the C library's back.
//!
//! An engine is started by the call that grows memory past the threshold, as the preload object sees it.
//! A program that asks the kernel itself makes no such call, and nothing outside can make a thread of it
//! run code of ours without disturbing it (a signal, a tracer's stop cuts system calls short). So a
//! program that can bypass the C library gets a thread that does nothing but look how much private memory
//! is there, a few microseconds each time, and ends when there is an engine, which looks for itself.
//! Which programs these are the preload object tells by their code (`bypass.rs` there); to be wrong costs
//! no more than this thread.

use core::ffi::c_void;
use core::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use core::sync::atomic::{AtomicPtr, AtomicU64};
use std::time::Duration;

use crate::program::{Program, state};
use crate::sys::{modules, process, thread};

/// Between two looks while memory grows, and while it does not.
const SOONEST: Duration = Duration::from_millis(2);
const LATEST: Duration = Duration::from_millis(20);

static PROGRAM: AtomicPtr<Program> = AtomicPtr::new(core::ptr::null_mut());
/// Lookouts that ran in this process and those it was forked from.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// Start it, on a thread of the program. Without a thread the memory is found when something else
/// starts the engine.
pub fn start(program: &Program) {
    // See there: this must be asked by a thread of the program.
    modules::loaded();
    PROGRAM.store(core::ptr::from_ref(program).cast_mut(), SeqCst);
    STARTED.fetch_add(1, Relaxed);
    // SAFETY: `look` keeps to what engine threads may do and needs no argument.
    let _ = unsafe { thread::spawn(c"fs-lookout", 32 << 10, false, look, core::ptr::null_mut()) };
}

extern "C" fn look(_: *mut c_void) {
    // SAFETY: `start` stored a reference to the process' static state before this thread began.
    let Some(program) = (unsafe { PROGRAM.load(SeqCst).as_ref() }) else {
        return;
    };
    // The file table is a copy of the program's: nothing of it concerns us.
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
