//! Processes that share the program's memory: the engine is one, beside the program.
//!
//! The code that moves pages has to share the program's memory, but need not be one of its threads. The engine is
//! made by clone(2) with CLONE_VM and without CLONE_THREAD, CLONE_SIGHAND, CLONE_FILES and CLONE_FS. It is a process
//! of its own. Actions of the kernel, the C library or a debugger on *the threads of a process* do not affect it: a
//! seccomp filter for all threads, setuid, unshare and chroot, a tracer that stops every entry of /proc/PID/task, a
//! count of threads.
//!
//! *Parent.* A child of the program would appear in a `wait` with `__WALL`. Once the program has executed another
//! file, its end would be reported by SIGCHLD. With CLONE_PARENT, the program's parent, which may be a shell, would
//! have an unknown child. Therefore a short-lived process is put in between: the engine is an orphan from the start,
//! and is reaped as such, by init, or by the supervisor if init does not reap (`reaping.rs` of the command). If the
//! program itself adopts orphans, as the first process of its PID namespace or by request, its `wait` would see an
//! orphan. In that case the engine is the program's child after all, with an exit signal of 0, which a plain `wait`
//! does not see. (The engines of its children still come to it as orphans.)
//!
//! *Signals* are all blocked, as on every engine thread. The engine leaves the program's process group: it does not
//! affect job control, and signals to the group do not reach it. It stays in the session, because the scheduler
//! weighs it with the program there (autogroups).
//!
//! CLONE_UNTRACED keeps a tracer that follows children from stopping the engine, which must serve the faults of the
//! traced program.

use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicU32, Ordering};

use linux_raw_sys::general as k;
use linux_raw_sys::prctl::PR_GET_CHILD_SUBREAPER;
use rustix::io::Errno;

use super::syscall::syscall;
use super::thread::{Block, Entry, Prepared, Thread, clone, thread_main};

/// Of the engine. The exit signal, in the lowest byte, is 0.
const FLAGS: u32 = k::CLONE_VM
    | k::CLONE_UNTRACED
    | k::CLONE_SETTLS
    | k::CLONE_PARENT_SETTID
    | k::CLONE_CHILD_CLEARTID;
/// For the process in between: its creator waits until it has ended. It shares the descriptors, so that they are
/// copied only once.
const BETWEEN: u32 = k::CLONE_VM | k::CLONE_VFORK | k::CLONE_FILES | k::CLONE_UNTRACED;

/// Starts a process that shares the caller's memory and runs `entry(arg)`, with a copy of the
/// caller's descriptors. The rest is as for a thread ([`super::thread::spawn`]): the handle's id is the
/// process', and `entry` leaves by ending the process.
///
/// # Safety
/// As for [`super::thread::spawn`].
pub unsafe fn spawn(
    name: &CStr,
    stack_bytes: usize,
    entry: Entry,
    arg: *mut c_void,
) -> Result<Thread, Errno> {
    if children_have_another_namespace() {
        // It would be the first process of the namespace, and its end would end all others there.
        return Err(Errno::INVAL);
    }
    let adopts_orphans = rustix::process::getpid().is_init() || is_subreaper();
    let prepared = Prepared::new(name, stack_bytes, entry, arg)?;
    prepared.start(|stack_top, block| {
        if adopts_orphans {
            // SAFETY: the prepared memory belongs to this clone alone.
            return unsafe { clone(FLAGS as usize, stack_top, block) };
        }
        // SAFETY: as above. The process in between uses no stack, and is gone when this returns.
        let between = unsafe {
            let tid = Block::tid_word(block);
            clone_orphan(BETWEEN as usize, FLAGS as usize, stack_top, tid, block)
        };
        if between < 0 {
            return between;
        }
        reap(between, block)
    })
}

/// Reaps the process in between, whose exit status is the result of the second clone.
fn reap(between: isize, block: *mut Block) -> isize {
    let mut status = 0_u32;
    loop {
        let at = (&raw mut status) as usize;
        // SAFETY: the status is written to a word of ours.
        let waited =
            unsafe { syscall(k::__NR_wait4, [between as usize, at, k::__WALL as usize, 0]) };
        match waited {
            Err(Errno::INTR) => {}
            Ok(_) if status & 0x7f == 0 => return -((status >> 8 & 0xff) as isize),
            // Killed, or another thread that waits for children of every kind got the status.
            _ => break,
        }
    }
    // SAFETY: the block stays mapped until it is known that nothing runs there.
    let tid = unsafe { (*Block::tid_word(block)).load(Ordering::Acquire) };
    match tid {
        0 => -(Errno::CHILD.raw_os_error() as isize),
        _ => 0,
    }
}

/// Two clones: the first creates a process that makes the second one and exits with its error number; the second runs
/// the entry of `block`. Returns the id of the former, or a negative error number.
#[unsafe(naked)]
unsafe extern "C" fn clone_orphan(
    between: usize,
    flags: usize,
    stack_top: usize,
    tid: *mut AtomicU32,
    block: *mut Block,
) -> isize {
    naked_asm!(
        // The kernel uses the third to fifth argument only if flags request it, and preserves them.
        "mov r9, rsi",
        "mov r10, rcx",
        "mov rsi, rdx",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "ret",
        // The process in between. It touches no stack and can share its creator's.
        "2:",
        "mov rdi, r9",
        "mov rdx, r10",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 4f",
        "xor edi, edi",
        "test rax, rax",
        "jns 3f",
        "neg rax",
        "mov edi, eax",
        "3:",
        "mov eax, {exit}",
        "syscall",
        "ud2",
        // The remaining process: an empty, aligned stack and no caller to return to.
        "4:",
        "xor ebp, ebp",
        "mov rdi, r8",
        "call {main}",
        "ud2",
        clone = const k::__NR_clone,
        exit = const k::__NR_exit_group,
        main = sym thread_main,
    )
}

/// The program has created a new PID namespace for its children.
fn children_have_another_namespace() -> bool {
    let own = rustix::fs::stat(c"/proc/thread-self/ns/pid");
    let theirs = rustix::fs::stat(c"/proc/thread-self/ns/pid_for_children");
    match (own, theirs) {
        (Ok(own), Ok(theirs)) => own.st_ino != theirs.st_ino,
        // It is not shown while it has no process.
        (Ok(_), Err(errno)) => errno != Errno::ACCESS,
        (Err(_), _) => false,
    }
}

/// Orphans among the program's descendants become its children.
fn is_subreaper() -> bool {
    let mut is = 0_u32;
    let option = PR_GET_CHILD_SUBREAPER as usize;
    // SAFETY: the answer is written to a word of ours.
    let asked = unsafe { syscall(k::__NR_prctl, [option, (&raw mut is) as usize]) };
    asked.is_ok() && is != 0
}
