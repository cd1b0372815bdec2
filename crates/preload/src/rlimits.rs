//! Limits on what the program may map, as the program and its users set them.
//!
//! What the engine has mapped lies in the program's address space and counts towards them, so they are raised by as
//! much (`sys::limits` of the engine). The program sees and sets what it would without an engine, and what it
//! executes inherits that.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;

use foreswap::program::own_pid;

use crate::PROGRAM;
use crate::real::{Real, forward};

/// Find the functions behind ours now: later a thread that holds the loader's lock may need them.
pub fn look_up() {
    for real in [&GETRLIMIT, &SETRLIMIT, &PRLIMIT] {
        real.address();
    }
}

static GETRLIMIT: Real = Real::new(c"getrlimit64");
static SETRLIMIT: Real = Real::new(c"setrlimit64");
static PRLIMIT: Real = Real::new(c"prlimit64");

/// Both forms of the C library's: numbers have 64 bits.
type Limit = libc::rlimit64;

/// Whether what the engine maps counts towards `resource`.
fn is_shared(resource: c_int) -> bool {
    matches!(
        resource.cast_unsigned(),
        libc::RLIMIT_AS | libc::RLIMIT_DATA
    )
}

/// As it is for the kernel.
fn raised(limit: Limit) -> Limit {
    let lifted = PROGRAM.lifted.load(SeqCst);
    let raise = |number: u64| match number {
        libc::RLIM64_INFINITY => number,
        number => number.saturating_add(lifted).min(libc::RLIM64_INFINITY - 1),
    };
    Limit {
        rlim_cur: raise(limit.rlim_cur),
        rlim_max: raise(limit.rlim_max),
    }
}

/// As it was set.
fn as_set(limit: Limit) -> Limit {
    let lifted = PROGRAM.lifted.load(SeqCst);
    let lower = |number: u64| match number {
        libc::RLIM64_INFINITY => number,
        number => number.saturating_sub(lifted),
    };
    Limit {
        rlim_cur: lower(limit.rlim_cur),
        rlim_max: lower(limit.rlim_max),
    }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: c_int, limit: *mut Limit) -> c_int {
    let result = forward!(GETRLIMIT => fn(c_int, *mut Limit) -> c_int; resource, limit);
    if result == 0 && is_shared(resource) {
        // SAFETY: the kernel has just written there.
        unsafe { limit.write(as_set(limit.read())) };
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit(resource: c_int, limit: *mut Limit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { getrlimit64(resource, limit) }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, limit: *const Limit) -> c_int {
    let lifted = PROGRAM.lifted.load(SeqCst);
    let raised = match is_shared(resource) && lifted > 0 && !limit.is_null() {
        // SAFETY: the caller's promise.
        true => &raised(unsafe { limit.read() }),
        false => limit,
    };
    forward!(SETRLIMIT => fn(c_int, *const Limit) -> c_int; resource, raised)
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, limit: *const Limit) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { setrlimit64(resource, limit) }
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    let real = |new: *const Limit| {
        forward!(PRLIMIT => fn(c_int, c_int, *const Limit, *mut Limit) -> c_int;
            pid, resource, new, old)
    };
    let is_own = pid == 0 || pid.cast_unsigned() == own_pid();
    if !is_own || !is_shared(resource) || PROGRAM.lifted.load(SeqCst) == 0 {
        return real(new);
    }
    let result = match new.is_null() {
        true => real(new),
        // SAFETY: the caller's promise.
        false => real(&raised(unsafe { new.read() })),
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the kernel has just written there.
        unsafe { old.write(as_set(old.read())) };
    }
    result
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    pid: c_int,
    resource: c_int,
    new: *const Limit,
    old: *mut Limit,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { prlimit64(pid, resource, new, old) }
}

/// The limits are as they were set until this is dropped: for what is executed, if it can be.
pub struct Lowered(());

/// Before another file is executed.
pub fn lower() -> Option<Lowered> {
    (PROGRAM.lifted.load(SeqCst) > 0).then(|| {
        change(as_set);
        Lowered(())
    })
}

impl Drop for Lowered {
    fn drop(&mut self) {
        change(raised);
    }
}

/// Safe in a child of vfork, whose limits are its own; errno stays.
fn change(to: impl Fn(Limit) -> Limit) {
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA] {
        let mut limit = Limit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: the calling thread's own.
        let errno = unsafe { *libc::__errno_location() };
        let resource = resource.cast_signed();
        let got = forward!(GETRLIMIT => fn(c_int, *mut Limit) -> c_int; resource, &raw mut limit);
        if got == 0 && limit.rlim_cur != libc::RLIM64_INFINITY {
            let to = to(limit);
            forward!(SETRLIMIT => fn(c_int, *const Limit) -> c_int; resource, &raw const to);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
}
