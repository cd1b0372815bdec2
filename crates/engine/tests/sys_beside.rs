//! The engine's process inside an ordinary program: it shares the memory and nothing else.

use std::ffi::c_void;
use std::fs;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use foreswap::sys::{beside, process};

#[derive(Default)]
struct Seen {
    pid: AtomicI32,
    group: AtomicI32,
    blocked: AtomicUsize,
    is_named: AtomicU32,
    /// The descriptor that it is to close.
    fd: AtomicI32,
    goes: AtomicU32,
}

extern "C" fn look(at: *mut c_void) {
    // SAFETY: the test passed a reference that outlives the process.
    let out = unsafe { &*at.cast::<Seen>() };
    let status = fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let mask = field("SigBlk:\t").and_then(|hex| usize::from_str_radix(hex, 16).ok());
    out.blocked.store(mask.unwrap_or(0), SeqCst);
    let named = field("Name:\t") == Some("beside-test");
    out.is_named.store(named.into(), SeqCst);
    let group = rustix::process::getpgrp().as_raw_nonzero().get();
    out.group.store(group, SeqCst);
    // SAFETY: its table is its own, and nothing of it is used afterwards.
    unsafe { libc::close(out.fd.load(SeqCst)) };
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    out.pid.store(pid, SeqCst);
    while out.goes.load(SeqCst) == 0 {
        rustix::thread::sched_yield();
    }
    process::exit(3)
}

#[test]
fn it_shares_the_memory_and_nothing_else() {
    let file = fs::File::open("/proc/self/status").expect("open");
    let out = Seen::default();
    out.fd.store(file.as_raw_fd(), SeqCst);
    let argument = (&raw const out).cast_mut().cast();
    // SAFETY: it keeps to atomics and system calls, and has ended before the argument goes.
    let started = unsafe { beside::spawn(c"beside-test", 256 << 10, look, argument) };
    let engine = started.expect("a process");
    let end = Instant::now() + Duration::from_secs(10);
    while out.pid.load(SeqCst) == 0 {
        assert!(Instant::now() < end, "it does not come up");
        std::thread::yield_now();
    }
    let pid = out.pid.load(SeqCst);
    assert_eq!(engine.tid().cast_signed(), pid);
    assert_ne!(pid, std::process::id().cast_signed());
    assert!(engine.is_alive());
    let tasks = fs::read_dir("/proc/self/task").expect("the threads");
    assert!(
        tasks
            .flatten()
            .all(|task| task.file_name() != *pid.to_string())
    );
    // An orphan: no child of any kind.
    let mut status = 0;
    // SAFETY: the status is ours.
    let waited = unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG | libc::__WALL) };
    assert_eq!(waited, -1);
    // SAFETY: asks about a descriptor.
    let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFD) };
    assert!(flags >= 0, "our descriptor was closed");
    let all = !(1_usize << 8 | 1 << 18);
    assert_eq!(out.blocked.load(SeqCst), all, "all but SIGKILL and SIGSTOP");
    assert_eq!(out.is_named.load(SeqCst), 1);
    let own = rustix::process::getpgrp().as_raw_nonzero().get();
    assert_eq!(out.group.load(SeqCst), own, "it leaves the group itself");
    out.goes.store(1, SeqCst);
    engine.join();
}

#[test]
fn an_impossible_request_is_an_error() {
    // SAFETY: never starts: no address space is that large.
    let result = unsafe { beside::spawn(c"huge", 1 << 50, look, std::ptr::null_mut()) };
    assert!(result.is_err());
}
