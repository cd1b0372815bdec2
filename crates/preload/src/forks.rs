//! Forks: the engine pauses before them, and the child gets its own engine.
//!
//! `fork` is covered by the C library's fork handlers. This object is initialised before all others (`-z initfirst`)
//! and registers its handlers first: they run last before the fork and first after it. Functions that fork without
//! these handlers are interposed.

use core::ffi::{c_int, c_long, c_uint, c_void};
use core::sync::atomic::Ordering::Relaxed;

use foreswap::program::state;
use foreswap::sys::thread::thread_pointer;

use crate::real::{Real, forward};
use crate::{PROGRAM, lends, locks, mappings, nested, userfaults};

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    let all = [&SYSCALL, &FORK, &RAW_FORK, &CLONE];
    for real in all {
        real.address();
    }
}

static SYSCALL: Real = Real::new(c"syscall");
static FORK: Real = Real::new(c"fork");
static RAW_FORK: Real = Real::new(c"_Fork");
static CLONE: Real = Real::new(c"clone");

unsafe extern "C" {
    /// All open streams, under the lock below.
    static _IO_list_all: *const Stream;
    fn _IO_list_lock();
    fn _IO_list_unlock();
}

/// The beginning of the C library's FILE, as far as its fork uses it.
#[repr(C)]
struct Stream {
    flags: c_int,
    before: [usize; 12],
    next: *const Stream,
    between: [usize; 3],
    lock: *const u8,
}

/// The object was loaded.
pub fn begin() {
    // SAFETY: the three functions may be called around any fork.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

unsafe extern "C" fn before() {
    before_any();
    if PROGRAM.state.load(Relaxed) == state::ARMED {
        touch_streams();
    }
}

fn before_any() {
    mappings::lock_mremap();
    PROGRAM.before_fork();
}

unsafe extern "C" fn in_parent() {
    after(1, thread_pointer());
}

unsafe extern "C" fn in_child() {
    after(0, thread_pointer());
}

/// The child's C library resets the locks of all streams before any handler runs there: they must be in memory. From
/// now on nothing is evicted, and the streams touched here stay until the fork is over.
fn touch_streams() {
    // SAFETY: the C library's own fork takes this lock next, on this thread.
    unsafe { _IO_list_lock() };
    // SAFETY: the list is the C library's; it is walked as its own fork does.
    let mut stream = unsafe { _IO_list_all };
    while !stream.is_null() {
        // SAFETY: an element of the list, which stays there while the lock is held.
        unsafe {
            (&raw const (*stream).flags).read_volatile();
            let lock = (&raw const (*stream).lock).read_volatile();
            if !lock.is_null() {
                // Its count and its owner may lie on two pages.
                lock.read_volatile();
                lock.add(15).read_volatile();
            }
            stream = (&raw const (*stream).next).read_volatile();
        }
    }
    // SAFETY: taken above.
    unsafe { _IO_list_unlock() };
}

/// As the C library's. The handlers do the work, but do not get the result.
#[unsafe(no_mangle)]
pub extern "C" fn fork() -> libc::pid_t {
    PROGRAM.will_fork();
    let pid = forward!(FORK => fn() -> libc::pid_t;);
    match pid {
        0 => 0,
        _ => reported(pid.into()) as libc::pid_t,
    }
}

/// As the C library's: a fork without handlers.
#[unsafe(no_mangle)]
pub extern "C" fn _Fork() -> libc::pid_t {
    PROGRAM.will_fork();
    before_any();
    let pid = forward!(RAW_FORK => fn() -> libc::pid_t;);
    after_with(pid.into(), thread_pointer()) as libc::pid_t
}

/// The fork returned `result`; its thread had the thread pointer `thread` before.
fn after(result: c_long, thread: usize) {
    if result == 0 {
        mappings::reset_mremap_lock();
        PROGRAM.after_fork_child(thread);
    } else {
        PROGRAM.after_fork_parent();
        mappings::release_moves();
    }
}

/// As [`after`], for callers that know the result. Returns the result for the program.
fn after_with(result: c_long, thread: usize) -> c_long {
    after(result, thread);
    match result {
        0 => 0,
        _ => reported(result),
    }
}

/// The fork returned `result` in the parent. Returns the result for the program, with errno set.
fn reported(result: c_long) -> c_long {
    if PROGRAM.forked(result) {
        return result;
    }
    // SAFETY: the address of the calling thread's errno.
    unsafe { *libc::__errno_location() = libc::EAGAIN };
    -1
}

/// As the C library's. Forks, mappings, moves, advice and locks by number are treated like the named functions.
///
/// # Safety
/// As for the system call.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    match number {
        // Another object's function that one of ours has called.
        _ if nested::is_passed_on(number) => {
            return forward!(SYSCALL =>
                fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long; number, a, b, c, d, e, f);
        }
        libc::SYS_madvise => {
            return mappings::advise(a as *mut c_void, b, c as c_int).into();
        }
        libc::SYS_mremap => {
            let (old, new) = (a as *mut c_void, e as *mut c_void);
            return mappings::remap(old, b, c, d as c_int, new) as c_long;
        }
        libc::SYS_process_madvise => {
            let (pidfd, ranges) = (a as c_int, b as *const libc::iovec);
            // SAFETY: as for the system call.
            return unsafe { mappings::advise_process(pidfd, ranges, c, d as c_int, e as c_uint) }
                as c_long;
        }
        libc::SYS_mmap => {
            let at = a as *mut c_void;
            let (access, flags, file) = (c as c_int, d as c_int, e as c_int);
            return mappings::map(at, b, access, flags, file, f as libc::off_t) as c_long;
        }
        libc::SYS_ioctl => {
            // SAFETY: as the program asked.
            return unsafe { userfaults::control(a as c_int, b as _, c as *mut c_void) }.into();
        }
        libc::SYS_mlockall => return locks::lock_all(a as c_int).into(),
        _ => {}
    }
    lends::on_syscall(number, [a, b, c, d]);
    let forks = match number {
        libc::SYS_fork => true,
        libc::SYS_clone => a & libc::CLONE_VM as usize == 0,
        libc::SYS_clone3 if a != 0 => {
            // SAFETY: the kernel reads the flags from the start of the structure as well.
            let flags = unsafe { *(a as *const u64) };
            flags & libc::CLONE_VM as u64 == 0
        }
        _ => false,
    };
    let thread = thread_pointer();
    if forks {
        PROGRAM.will_fork();
        before_any();
    }
    let result = forward!(SYSCALL =>
        fn(c_long, usize, usize, usize, usize, usize, usize) -> c_long; number, a, b, c, d, e, f);
    match forks {
        true => after_with(result, thread),
        false => result,
    }
}

type Main = unsafe extern "C" fn(*mut c_void) -> c_int;

struct Start {
    main: Main,
    argument: *mut c_void,
    thread: usize,
}

unsafe extern "C" fn begin_child(start: *mut c_void) -> c_int {
    // SAFETY: `clone` below passed it; the child has a copy of the parent's stack it lies on.
    let start = unsafe { start.cast::<Start>().read() };
    after(0, start.thread);
    let Start { main, argument, .. } = start;
    // SAFETY: as the program asked.
    unsafe { main(argument) }
}

/// A thread whose word the kernel clears when it ends. It lies at the top of the thread's stack.
#[repr(C, align(16))]
struct Thread {
    main: Main,
    argument: *mut c_void,
    word: usize,
}

unsafe extern "C" fn begin_thread(thread: *mut c_void) -> c_int {
    // SAFETY: `clone` below put it on this thread's stack.
    let Thread {
        main,
        argument,
        word,
    } = unsafe { thread.cast::<Thread>().read() };
    // SAFETY: as the program asked.
    let status = unsafe { main(argument) };
    mappings::bring_in(word, size_of::<u32>());
    status
}

/// As the C library's. Without CLONE_VM it is a fork; the child begins in this module's function. A thread whose word
/// the kernel clears, and wakes waiters on it, begins there too: when it has ended, the kernel does not wait for an
/// absent page.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clone(
    main: Option<Main>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent_tid: usize,
    tls: usize,
    child_tid: usize,
) -> c_int {
    if let (0, Some(real_main)) = (flags & libc::CLONE_VM, main) {
        PROGRAM.will_fork();
        before_any();
        let start = Start {
            main: real_main,
            argument,
            thread: thread_pointer(),
        };
        let start = (&raw const start).cast_mut().cast::<c_void>();
        let pid = forward!(CLONE =>
            fn(Option<Main>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
            Some(begin_child), stack, flags, start, parent_tid, tls, child_tid);
        // An error is not the child's 0.
        return after_with(pid.into(), thread_pointer()) as c_int;
    }
    let (mut begin, mut stack, mut argument) = (main, stack, argument);
    if flags & libc::CLONE_CHILD_CLEARTID != 0
        && let (Some(main), false) = (main, stack.is_null())
    {
        let thread = Thread {
            main,
            argument,
            word: child_tid,
        };
        let top = stack as usize / align_of::<Thread>() * align_of::<Thread>();
        stack = stack.with_addr(top - size_of::<Thread>());
        // SAFETY: the top of the new thread's stack, which the C library writes to as well.
        unsafe { stack.cast::<Thread>().write(thread) };
        (begin, argument) = (Some(begin_thread as Main), stack);
    }
    forward!(CLONE =>
        fn(Option<Main>, *mut c_void, c_int, *mut c_void, usize, usize, usize) -> c_int;
        begin, stack, flags, argument, parent_tid, tls, child_tid)
}
