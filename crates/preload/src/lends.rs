//! Calls that lend memory to the kernel: it reads pages later without a pin.
//!
//! The engine must know before the first such call that the program makes them (`foreswap::pager`, world/lent.rs);
//! the address of the memory does not matter. A program has these ways: sends with MSG_ZEROCOPY, vmsplice, and
//! io_uring, whose requests are invisible and which therefore counts from its setup on. Memory used during a call
//! does not matter: the kernel copies or pins it, except for direct I/O of some file systems (docs/LIMITS.md).

use core::ffi::{c_int, c_long, c_uint, c_void};

use crate::PROGRAM;
use crate::real::{Real, forward};

/// Look up the real functions now: later, a thread that holds the loader's lock may need them.
pub fn look_up() {
    let all = [&SEND, &SENDTO, &SENDMSG, &SENDMMSG, &VMSPLICE];
    for real in all {
        real.address();
    }
}

static SEND: Real = Real::new(c"send");
static SENDTO: Real = Real::new(c"sendto");
static SENDMSG: Real = Real::new(c"sendmsg");
static SENDMMSG: Real = Real::new(c"sendmmsg");
static VMSPLICE: Real = Real::new(c"vmsplice");

/// The flags of a send.
fn on_send(flags: c_int) {
    if flags & libc::MSG_ZEROCOPY != 0 {
        PROGRAM.about_to_lend();
    }
}

/// A system call by number.
pub fn on_syscall(number: c_long, arguments: [usize; 4]) {
    let lends = match number {
        libc::SYS_sendto | libc::SYS_sendmmsg => arguments[3] & libc::MSG_ZEROCOPY as usize != 0,
        libc::SYS_sendmsg => arguments[2] & libc::MSG_ZEROCOPY as usize != 0,
        libc::SYS_vmsplice | libc::SYS_io_uring_setup => true,
        _ => false,
    };
    if lends {
        PROGRAM.about_to_lend();
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn send(fd: c_int, from: *const c_void, length: usize, flags: c_int) -> isize {
    on_send(flags);
    forward!(SEND => fn(c_int, *const c_void, usize, c_int) -> isize; fd, from, length, flags)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn sendto(
    fd: c_int,
    from: *const c_void,
    length: usize,
    flags: c_int,
    to: *const libc::sockaddr,
    to_length: libc::socklen_t,
) -> isize {
    on_send(flags);
    forward!(SENDTO =>
        fn(c_int, *const c_void, usize, c_int, *const libc::sockaddr, libc::socklen_t) -> isize;
        fd, from, length, flags, to, to_length)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn sendmsg(fd: c_int, message: *const libc::msghdr, flags: c_int) -> isize {
    on_send(flags);
    forward!(SENDMSG => fn(c_int, *const libc::msghdr, c_int) -> isize; fd, message, flags)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn sendmmsg(
    fd: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    on_send(flags);
    forward!(SENDMMSG =>
        fn(c_int, *mut libc::mmsghdr, c_uint, c_int) -> c_int; fd, messages, count, flags)
}

/// As the C library's.
#[unsafe(no_mangle)]
pub extern "C" fn vmsplice(
    fd: c_int,
    ranges: *const libc::iovec,
    count: usize,
    flags: c_uint,
) -> isize {
    PROGRAM.about_to_lend();
    forward!(VMSPLICE =>
        fn(c_int, *const libc::iovec, usize, c_uint) -> isize; fd, ranges, count, flags)
}
