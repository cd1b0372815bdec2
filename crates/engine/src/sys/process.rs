//! Operations on the whole process or the calling thread's descriptor table, without the C library.

use core::ffi::c_void;

use linux_raw_sys::general as k;
use rustix::fd::{IntoRawFd, OwnedFd};
use rustix::io::Errno;

use super::syscall::syscall;

/// Closes every descriptor of the calling process' own table.
///
/// # Safety
/// The table is not shared with the program (see [`super::beside`]), and no code that uses it needs an open
/// descriptor.
pub unsafe fn close_all_files() -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    unsafe { syscall(k::__NR_close_range, [0, u32::MAX as usize, 0]) }.map(drop)
}

/// The CPU time of all threads of process `pid`, in nanoseconds; 0 if there is no such process.
pub fn cpu_time(pid: u32) -> u64 {
    /// In a clock's number, below the complement of the process: time as the scheduler counts it.
    const SCHEDULED: u32 = 2;
    let clock = (!pid) << 3 | SCHEDULED;
    let mut time = k::__kernel_timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let at = &raw mut time as usize;
    // SAFETY: the kernel writes the time there.
    let read = unsafe { syscall(k::__NR_clock_gettime, [clock as usize, at]) };
    let nanoseconds = || time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64;
    read.map_or(0, |_| nanoseconds())
}

/// `/proc/PID/statm` of the calling process.
pub struct Statm(OwnedFd);

/// Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Private writable memory and the first stack, present or not.
    pub data: usize,
    resident: usize,
    of_files: usize,
}

impl Sizes {
    /// Present private memory: anonymous pages, and copies of file pages.
    pub fn anonymous_resident(self) -> usize {
        self.resident.saturating_sub(self.of_files)
    }
}

impl Statm {
    /// Opens it in the calling thread's file table.
    pub fn open() -> Result<Self, Errno> {
        super::handed::open_in_proc(c"/proc/thread-self/statm").map(Statm)
    }

    /// Reads it.
    pub fn read(&self) -> Option<Sizes> {
        let mut text = [0; 128];
        let n = rustix::io::pread(&self.0, &mut text, 0).ok()?;
        let mut fields = text[..n].split(|&byte| byte == b' ');
        let mut field = |index| {
            let field = fields.nth(index)?;
            let pages: usize = core::str::from_utf8(field)
                .ok()?
                .trim_ascii()
                .parse()
                .ok()?;
            Some(pages * 4096)
        };
        // Size, resident, shared, text, 0, data.
        Some(Sizes {
            resident: field(1)?,
            of_files: field(0)?,
            data: field(2)?,
        })
    }

    /// Closes it past the C library.
    pub fn close(self) {
        // SAFETY: it is closed once, here.
        unsafe { rustix::io::close(self.0.into_raw_fd()) };
    }
}

/// Makes a range readable and writable, executable if `exec`, with a protection key.
pub fn protect_with_key(at: *mut c_void, len: usize, exec: bool, key: i32) -> Result<(), Errno> {
    let access = k::PROT_READ | k::PROT_WRITE | if exec { k::PROT_EXEC } else { 0 };
    let key = key.cast_unsigned() as usize;
    let arguments = [at as usize, len, access as usize, key];
    // SAFETY: takes no right away from anybody but those that the key keeps out, for whom the caller
    // vouches.
    let changed = unsafe { syscall(k::__NR_pkey_mprotect, arguments) };
    match changed {
        // Without keys only "none" is accepted.
        Err(Errno::INVAL | Errno::NOSYS) if key == 0 => {
            // SAFETY: as above.
            unsafe { syscall(k::__NR_mprotect, [at as usize, len, access as usize]) }.map(drop)
        }
        other => other.map(drop),
    }
}

/// Ends the process at once with `status`: no handlers, no destructors.
pub fn exit(status: i32) -> ! {
    loop {
        // SAFETY: ends the process.
        let _ = unsafe { syscall(k::__NR_exit_group, [status.cast_unsigned() as usize]) };
    }
}
