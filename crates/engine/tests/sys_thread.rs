//! Engine threads inside an ordinary program: nothing of theirs shows in it.

use std::cell::Cell;
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use foreswap::sys::own_memory::{self, Kind};
use foreswap::sys::thread::{Entry, Thread, spawn};

const STACK: usize = 256 << 10;

fn start<T>(share_files: bool, entry: Entry, arg: &T) -> Thread {
    let arg = (arg as *const T).cast_mut().cast();
    // SAFETY: every test joins the thread before the argument goes away, and shares only atomics.
    unsafe { spawn(c"sys-thread-test-long", STACK, share_files, entry, arg) }.expect("spawn")
}

/// The argument of an entry function, back as what the test passed.
fn arg<'a, T>(arg: *mut c_void) -> &'a T {
    // SAFETY: `start` passed a reference of this type that outlives the thread.
    unsafe { &*arg.cast::<T>() }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

thread_local! {
    static CONSTANT: Cell<u64> = const { Cell::new(41) };
    static LAZY: Cell<usize> = Cell::new(std::process::id() as usize);
}

#[derive(Default)]
struct Locals {
    constant: AtomicUsize,
    lazy: AtomicUsize,
    errno_before: AtomicI32,
    errno_after: AtomicI32,
    sum: AtomicUsize,
    tid: AtomicU32,
}

extern "C" fn use_locals(at: *mut c_void) {
    let out = arg::<Locals>(at);
    out.errno_before.store(errno(), Ordering::Relaxed);
    let _ = File::open("/nowhere/at/all").map(drop);
    out.errno_after.store(errno(), Ordering::Relaxed);
    out.constant
        .store(CONSTANT.get() as usize, Ordering::Relaxed);
    out.lazy.store(LAZY.get(), Ordering::Relaxed);
    CONSTANT.set(1);
    LAZY.set(1);
    let numbers: Vec<usize> = (0..10_000).collect();
    let text = format!("{}", numbers.iter().sum::<usize>());
    out.sum.store(text.parse().unwrap_or(0), Ordering::Relaxed);
    out.tid.store(
        rustix::thread::gettid().as_raw_nonzero().get() as u32,
        Ordering::Relaxed,
    );
}

#[test]
fn thread_locals_and_errno_are_the_threads_own() {
    CONSTANT.set(7);
    LAZY.set(8);
    assert!(File::open("/").and_then(|file| file.metadata()).is_ok());
    // SAFETY: sets this thread's errno.
    unsafe { *libc::__errno_location() = libc::EXDEV };
    let out = Locals::default();
    let thread = start(true, use_locals, &out);
    let tid = thread.tid();
    thread.join();
    assert_eq!(errno(), libc::EXDEV);
    assert_eq!(out.errno_before.load(Ordering::Relaxed), 0);
    assert_eq!(out.errno_after.load(Ordering::Relaxed), libc::ENOENT);
    assert_eq!(out.constant.load(Ordering::Relaxed), 41);
    assert_eq!(
        out.lazy.load(Ordering::Relaxed),
        std::process::id() as usize
    );
    assert_eq!(out.sum.load(Ordering::Relaxed), 49_995_000);
    assert!(tid == 0 || tid == out.tid.load(Ordering::Relaxed));
    assert_eq!((CONSTANT.get(), LAZY.get()), (7, 8));
}

extern "C" fn close_everything(_: *mut c_void) {
    // SAFETY: this thread's table is a copy, and nothing of it is used afterwards.
    unsafe { libc::syscall(libc::SYS_close_range, 0, u32::MAX, 0) };
}

#[test]
fn its_descriptor_table_is_its_own() {
    let file = File::open("/proc/self/status").expect("open");
    let thread = start(false, close_everything, &());
    thread.join();
    // SAFETY: asks about a descriptor.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
    assert!(flags >= 0, "our descriptor was closed");
}

#[derive(Default)]
struct Seen {
    blocked: AtomicUsize,
    name: AtomicUsize,
}

extern "C" fn read_own_status(at: *mut c_void) {
    let out = arg::<Seen>(at);
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mask = field("SigBlk:\t").and_then(|hex| usize::from_str_radix(hex, 16).ok());
    out.blocked.store(mask.unwrap_or(0), Ordering::Relaxed);
    out.name.store(
        usize::from(field("Name:\t") == Some("sys-thread-test")),
        Ordering::Relaxed,
    );
}

#[test]
fn it_takes_no_signals_and_bears_its_name() {
    let mask = || {
        let status = std::fs::read_to_string("/proc/thread-self/status").expect("status");
        status
            .lines()
            .find(|line| line.starts_with("SigBlk"))
            .map(str::to_owned)
    };
    let before = mask();
    let out = Seen::default();
    start(true, read_own_status, &out).join();
    // All but SIGKILL and SIGSTOP.
    let all = !(1_usize << 8 | 1 << 18);
    assert_eq!(out.blocked.load(Ordering::Relaxed), all);
    assert_eq!(out.name.load(Ordering::Relaxed), 1);
    assert_eq!(mask(), before);
}

extern "C" fn start_another(at: *mut c_void) {
    // SAFETY: as in `start`; joined below.
    let inner = unsafe { spawn(c"inner", STACK, true, use_locals, at) };
    if let Ok(inner) = inner {
        inner.join();
    }
}

#[test]
fn one_can_start_the_next() {
    let out = Locals::default();
    start(false, start_another, &out).join();
    assert_eq!(out.constant.load(Ordering::Relaxed), 41);
    assert_eq!(out.errno_after.load(Ordering::Relaxed), libc::ENOENT);
}

#[test]
fn a_small_stack_suffices_to_start_one() {
    let out = Locals::default();
    thread::scope(|scope| {
        let small = thread::Builder::new().stack_size(16 << 10);
        let starter = small.spawn_scoped(scope, || start(true, use_locals, &out).join());
        starter.expect("small thread").join().expect("join");
    });
    assert_eq!(out.constant.load(Ordering::Relaxed), 41);
}

extern "C" fn wait_for_word(at: *mut c_void) {
    while arg::<AtomicU32>(at).load(Ordering::Acquire) == 0 {
        rustix::thread::sched_yield();
    }
}

#[test]
fn its_memory_is_listed_while_it_lives_and_freed_by_join() {
    let word = AtomicU32::new(0);
    // A size that no other test uses, so that another's mapping is not taken for it below.
    let stack = 333 << 12;
    // SAFETY: joined below, before the word goes away.
    let thread = unsafe {
        let word = (&raw const word).cast_mut().cast();
        spawn(c"listed", stack, true, wait_for_word, word)
    }
    .expect("spawn");
    assert!(thread.is_alive());
    let mapping = thread.mapping();
    let listed = |start| own_memory::ranges().find(|own| own.start == start);
    let own = listed(mapping.start).expect("listed");
    assert_eq!((own.len, own.kind), (mapping.len(), Kind::Thread));
    word.store(1, Ordering::Release);
    thread.join();
    let still = listed(mapping.start).is_some_and(|own| own.len == mapping.len());
    assert!(!still, "an ended thread's memory is still listed");
}

#[test]
fn many_come_and_go_beside_ordinary_threads() {
    let ordinary = thread::spawn(|| (0..200_000).map(|i| format!("{i}").len()).sum::<usize>());
    for _ in 0..200 {
        let out = Locals::default();
        start(true, use_locals, &out).join();
        assert_eq!(out.sum.load(Ordering::Relaxed), 49_995_000);
    }
    assert!(ordinary.join().expect("ordinary") > 0);
}

#[test]
fn a_refused_clone_is_an_error() {
    // SAFETY: never starts: no address space is that large.
    let result = unsafe { spawn(c"huge", 1 << 50, true, wait_for_word, null_mut()) };
    assert!(result.is_err());
}
