//! `mlockall`: the program's memory is locked, the engine's is not.
//!
//! The call forwards with MCL_ONFAULT: the kernel fills no page. Then the engine's own mappings are unlocked again,
//! and the program's are brought in one by one, by faults that the pager serves. `mlock`, `munlock` and `munlockall`
//! need no such treatment.

use core::ffi::c_int;
use core::sync::atomic::Ordering::Relaxed;

use foreswap::program::state;
use foreswap::sys::{locks, own_memory};

use crate::nested::pass_on;
use crate::real::{Real, forward};
use crate::{PROGRAM, heap};

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    let all = [&MLOCKALL];
    for real in all {
        real.address();
    }
}

static MLOCKALL: Real = Real::new(c"mlockall");

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    lock_all(flags)
}

/// See [`mlockall`] and [`crate::mappings::map`].
pub fn lock_all(flags: c_int) -> c_int {
    let may_start = PROGRAM.threshold.load(Relaxed) != u64::MAX;
    if flags & libc::MCL_CURRENT == 0 || !may_start {
        return real(flags);
    }
    // Also before there is an engine: another thread may start one meanwhile.
    if real(flags | libc::MCL_ONFAULT) == 0 {
        own_memory::unlock_all();
    } else if !is_out_of_memory() || !lock_without_ours(flags) {
        return -1;
    }
    if flags & libc::MCL_ONFAULT != 0 {
        return 0;
    }
    if flags & libc::MCL_FUTURE != 0 {
        // Present memory is unaffected: new memory is filled at once, as requested.
        real(libc::MCL_FUTURE);
    }
    if locks::lock_and_fill(heap::table()).is_err() && PROGRAM.state.load(Relaxed) == state::OFF {
        // If the map cannot be read (no descriptor left, no /proc), the kernel has to fill all memory.
        return real(flags);
    }
    0
}

fn real(flags: c_int) -> c_int {
    pass_on(
        libc::SYS_mlockall,
        || forward!(MLOCKALL => fn(c_int) -> c_int; flags),
    )
}

fn is_out_of_memory() -> bool {
    // SAFETY: the calling thread's errno, which the C library has just set.
    unsafe { *libc::__errno_location() == libc::ENOMEM }
}

/// The kernel also counts the engine's reserved addresses towards the program's lock limit. If the program's own part
/// is within the limit, lock it piece by piece.
fn lock_without_ours(flags: c_int) -> bool {
    if own_memory::ranges().next().is_none() || locks::lock_on_fault(heap::table()).is_err() {
        return false;
    }
    if flags & libc::MCL_FUTURE != 0 {
        real(flags & !libc::MCL_CURRENT) == 0
    } else {
        true
    }
}
