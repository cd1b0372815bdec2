//! Descriptors in place of paths that the engine's process cannot reach. Its program had another user, root directory
//! or network when it was forked, and its parent's engine passed the descriptors.
//!
//! They are held for the life of the process; a fork child forgets them first.

use core::ffi::CStr;
use core::sync::atomic::{AtomicI32, Ordering::Relaxed};
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open, openat};
use rustix::io::Errno;

/// The meaning of a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// The folder /proc.
    Proc = 0,
    /// /proc/PID/pagemap of this process.
    PageMap = 1,
    /// /dev/userfaultfd.
    Userfaultfd = 2,
}

const NONE: i32 = -1;
static HELD: [AtomicI32; 3] = [const { AtomicI32::new(NONE) }; 3];

/// Holds `fd` from here on.
pub fn hold(what: Handed, fd: OwnedFd) {
    HELD[what as usize].store(fd.into_raw_fd(), Relaxed);
}

/// Forget all descriptors: they belong to the process from which this one was forked.
pub fn forget() {
    for held in &HELD {
        held.store(NONE, Relaxed);
    }
}

/// A held descriptor.
pub fn get(what: Handed) -> Option<BorrowedFd<'static>> {
    let fd = HELD[what as usize].load(Relaxed);
    // SAFETY: a descriptor that is noted is never closed.
    (fd != NONE).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Opens a file of /proc for reading; `path` is absolute.
pub fn open_in_proc(path: &CStr) -> Result<OwnedFd, Errno> {
    open_in_proc_with(path, OFlags::empty())
}

/// The same, with further flags.
pub fn open_in_proc_with(path: &CStr, more: OFlags) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | more;
    let within = path.to_bytes_with_nul().strip_prefix(b"/proc/");
    let within = within.and_then(|rest| CStr::from_bytes_with_nul(rest).ok());
    match (get(Handed::Proc), within) {
        (Some(folder), Some(path)) => openat(folder, path, flags, Mode::empty()),
        _ => open(path, flags, Mode::empty()),
    }
}

/// The content of a file of /proc.
pub fn read_in_proc(path: &str) -> Result<Vec<u8>, Errno> {
    let path = std::ffi::CString::new(path).map_err(|_| Errno::INVAL)?;
    let file = open_in_proc(&path)?;
    let mut text = Vec::new();
    loop {
        let so_far = text.len();
        text.resize(so_far + 4096, 0);
        match rustix::io::read(&file, &mut text[so_far..]) {
            Ok(got) => text.truncate(so_far + got),
            Err(Errno::INTR) => text.truncate(so_far),
            Err(errno) => return Err(errno),
        }
        if text.len() == so_far {
            return Ok(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_held_descriptor_replaces_the_path() {
        // Other tests of this process open files of /proc meanwhile, and find the same.
        let folder = open(c"/proc", OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
        let name = || read_in_proc("/proc/thread-self/comm").expect("the name");
        let before = name();
        hold(Handed::Proc, folder.expect("/proc"));
        assert_eq!(name(), before);
        forget();
        assert!(get(Handed::Proc).is_none());
    }
}
