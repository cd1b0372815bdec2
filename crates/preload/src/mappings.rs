//! The mapping calls: they forward, and notice private anonymous memory.
//!
//! The kernel reports unmapping, discards and moves to the engine; only new memory has to be reported here.

use core::ffi::{CStr, c_int, c_uint, c_void};
use core::sync::atomic::Ordering::{Relaxed, SeqCst};

use foreswap::program::{MADV_GUARD_INSTALL, MADV_GUARD_REMOVE, SMALL, own_pid, state};
use foreswap::sys::modules::StaticData;
use foreswap::sys::mremap_lock::{MremapLock, Turn};
use foreswap::sys::needed;
use foreswap::sys::process::Statm;

use crate::PROGRAM;
use crate::files;
use crate::in_parts;
use crate::nested::{self, pass_on};
use crate::real::{Real, forward};

/// Functions of this object that the engine uses as well: its own calls go to the C library. None of them is inlined, as a
/// caller in this object would then not go through the linker's table, in which it is bound.
pub const NAMES: &[&CStr] = &[
    c"mmap",
    c"mmap64",
    c"munmap",
    c"mremap",
    c"madvise",
    c"ioctl",
    c"syscall",
    c"read",
    c"write",
    c"pread",
    c"pread64",
    c"pwrite",
    c"pwrite64",
];

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    let all = [
        &MMAP,
        &MUNMAP,
        &MREMAP,
        &MADVISE,
        &POSIX_MADVISE,
        &PROCESS_MADVISE,
    ];
    for real in all {
        real.address();
    }
}

static MMAP: Real = Real::new(c"mmap");
static MUNMAP: Real = Real::new(c"munmap");
static MREMAP: Real = Real::new(c"mremap");
static MADVISE: Real = Real::new(c"madvise");
static POSIX_MADVISE: Real = Real::new(c"posix_madvise");
static PROCESS_MADVISE: Real = Real::new(c"process_madvise");

/// Counts earlier memory: static arrays, and mappings of other objects' constructors.
pub fn note_what_is_there(known: &StaticData) {
    let data = Statm::open().ok().and_then(|statm| {
        let sizes = statm.read();
        statm.close();
        Some(sizes?.data)
    });
    let others = data.unwrap_or(0).saturating_sub(known.of_files + known.own);
    PROGRAM.used(others.max(known.anonymous));
}

static MOVES: MremapLock = MremapLock::new();

/// Wait for the turn to move memory, if moves are ordered.
pub fn turn_to_move() -> Option<Turn<'static>> {
    is_managed().then(|| MOVES.enter())
}

/// No memory moves until the fork is over: the child could not find it.
pub fn lock_mremap() {
    if is_managed() {
        MOVES.hold();
    }
}

/// The fork is over, in the parent.
pub fn release_moves() {
    MOVES.leave();
}

/// In a fork child: the threads that moved or mapped memory are absent.
pub fn reset_mremap_lock() {
    MOVES.reset();
    nested::reset();
    PROGRAM.replacing.store(0, Relaxed);
    PROGRAM.gate.reset();
}

fn is_managed() -> bool {
    PROGRAM.state.load(Relaxed) == state::ARMED
}

/// The program runs under `foreswap run`, and an engine may come.
fn may_be_managed() -> bool {
    PROGRAM.threshold.load(Relaxed) != u64::MAX && PROGRAM.state.load(Relaxed) != state::FAILED
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mmap(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    map(at, length, protection, flags, fd, offset)
}

/// See [`mmap`]. Inside this object the functions are called by these names: the others may be bound anew (`NAMES`).
pub fn map(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let anonymous = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let others = libc::MAP_HUGETLB | libc::MAP_GROWSDOWN;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // Small mappings are reported only once memory is managed: beside it they become managed as well.
    let counts = length >= SMALL || is_managed() && protection & access == access;
    let ours = flags & (anonymous | libc::MAP_SHARED | others) == anonymous && counts;
    // Pages requested at once must come through the pager, or they would not count. This also holds if the mapping
    // itself causes an engine to start, which happens after it is reported.
    let of_file = files::are_served(length, protection, flags, fd);
    let populate = (ours || of_file) && may_be_managed() && flags & libc::MAP_POPULATE != 0;
    let flags = if populate {
        flags & !libc::MAP_POPULATE
    } else {
        flags
    };
    let replaces = ours && flags & libc::MAP_FIXED != 0 && is_managed();
    if replaces {
        PROGRAM.replacing.fetch_add(1, Relaxed);
    }
    let inside = match flags & libc::MAP_FIXED != 0 {
        true => PROGRAM.replaces(),
        false => None,
    };
    let mapped = pass_on(libc::SYS_mmap, || {
        forward!(MMAP =>
            fn(*mut c_void, usize, c_int, c_int, c_int, libc::off_t) -> *mut c_void;
            at, length, protection, flags, fd, offset)
    });
    let is_new = ours && mapped != libc::MAP_FAILED;
    if is_new {
        PROGRAM.grew(mapped as usize, length);
    }
    if of_file && mapped != libc::MAP_FAILED {
        let errno = errno();
        files::serve(mapped as usize, length, flags, fd, offset);
        if populate {
            // A hint, as the flag was.
            advise(mapped, length, libc::MADV_WILLNEED);
        }
        set_errno(errno);
    }
    drop(inside);
    if replaces {
        PROGRAM.replacing.fetch_sub(1, Relaxed);
    }
    if is_new && populate {
        // A hint, as the flag was: memory that is not writable stays as it is.
        let errno = errno();
        real_madvise(mapped, length, libc::MADV_POPULATE_WRITE);
        set_errno(errno);
    }
    mapped
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mmap64(
    at: *mut c_void,
    length: usize,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    map(at, length, protection, flags, fd, offset)
}

/// The end of the addresses that a program can unmap with four-level page tables. With five levels, memory lies
/// beyond it only on request.
const ADDRESSES: usize = (1 << 47) - PAGE;
const PAGE: usize = 4096;

/// As the C library's. Ranges that the engine needs stay: see [`needed`].
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn munmap(at: *mut c_void, length: usize) -> c_int {
    let unmap = |start: usize, length: usize| {
        forward!(MUNMAP => fn(*mut c_void, usize) -> c_int;
            core::ptr::without_provenance_mut(start), length)
    };
    let _inside = PROGRAM.replaces();
    let (mut start, end) = (at as usize, (at as usize).saturating_add(length));
    let has_engine = matches!(PROGRAM.state.load(Relaxed), state::BARE | state::ARMED);
    // A call that the kernel refuses must be refused as a whole.
    if !has_engine || !start.is_multiple_of(PAGE) || start >= end || end > ADDRESSES {
        return unmap(start, length);
    }
    while let Some(kept) = needed::first_in(&(start..end)) {
        if start < kept.start && unmap(start, kept.start - start) != 0 {
            return -1;
        }
        start = kept.end;
    }
    if start < end {
        unmap(start, end - start)
    } else {
        0
    }
}

/// As the C library's. The last argument exists only with MREMAP_FIXED and MREMAP_DONTUNMAP; the calling convention
/// permits passing it always.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    at: *mut c_void,
) -> *mut c_void {
    remap(old, old_length, new_length, flags, at)
}

/// See [`mremap`] and [`map`].
pub fn remap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    at: *mut c_void,
) -> *mut c_void {
    let grows = new_length > old_length && old_length > 0;
    if grows && PROGRAM.is_file(old as usize, old_length) {
        // What is behind the old end would be zeros.
        set_errno(libc::ENOMEM);
        return libc::MAP_FAILED;
    }
    let _inside = PROGRAM.replaces();
    let parts = is_managed().then(|| in_parts::Call::of(old, old_length, new_length, flags, at));
    let several = parts.as_ref().is_some_and(in_parts::Call::may_be_several);
    let in_parts_only = parts.as_ref().is_some_and(in_parts::Call::leaves_several);
    let mut mapped = libc::MAP_FAILED;
    if !in_parts_only {
        let _turn = turn_to_move();
        mapped = real_mremap(old, old_length, new_length, flags, at);
    }
    if let Some(parts) = parts
        && mapped == libc::MAP_FAILED
        && (in_parts_only || errno() == libc::EFAULT)
    {
        match parts.go_on(several) {
            Ok(moved) => mapped = core::ptr::without_provenance_mut(moved),
            Err(error) => set_errno(error),
        }
    }
    if mapped != libc::MAP_FAILED && new_length > old_length && new_length >= SMALL {
        // Of unknown kind: the engine looks before it adopts.
        PROGRAM.seen(mapped as usize, new_length - old_length);
    }
    mapped
}

pub(crate) fn real_mremap(
    old: *mut c_void,
    old_length: usize,
    new_length: usize,
    flags: c_int,
    at: *mut c_void,
) -> *mut c_void {
    pass_on(libc::SYS_mremap, || {
        forward!(MREMAP =>
            fn(*mut c_void, usize, usize, c_int, *mut c_void) -> *mut c_void;
            old, old_length, new_length, flags, at)
    })
}

/// As the C library's. MADV_FREE lets the kernel drop pages later, without an event, when the memory may be managed;
/// it becomes an immediate discard, which its contract allows. The engine must know of guards before they exist. It
/// is told of advice for future use once the kernel has accepted it.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int {
    advise(at, length, advice)
}

/// See [`madvise`] and [`map`].
pub fn advise(at: *mut c_void, length: usize, advice: c_int) -> c_int {
    match advice {
        // Before it takes effect, in case another thread forks right after.
        libc::MADV_WIPEONFORK => PROGRAM.wipes.store(true, Relaxed),
        libc::MADV_FREE if may_be_managed() => {
            return real_madvise(at, length, libc::MADV_DONTNEED);
        }
        MADV_GUARD_INSTALL | MADV_GUARD_REMOVE => return guard(at, length, advice),
        // The kernel would move managed pages to its own swap; COLD follows the same rules.
        libc::MADV_PAGEOUT if is_managed() => {
            let result = real_madvise(at, length, libc::MADV_COLD);
            return match took(result) && PROGRAM.advised(at as usize, length, advice) {
                true => result,
                false => real_madvise(at, length, advice),
            };
        }
        _ => {}
    }
    remember(advice);
    let result = real_madvise(at, length, advice);
    if is_advice(advice) && took(result) {
        PROGRAM.advised(at as usize, length, advice);
    }
    result
}

/// In managed memory the engine changes guards before the call itself, and once more if the memory became managed
/// meanwhile.
fn guard(at: *mut c_void, length: usize, advice: c_int) -> c_int {
    let managed = is_managed();
    if managed {
        PROGRAM.guards(at as usize, length, advice);
    }
    let result = real_madvise(at, length, advice);
    if !managed && is_managed() {
        let errno = errno();
        PROGRAM.guards(at as usize, length, advice);
        set_errno(errno);
    }
    result
}

/// As the C library's. All advice for this process' own memory may be given this way, and is treated like `madvise`.
///
/// # Safety
/// As for the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    // SAFETY: the caller's promise.
    unsafe { advise_process(pidfd, ranges, count, advice, flags) }
}

/// See [`process_madvise`] and [`map`].
///
/// # Safety
/// As for the C library's.
pub unsafe fn advise_process(
    pidfd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    if flags != 0 || count > MOST_RANGES || ranges.is_null() || !is_ours(pidfd) {
        return pass_on(libc::SYS_process_madvise, || {
            forward!(PROCESS_MADVISE =>
                fn(c_int, *const libc::iovec, usize, c_int, c_uint) -> isize;
                pidfd, ranges, count, advice, flags)
        });
    }
    let mut done = 0;
    for n in 0..count {
        // SAFETY: the caller's promise; the kernel reads the ranges as well.
        let range = unsafe { ranges.add(n).read() };
        if advise(range.iov_base, range.iov_len, advice) != 0 {
            return if done > 0 { done } else { -1 };
        }
        done += range.iov_len.cast_signed();
    }
    done
}

/// The most ranges of one call (UIO_MAXIOV).
const MOST_RANGES: usize = 1024;
/// Numbers for the calling process or thread (Linux 6.15).
const PIDFD_SELF: [c_int; 2] = [-10000, -10001];
/// The `ioctl` that identifies the process of a pidfd (Linux 6.13, like most advice for oneself).
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
const PIDFD_INFO_PID: u64 = 1;

/// The result of [`PIDFD_GET_INFO`], in its first version.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    pid: u32,
    tgid: u32,
    rest: [u64; 5],
}

/// Whether `pidfd` is this process. Unknown before Linux 6.13, where destructive advice is refused.
fn is_ours(pidfd: c_int) -> bool {
    if PIDFD_SELF.contains(&pidfd) {
        return true;
    }
    let errno = errno();
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_PID,
        ..PidfdInfo::default()
    };
    // SAFETY: the kernel writes as many bytes as the number of the call says.
    let told = unsafe { libc::ioctl(pidfd, PIDFD_GET_INFO, &raw mut info) } == 0;
    set_errno(errno);
    told && info.tgid == own_pid()
}

fn errno() -> c_int {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() }
}

fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *libc::__errno_location() = errno };
}

/// Bring in the pages of `bytes` bytes at `at`, for a write that does not wait for them. Without effect if they are not
/// mapped or not writable.
pub fn bring_in(at: usize, bytes: usize) {
    let page = at / PAGE * PAGE;
    let length = at + bytes - page;
    let errno = errno();
    real_madvise(
        core::ptr::without_provenance_mut(page),
        length,
        libc::MADV_POPULATE_WRITE,
    );
    set_errno(errno);
}

fn real_madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int {
    pass_on(
        libc::SYS_madvise,
        || forward!(MADVISE => fn(*mut c_void, usize, c_int) -> c_int; at, length, advice),
    )
}

/// As the C library's, which makes the system call itself and returns the error number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn posix_madvise(at: *mut c_void, length: usize, advice: c_int) -> c_int {
    remember(advice);
    let result = pass_on(
        libc::SYS_madvise,
        || forward!(POSIX_MADVISE => fn(*mut c_void, usize, c_int) -> c_int; at, length, advice),
    );
    // The numbers are those of `madvise`, except POSIX_MADV_DONTNEED, which does nothing.
    if is_advice(advice) && matches!(result, 0 | libc::ENOMEM) {
        PROGRAM.advised(at as usize, length, advice);
    }
    result
}

/// Whether the engine heeds it.
fn is_advice(advice: c_int) -> bool {
    matches!(
        advice,
        libc::MADV_NORMAL
            | libc::MADV_RANDOM
            | libc::MADV_SEQUENTIAL
            | libc::MADV_WILLNEED
            | libc::MADV_COLD
            | libc::MADV_PAGEOUT
            | libc::MADV_DONTFORK
            | libc::MADV_DOFORK
    )
}

/// An engine that manages the memory later finds the hint in the kernel's map. Called before the hint takes effect:
/// either the engine finds it there, or this thread finds the engine.
fn remember(advice: c_int) {
    if advice == libc::MADV_NOHUGEPAGE {
        PROGRAM.no_huge.store(true, SeqCst);
    }
    if matches!(
        advice,
        libc::MADV_RANDOM | libc::MADV_SEQUENTIAL | libc::MADV_DONTFORK
    ) {
        PROGRAM.hints.store(true, SeqCst);
    }
}

/// The kernel accepted the advice, at least for the mapped part of the range.
fn took(result: c_int) -> bool {
    result == 0 || errno() == libc::ENOMEM
}
