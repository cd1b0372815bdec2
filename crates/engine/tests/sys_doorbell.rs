//! Program threads call an engine thread through page faults.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use foreswap::sys::doorbell::{Doorbell, Knock, Ring, SLOTS};
use foreswap::sys::thread::{Thread, spawn};
use foreswap::sys::uffd::{Event, Features, RawMsg, Uffd};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

struct Engine {
    uffd: Uffd,
    bell: Doorbell,
    stop: AtomicBool,
    served: AtomicU64,
}

extern "C" fn serve(at: *mut c_void) {
    // SAFETY: `start` passed a leaked engine.
    let engine = unsafe { &*at.cast::<Engine>() };
    let mut buffer = [RawMsg::ZERO; 16];
    while !engine.stop.load(Ordering::Relaxed) {
        let mut fds = [PollFd::new(&engine.uffd, PollFlags::IN)];
        let wait = Timespec {
            tv_sec: 0,
            tv_nsec: 10_000_000,
        };
        let _ = poll(&mut fds, Some(&wait));
        let Ok(events) = engine.uffd.read(&mut buffer) else {
            return;
        };
        for event in events {
            let Event::Fault { addr, .. } = event else {
                continue;
            };
            if let Knock::Call(slot) = engine.bell.on_fault(&engine.uffd, addr) {
                let [a, b, c, d] = engine.bell.request(slot);
                engine.served.fetch_add(1, Ordering::Relaxed);
                let answer = [a.wrapping_mul(3), b ^ a, c + 1, d];
                let _ = engine.bell.answer(&engine.uffd, slot, answer);
            }
        }
    }
}

/// An engine that is never freed: callers may hold its ring.
fn start() -> (&'static Engine, Thread) {
    let uffd = Uffd::open(Features::MOVE).expect("userfaultfd");
    let bell = Doorbell::new(&uffd).expect("doorbell");
    let stop = AtomicBool::new(false);
    let engine = Box::leak(Box::new(Engine {
        uffd,
        bell,
        stop,
        served: AtomicU64::new(0),
    }));
    let at = (&raw const *engine).cast_mut().cast();
    // SAFETY: the engine is never freed and all it shares is atomic or a descriptor.
    let thread = unsafe { spawn(c"bell", 256 << 10, true, serve, at) }.expect("spawn");
    (engine, thread)
}

fn check(ring: Ring, a: u64, b: u64) {
    let answer = ring.call([a, b, 5, a + b]);
    assert_eq!(answer, Some([a.wrapping_mul(3), b ^ a, 6, a + b]));
}

/// Of each caller; all of them compete for the machine's few CPUs.
const CALLS: u64 = 100;

#[test]
fn every_call_gets_its_own_answer() {
    let (engine, thread) = start();
    let ring = engine.bell.ring();
    // More callers than slots, so that some must wait for one.
    let callers: Vec<_> = (0..SLOTS as u64 + 16)
        .map(|caller| {
            thread::spawn(move || (0..CALLS).for_each(|i| check(ring, caller << 32 | i, i)))
        })
        .collect();
    for caller in callers {
        caller.join().expect("caller");
    }
    assert_eq!(
        engine.served.load(Ordering::Relaxed),
        (SLOTS as u64 + 16) * CALLS
    );
    engine.stop.store(true, Ordering::Relaxed);
    thread.join();
}

static RING: OnceLock<Ring> = OnceLock::new();
static HANDLED: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: i32) {
    if let Some(ring) = RING.get() {
        let answer = ring.call([9, 1, 5, 0]);
        assert_eq!(answer, Some([27, 8, 6, 0]));
        HANDLED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_signal_handler_may_call_while_its_thread_is_calling() {
    let (engine, thread) = start();
    let ring = *RING.get_or_init(|| engine.bell.ring());
    // SAFETY: the handler is async-signal-safe: it calls the ring and adds to an atomic.
    unsafe {
        let handler = on_signal as extern "C" fn(i32);
        libc::signal(libc::SIGUSR1, handler as *const () as libc::sighandler_t);
    }
    let (tell, told) = std::sync::mpsc::channel();
    let done = &*Box::leak(Box::new(AtomicBool::new(false)));
    let caller = thread::spawn(move || {
        // SAFETY: names the calling thread.
        tell.send(unsafe { libc::pthread_self() }).expect("tell");
        (0..20_000).for_each(|i| check(ring, i, 2));
        done.store(true, Ordering::Release);
    });
    let target = told.recv().expect("told");
    while !done.load(Ordering::Acquire) {
        // SAFETY: the thread is joined below, so its handle is still valid here.
        unsafe { libc::pthread_kill(target, libc::SIGUSR1) };
        thread::yield_now();
    }
    caller.join().expect("caller");
    assert!(HANDLED.load(Ordering::Relaxed) > 0);
    engine.stop.store(true, Ordering::Relaxed);
    thread.join();
}

extern "C" fn call_and_leave(at: *mut c_void) -> i32 {
    // SAFETY: the test passed a ring that outlives this child.
    let ring = unsafe { *at.cast::<Ring>() };
    let right = ring.call([4, 4, 5, 6]) == Some([12, 0, 6, 6]);
    i32::from(!right)
}

fn clone_and_wait(ring: &Ring, flags: i32) -> i32 {
    let mut stack = vec![0_u128; 64 << 10 >> 4];
    let mut status = 0;
    // SAFETY: the child runs on its own stack; with CLONE_VFORK this thread sleeps until it ended.
    unsafe {
        let top = stack.as_mut_ptr().add(stack.len()).cast();
        let arg = (&raw const *ring).cast_mut().cast();
        let pid = libc::clone(call_and_leave, top, flags | libc::SIGCHLD, arg);
        assert!(pid > 0);
        assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
    }
    assert!(libc::WIFEXITED(status), "status {status:#x}");
    libc::WEXITSTATUS(status)
}

#[test]
fn a_vfork_child_is_served_and_a_fork_child_is_told_that_nobody_serves() {
    let (engine, thread) = start();
    let ring = engine.bell.ring();
    assert_eq!(clone_and_wait(&ring, libc::CLONE_VM | libc::CLONE_VFORK), 0);
    let served = engine.served.load(Ordering::Relaxed);
    assert_eq!(served, 1);
    assert_eq!(clone_and_wait(&ring, 0), 1);
    assert_eq!(engine.served.load(Ordering::Relaxed), served);
    check(ring, 1, 1);
    engine.stop.store(true, Ordering::Relaxed);
    thread.join();
}

#[test]
fn without_an_engine_a_call_returns_none_and_loses_no_slot() {
    let uffd = Uffd::open(Features::MOVE).expect("userfaultfd");
    let bell = Doorbell::new(&uffd).expect("doorbell");
    assert_eq!(bell.on_fault(&uffd, 0x1000), Knock::Elsewhere);
    drop(uffd);
    for _ in 0..2 * SLOTS {
        assert_eq!(bell.ring().call([1, 2, 3, 4]), None);
    }
    // SAFETY: its rings are gone.
    unsafe { bell.destroy() }.expect("destroy");
}
