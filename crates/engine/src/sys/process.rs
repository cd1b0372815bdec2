//! What concerns the whole process or the calling thread's descriptor table, without the C library.

use linux_raw_sys::general as k;
use rustix::io::Errno;

use super::syscall::syscall;

/// Closes every descriptor of the calling process' own table.
///
/// # Safety
/// The table is not shared with the program (see [`super::beside`]), and nothing that runs on it
/// uses an open descriptor.
pub unsafe fn close_all_files() -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall(k::__NR_close_range, [0, u32::MAX as usize, 0]) }.map(drop)
}

/// Ends the process at once with `status`: no handlers, no destructors.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall(k::__NR_exit_group, [status.cast_unsigned() as usize]) };
    }
}
