//! What concerns the whole process or the calling thread's descriptor table, without the C library.

use linux_raw_sys::general as k;
use rustix::fd::IntoRawFd;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use super::syscall::syscall;

/// Closes every descriptor of the calling thread's own table.
///
/// # Safety
/// The thread does not share its table with threads of the program (see [`super::thread::spawn`]),
/// and nothing that runs on it uses an open descriptor.
pub unsafe fn close_all_files() -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall(k::__NR_close_range, [0, u32::MAX as usize, 0]) }.map(drop)
}

/// Bytes of private memory that the process may write to, whatever of it is in memory.
pub fn data_bytes() -> Option<usize> {
    let file = open(
        c"/proc/thread-self/statm",
        OFlags::RDONLY | OFlags::CLOEXEC,
        Mode::empty(),
    );
    let file = file.ok()?;
    let mut text = [0; 128];
    let n = rustix::io::pread(&file, &mut text, 0).ok();
    // SAFETY: opened here and closed once; not by the C library, of which nothing is used here.
    unsafe { rustix::io::close(file.into_raw_fd()) };
    data_of_statm(text.get(..n?)?).map(|pages| pages * 4096)
}

/// The pages of data and stack that `/proc/PID/statm` tells.
pub fn data_of_statm(text: &[u8]) -> Option<usize> {
    let field = text.split(|&byte| byte == b' ').nth(5)?;
    core::str::from_utf8(field).ok()?.trim_ascii().parse().ok()
}

/// Ends the process at once with `status`: no handlers, no destructors.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall(k::__NR_exit_group, [status.cast_unsigned() as usize]) };
    }
}

/// Ends the process as `abort` does: by SIGABRT, whatever the program made of that signal.
pub fn abort() -> ! {
    const SIGABRT: usize = 6;
    // struct sigaction of the kernel, all zero: SIG_DFL, no flags, no mask.
    let default = [0_u64; 4];
    // SAFETY: sets a signal's disposition to the default and sends it to this process.
    unsafe {
        let action = default.as_ptr() as usize;
        let _ = syscall(k::__NR_rt_sigaction, [SIGABRT, action, 0, size_of::<u64>()]);
        let pid = rustix::process::getpid()
            .as_raw_nonzero()
            .get()
            .cast_unsigned() as usize;
        let _ = syscall(k::__NR_kill, [pid, SIGABRT]);
    }
    // Only if every thread of the program blocks the signal.
    std::thread::sleep(std::time::Duration::from_secs(1));
    exit(134)
}
