//! The program's own memory through `/proc/self/mem`.
//!
//! Some runtimes write their code this way (Julia), and debuggers of themselves read it. The kernel then waits for no
//! page: it returns EIO where one is absent. If a read or write fails with EIO and the descriptor is of this kind, the
//! pages are brought in, and the call is made again.

use core::ffi::{c_int, c_void};

use crate::real::{Real, forward};

/// The most bytes that are brought in at a time.
const MOST: usize = 1 << 20;
const PAGE: usize = 4096;
/// Pages that were brought in may leave before the call comes to them.
const TRIES: u32 = 16;

static READ: Real = Real::new(c"read");
static WRITE: Real = Real::new(c"write");
static PREAD: Real = Real::new(c"pread");
static PREAD64: Real = Real::new(c"pread64");
static PWRITE: Real = Real::new(c"pwrite");
static PWRITE64: Real = Real::new(c"pwrite64");

/// Look up the real functions now, as for `lends`.
pub fn look_up() {
    for real in [&READ, &WRITE, &PREAD, &PREAD64, &PWRITE, &PWRITE64] {
        real.address();
    }
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn read(fd: c_int, to: *mut c_void, length: usize) -> isize {
    let call = || forward!(READ => fn(c_int, *mut c_void, usize) -> isize; fd, to, length);
    again(call(), fd, None, length, false, call)
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn write(fd: c_int, from: *const c_void, length: usize) -> isize {
    let call = || forward!(WRITE => fn(c_int, *const c_void, usize) -> isize; fd, from, length);
    again(call(), fd, None, length, true, call)
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn pread(fd: c_int, to: *mut c_void, length: usize, at: libc::off_t) -> isize {
    let call = || forward!(PREAD => fn(c_int, *mut c_void, usize, libc::off_t) -> isize; fd, to, length, at);
    again(call(), fd, Some(at), length, false, call)
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn pread64(fd: c_int, to: *mut c_void, length: usize, at: libc::off_t) -> isize {
    let call = || forward!(PREAD64 => fn(c_int, *mut c_void, usize, libc::off_t) -> isize; fd, to, length, at);
    again(call(), fd, Some(at), length, false, call)
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn pwrite(fd: c_int, from: *const c_void, length: usize, at: libc::off_t) -> isize {
    let call = || {
        forward!(PWRITE =>
            fn(c_int, *const c_void, usize, libc::off_t) -> isize; fd, from, length, at)
    };
    again(call(), fd, Some(at), length, true, call)
}

/// As the C library's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn pwrite64(
    fd: c_int,
    from: *const c_void,
    length: usize,
    at: libc::off_t,
) -> isize {
    let call = || {
        forward!(PWRITE64 =>
            fn(c_int, *const c_void, usize, libc::off_t) -> isize; fd, from, length, at)
    };
    again(call(), fd, Some(at), length, true, call)
}

/// The result of a call, which is made again if absent pages of this process may be why it failed.
#[inline]
fn again(
    result: isize,
    fd: c_int,
    at: Option<libc::off_t>,
    length: usize,
    writes: bool,
    call: impl Fn() -> isize,
) -> isize {
    if result >= 0 {
        return result;
    }
    // SAFETY: the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    if unsafe { *errno } != libc::EIO {
        return result;
    }
    let result = with_pages(fd, at, length, writes, call).unwrap_or(result);
    if result < 0 {
        // SAFETY: as above. The calls in between have changed it.
        unsafe { *errno = libc::EIO };
    }
    result
}

/// Makes the call with the pages present; `None`: it is not about this process' memory, or failed each time.
#[cold]
fn with_pages(
    fd: c_int,
    at: Option<libc::off_t>,
    length: usize,
    writes: bool,
    call: impl Fn() -> isize,
) -> Option<isize> {
    if !is_own_memory(fd) {
        return None;
    }
    let at = match at {
        Some(at) => at,
        // SAFETY: asks for the position.
        None => unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) },
    } as usize;
    let start = at & !(PAGE - 1);
    let bytes = at.checked_add(length.min(MOST))? - start;
    for turn in 0..TRIES {
        let page = |advice: c_int| {
            // SAFETY: touches pages without a change; the kernel refuses what is not mapped or not accessible.
            let _ = unsafe {
                libc::madvise(start as *mut c_void, bytes.next_multiple_of(PAGE), advice)
            };
        };
        page(libc::MADV_POPULATE_READ);
        if writes && turn > 0 {
            // Write-protected for a fork.
            page(libc::MADV_POPULATE_WRITE);
        }
        let result = call();
        // SAFETY: the calling thread's errno.
        if result >= 0 || unsafe { *libc::__errno_location() } != libc::EIO {
            return Some(result);
        }
    }
    None
}

/// Whether `fd` is `/proc/PID/mem` of this process.
fn is_own_memory(fd: c_int) -> bool {
    let mut link = [0_u8; 32];
    let mut target = [0_u8; 64];
    let link = text(&mut link, b"/proc/self/fd/", fd.cast_unsigned(), b"\0");
    // SAFETY: the link is zero-terminated, and the target has this length.
    let length = unsafe {
        libc::readlink(
            link.as_ptr().cast(),
            target.as_mut_ptr().cast(),
            target.len(),
        )
    };
    let mut own = [0_u8; 32];
    // SAFETY: no argument.
    let pid = unsafe { libc::getpid() }.cast_unsigned();
    let own = text(&mut own, b"/proc/", pid, b"/mem");
    usize::try_from(length).is_ok_and(|length| target[..length] == *own)
}

/// `before`, a number and `after`, without allocation.
fn text<'a>(buffer: &'a mut [u8; 32], before: &[u8], number: u32, after: &[u8]) -> &'a [u8] {
    let mut digits = [0_u8; 10];
    let (mut at, mut left) = (digits.len(), number);
    loop {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
        if left == 0 {
            break;
        }
    }
    let mut length = 0;
    for part in [before, &digits[at..], after] {
        buffer[length..length + part.len()].copy_from_slice(part);
        length += part.len();
    }
    &buffer[..length]
}
