//! A userfaultfd of the program's own: the engine first releases the memory that the program registers.

use core::ffi::{c_int, c_ulong, c_void};

use foreswap::program::state;

use crate::PROGRAM;
use crate::nested::pass_on;
use crate::real::{Real, forward};
use core::sync::atomic::Ordering::Relaxed;

static IOCTL: Real = Real::new(c"ioctl");
static MADVISE: Real = Real::new(c"madvise");

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    IOCTL.address();
    MADVISE.address();
}

const UFFDIO_REGISTER: c_ulong = 0xc020_aa00;
const PAGE: usize = 4096;
/// Bytes that are brought in and released at a time.
const PIECE: usize = 512 * PAGE;
/// How often a piece that was evicted again is brought in anew.
const TRIES: u32 = 100;
/// How often the whole range is tried: on a busy machine the engine may have adopted it again before this thread
/// registers it.
const ROUNDS: u32 = 5;

/// As the C library's, which takes any one argument more.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ioctl(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { control(file, request, argument) }
}

/// See [`ioctl`] and [`crate::mappings::map`].
///
/// # Safety
/// As for the C library's.
pub unsafe fn control(file: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    let real = || {
        pass_on(
            libc::SYS_ioctl,
            || forward!(IOCTL => fn(c_int, c_ulong, *mut c_void) -> c_int; file, request, argument),
        )
    };
    let result = real();
    if request != UFFDIO_REGISTER || result != -1 || PROGRAM.state.load(Relaxed) != state::ARMED {
        return result;
    }
    // SAFETY: the calling thread's errno, which the C library has just set; the kernel has read the
    // argument before it found that the range is in use.
    let range = unsafe {
        if *libc::__errno_location() != libc::EBUSY {
            return result;
        }
        argument.cast::<[u64; 2]>().read_unaligned()
    };
    let [start, bytes] = range.map(|number| number as usize);
    for _ in 0..ROUNDS {
        if !let_go(start, bytes) {
            break;
        }
        let result = real();
        // SAFETY: as above.
        if result != -1 || unsafe { *libc::__errno_location() } != libc::EBUSY {
            return result;
        }
    }
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = libc::EBUSY };
    result
}

/// Brings the range in, piece by piece, and has the engine release it.
fn let_go(start: usize, bytes: usize) -> bool {
    (start..start + bytes).step_by(PIECE).all(|at| {
        let len = PIECE.min(start + bytes - at);
        (0..TRIES).any(|_| {
            // Unreadable memory cannot be brought in, and was never evicted.
            forward!(MADVISE => fn(*mut c_void, usize, c_int) -> c_int;
                core::ptr::without_provenance_mut(at), len, libc::MADV_POPULATE_READ);
            PROGRAM.lets_go(at, len)
        })
    })
}
