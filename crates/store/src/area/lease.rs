//! Whether transfers of an ended process are still in progress.
//!
//! A process that ends does not wait for its io_uring transfers: its last pages may reach the area after everything
//! else of it is gone, and overwrite pages that another process has since written to the same slots. But a transfer
//! holds its open file description until it has ended. Each process therefore gets a description of its own, with a
//! lock on one byte that only the end of the description releases.
//!
//! On the supervisor's side, where the C library may be used.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// No record has this number.
const NOBODY: usize = i32::MAX as usize;

/// Opens a private description of the area behind `area`, for the process with record `number`.
///
/// # Errors
///
/// Without `/proc`, or on a file system without locks, there is none.
pub fn open(area: BorrowedFd<'_>, number: usize) -> Result<OwnedFd, Errno> {
    let kept = OFlags::ACCMODE | OFlags::DIRECT;
    let flags = rustix::fs::fcntl_getfl(area)? & kept | OFlags::CLOEXEC;
    let path = format!("/proc/self/fd/{}", area.as_raw_fd());
    let own = rustix::fs::open(path, flags, Mode::empty())?;
    lock(own.as_fd(), libc::F_OFD_SETLK, &mut byte(number))?;
    Ok(own)
}

/// Whether processes can have such descriptions.
///
/// # Errors
///
/// As [`open`].
pub fn try_out(area: BorrowedFd<'_>) -> Result<(), Errno> {
    open(area, NOBODY).map(drop)
}

/// Whether the process with record `number`, or one of its transfers, still has its description of `area`.
pub fn is_held(area: BorrowedFd<'_>, number: usize) -> Result<bool, Errno> {
    is_locked(area, byte(number))
}

/// Whether any process or transfer has one.
pub(super) fn is_held_by_any(area: BorrowedFd<'_>) -> bool {
    // A length of 0 means up to the end. If the query fails, there are no locks.
    is_locked(area, range(0, 0)) == Ok(true)
}

fn is_locked(area: BorrowedFd<'_>, mut range: libc::flock) -> Result<bool, Errno> {
    lock(area, libc::F_OFD_GETLK, &mut range)?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn byte(number: usize) -> libc::flock {
    range(number as libc::off_t, 1)
}

fn range(start: libc::off_t, length: libc::off_t) -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        // Must be 0 for locks of descriptions.
        l_pid: 0,
    }
}

fn lock(file: BorrowedFd<'_>, command: libc::c_int, range: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the command reads and writes a `flock`, which outlives the call.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, range) } {
        -1 => {
            let error = std::io::Error::last_os_error();
            Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_of_the_description_releases_it() {
        let file = tempfile::tempfile().expect("a temporary file");
        let area = file.as_fd();
        let is_held = |number| is_held(area, number).expect("an answer");
        assert!(!is_held(3) && !is_held_by_any(area));
        let own = open(area, 3).expect("a description");
        assert!(is_held(3) && !is_held(2) && !is_held(4));
        // Like a transfer.
        let copy = rustix::io::dup(&own).expect("a copy");
        drop(own);
        assert!(is_held(3) && is_held_by_any(area));
        drop(copy);
        assert!(!is_held(3) && !is_held_by_any(area));
    }

    #[test]
    fn nobody_else_gets_the_number_meanwhile() {
        let file = tempfile::tempfile().expect("a temporary file");
        let area = file.as_fd();
        let _own = open(area, 0).expect("a description");
        assert_eq!(open(area, 0).err(), Some(Errno::AGAIN));
        assert!(open(area, 1).is_ok());
    }
}
