//! Leases on files (F_SETLEASE): while one is held, the kernel lets nobody open the file for writing, or cut it.
//!
//! Somebody who wants to waits until the lease ends, at most for the time in /proc/sys/fs/lease-break-time. A lease belongs
//! to the open file, and so to all processes that have a copy of the descriptor.

use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;

use super::syscall::syscall;

const SET: usize = 1024;
const GET: usize = 1025;
const SET_OWNER: usize = 8;
const SET_SIGNAL: usize = 10;
/// Ignored by default.
const SIGURG: usize = 23;
const READ: usize = 0;
const NONE: usize = 2;

fn call(file: impl AsFd, command: usize, kind: usize) -> Result<usize, Errno> {
    let fd = file.as_fd().as_raw_fd() as usize;
    // SAFETY: no memory is involved.
    unsafe { syscall(linux_raw_sys::general::__NR_fcntl, [fd, command, kind]) }
}

/// Takes a lease on a file that is open for reading. AGAIN: somebody has it open for writing. ACCES: the file is another
/// user's.
pub fn take(file: impl AsFd) -> Result<(), Errno> {
    // The holder asks. Taking the lease makes this process the one that is told of a writer, at first by SIGIO, which
    // would end it.
    call(&file, SET_SIGNAL, SIGURG)?;
    call(&file, SET, READ)?;
    let owned = call(&file, SET_OWNER, 0).map(|_| ());
    if owned.is_err() {
        let _ = end(&file);
    }
    owned
}

/// Ends it.
pub fn end(file: impl AsFd) -> Result<(), Errno> {
    call(file, SET, NONE).map(|_| ())
}

/// Whether it is held, and nobody waits for its end.
pub fn is_held(file: impl AsFd) -> bool {
    call(file, GET, 0) == Ok(READ)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn it_keeps_writers_out_until_it_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        drop(File::create(&path).expect("a file"));
        let file = File::open(&path).expect("a file");
        assert!(!is_held(&file));
        take(&file).expect("nobody writes to it");
        assert!(is_held(&file) && is_held(file.try_clone().expect("a copy")));
        let at_once = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        let write = || {
            let mut options = OpenOptions::new();
            options.write(true).custom_flags(at_once).open(&path)
        };
        let refused = write().expect_err("a lease is held");
        assert_eq!(refused.raw_os_error(), Some(Errno::AGAIN.raw_os_error()));
        assert!(!is_held(&file), "somebody waits");
        end(&file).expect("it was held");
        let writer = write().expect("nothing is in the way");
        assert_eq!(take(&file), Err(Errno::AGAIN));
        drop(writer);
        take(&file).expect("the writer is gone");
    }
}
