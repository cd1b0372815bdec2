//! Whether transfers are still under way that an ended process has begun.
//!
//! A process that ends does not wait for what its io_uring was asked to do: its last pages may reach the area
//! after all else of it is gone, over what another process has written to the same slots since. But a transfer
//! holds the open file description that it goes through until it has ended. So each process gets one of its
//! own, with a lock on a byte of it that only the end of the description releases.
//!
//! The supervisor's side: this may use the C library.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

/// No record has this number.
const NOBODY: usize = i32::MAX as usize;

/// A description of its own of the area behind `area`, for the process of record `number`.
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

/// Whether processes can have one.
///
/// # Errors
///
/// As [`open`].
pub fn try_out(area: BorrowedFd<'_>) -> Result<(), Errno> {
    open(area, NOBODY).map(drop)
}

/// Whether the process of record `number`, or a transfer that it began, still has its description of `area`.
pub fn is_held(area: BorrowedFd<'_>, number: usize) -> Result<bool, Errno> {
    is_locked(area, byte(number))
}

/// Whether any process or transfer has one.
pub(super) fn is_held_by_any(area: BorrowedFd<'_>) -> bool {
    // A length of 0: to the end. Where it cannot be asked for there are none.
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
        // As a transfer does.
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
