//! Limits on the program's mappings, as the program and its users set them.
//!
//! The engine's mappings lie in the program's address space and count towards these limits. They are raised by the
//! same amount (`sys::limits` of the engine). The program sees and sets the values that it would without an engine,
//! and executed programs inherit them.

use core::ffi::c_int;
use core::sync::atomic::Ordering::SeqCst;

use foreswap::program::own_pid;

use crate::PROGRAM;
use crate::real::{Real, forward};

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
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

/// The amount by which the limit of `resource` was raised for the engine.
fn lifted(resource: c_int) -> u64 {
    match resource.cast_unsigned() {
        libc::RLIMIT_AS => PROGRAM.lifted[0].load(SeqCst),
        libc::RLIMIT_DATA => PROGRAM.lifted[1].load(SeqCst),
        _ => 0,
    }
}

fn each(limit: Limit, change: impl Fn(u64) -> u64) -> Limit {
    let change = |number: u64| match number {
        libc::RLIM64_INFINITY => number,
        number => change(number).min(libc::RLIM64_INFINITY - 1),
    };
    Limit {
        rlim_cur: change(limit.rlim_cur),
        rlim_max: change(limit.rlim_max),
    }
}

/// The kernel's value.
fn raised(limit: Limit, by: u64) -> Limit {
    each(limit, |number| number.saturating_add(by))
}

/// The program's value.
fn as_set(limit: Limit, by: u64) -> Limit {
    each(limit, |number| number.saturating_sub(by))
}

/// As the C library's.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getrlimit64(resource: c_int, limit: *mut Limit) -> c_int {
    let result = forward!(GETRLIMIT => fn(c_int, *mut Limit) -> c_int; resource, limit);
    let by = lifted(resource);
    if result == 0 && by > 0 {
        // SAFETY: the kernel has just written there.
        unsafe { limit.write(as_set(limit.read(), by)) };
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
    let real = |limit: *const Limit| forward!(SETRLIMIT => fn(c_int, *const Limit) -> c_int; resource, limit);
    let by = lifted(resource);
    if by == 0 || limit.is_null() {
        return real(limit);
    }
    // SAFETY: the caller's promise.
    real(&raised(unsafe { limit.read() }, by))
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
    let by = lifted(resource);
    if !is_own || by == 0 {
        return real(new);
    }
    let result = match new.is_null() {
        true => real(new),
        // SAFETY: the caller's promise.
        false => real(&raised(unsafe { new.read() }, by)),
    };
    if result == 0 && !old.is_null() {
        // SAFETY: the kernel has just written there.
        unsafe { old.write(as_set(old.read(), by)) };
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

/// The limits have the program's values until this is dropped: for an executed program, if permitted.
pub struct Lowered(());

/// Before another file is executed.
pub fn lower() -> Option<Lowered> {
    let any = PROGRAM.lifted.iter().any(|lifted| lifted.load(SeqCst) > 0);
    any.then(|| {
        change(as_set);
        Lowered(())
    })
}

impl Drop for Lowered {
    fn drop(&mut self) {
        change(raised);
    }
}

/// Safe in a child of vfork, which has limits of its own; preserves errno.
fn change(to: impl Fn(Limit, u64) -> Limit) {
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
            let to = to(limit, lifted(resource));
            forward!(SETRLIMIT => fn(c_int, *const Limit) -> c_int; resource, &raw const to);
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }
}
