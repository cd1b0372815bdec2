//! Robust mutexes in managed memory.
//!
//! When a thread ends, the kernel walks the list of the robust mutexes that it holds and marks them. It does not wait
//! for an absent page there, and gives up: waiters of such a mutex would wait for ever. A thread that ends therefore
//! reads its list first, in a destructor of thread-specific data. Threads get this destructor from the first call on
//! that makes a mutex robust; a thread that began before and made no such call has none.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::real::{Real, forward};

/// Look up the real function now: later, a thread that holds the loader's lock may need it.
pub fn look_up() {
    SET_ROBUST.address();
}

static SET_ROBUST: Real = Real::new(c"pthread_mutexattr_setrobust");
/// The key of the thread-specific data, plus one; 0 before there is one.
static KEY: AtomicU32 = AtomicU32::new(0);
/// The most mutexes that the kernel visits.
const MOST: usize = 2048;

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pthread_mutexattr_setrobust(
    attributes: *mut c_void,
    robustness: c_int,
) -> c_int {
    if robustness == libc::PTHREAD_MUTEX_ROBUST {
        begin();
        heed_own_end();
    }
    forward!(SET_ROBUST => fn(*mut c_void, c_int) -> c_int; attributes, robustness)
}

fn begin() {
    let mut key = 0;
    // SAFETY: the key is stored in a variable of ours.
    if KEY.load(SeqCst) == 0 && unsafe { libc::pthread_key_create(&mut key, Some(read_list)) } == 0
    {
        let first = KEY.compare_exchange(0, key + 1, SeqCst, SeqCst);
        if first.is_err() {
            // SAFETY: just created, not in use.
            unsafe { libc::pthread_key_delete(key) };
        }
    }
}

/// Makes the calling thread read its list when it ends.
fn heed_own_end() {
    if let Some(key) = KEY.load(SeqCst).checked_sub(1) {
        // SAFETY: a key of ours. Any value but null has the destructor called.
        unsafe { libc::pthread_setspecific(key, (&raw const KEY).cast()) };
    }
}

/// The kernel's view of a thread's robust mutexes: a list from one to the next and back to the head.
#[repr(C)]
struct Head {
    next: usize,
    /// From an element to the word of its mutex.
    offset: isize,
    pending: usize,
}

unsafe extern "C" fn read_list(_: *mut c_void) {
    let (mut head, mut size) = (core::ptr::null::<Head>(), 0_usize);
    // SAFETY: the kernel writes two words.
    let asked =
        unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut size) };
    if asked != 0 || head.is_null() {
        return;
    }
    // SAFETY: the C library keeps the calling thread's list there, and each element is in memory as long as its mutex
    // is held. The kernel's mark of one kind of mutex is the lowest bit.
    unsafe {
        let mut at = (*head).next;
        for _ in 0..MOST {
            let element = at & !1;
            if element == 0 || element == head as usize {
                break;
            }
            let word = element.wrapping_add_signed((*head).offset) as *const u32;
            word.read_volatile();
            at = (element as *const usize).read_volatile();
        }
    }
}

/// The start routine of a new thread.
struct Start {
    main: *const c_void,
    argument: *mut c_void,
}

/// The function and argument for a new thread that reads its list at its end, instead of `main` with `argument`;
/// unchanged if that is not needed.
pub fn begin_with(main: *const c_void, argument: *mut c_void) -> (*const c_void, *mut c_void) {
    if KEY.load(Relaxed) == 0 {
        return (main, argument);
    }
    // SAFETY: room for what is written. Making a thread allocates as well.
    unsafe {
        let start = libc::malloc(size_of::<Start>()).cast::<Start>();
        if start.is_null() {
            return (main, argument);
        }
        start.write(Start { main, argument });
        (enter as *const c_void, start.cast())
    }
}

/// Frees the result of [`begin_with`]: no thread was created.
pub fn forget(main: *const c_void, argument: *mut c_void) {
    if core::ptr::eq(main, enter as *const c_void) {
        // SAFETY: from `begin_with`, not visible elsewhere.
        unsafe { libc::free(argument) };
    }
}

/// The start of such a thread. It leaves no frame behind: the C library unwinds a thread that is cancelled.
#[unsafe(naked)]
unsafe extern "C" fn enter() {
    naked_asm!(
        "sub rsp, 8",
        "call {unpack}",
        "add rsp, 8",
        "mov rdi, rdx",
        "jmp rax",
        unpack = sym unpack,
    )
}

#[repr(C)]
struct Target {
    main: *const c_void,
    argument: *mut c_void,
}

unsafe extern "C" fn unpack(start: *mut Start) -> Target {
    heed_own_end();
    // SAFETY: from `begin_with`, for this thread alone.
    unsafe {
        let Start { main, argument } = start.read();
        libc::free(start.cast());
        Target { main, argument }
    }
}
