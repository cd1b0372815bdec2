//! A page of memory for a secret: no core dump contains it, and the kernel does not swap it out.
//!
//! The kernel has a kind of memory for this (memfd_secret): it is locked, the kernel itself has no mapping of it, so that
//! /proc/PID/mem, process_vm_readv and a crash dump do not reach it, and it is cleared when its last user ends. Where that
//! is missing or refused, shared memory takes its place, which is locked (mlock) and excluded from core dumps.
//!
//! Either way the page counts towards the limit on locked memory (`ulimit -l`).

use core::ffi::c_void;
use core::ptr::NonNull;

use linux_raw_sys::general as k;
use rustix::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, munmap};
use rustix::process::{Resource, getrlimit};

use super::own_memory;
use super::syscall::syscall;

/// Bytes of a page.
pub const BYTES: usize = 4096;
/// The file system of the kernel's memory for secrets (`SECRETMEM_MAGIC`).
const HIDDEN: rustix::fs::FsWord = 0x5345_434d;

/// Why there is no such page.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The limit on locked memory.
    #[error(
        "no memory can be locked for the key of --encrypt: it needs 8192 bytes in each process, and the limit for all \
         locked memory of one is {limit} bytes; raise it (`ulimit -l`) or leave --encrypt out"
    )]
    Locked {
        /// The limit of this process.
        limit: u64,
    },
    /// It was cleared.
    #[error("the run has ended, and its key is gone")]
    Gone,
    /// A system call failed.
    #[error("no memory for the key of --encrypt: {what} failed: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
}

fn system(what: &'static str) -> impl Fn(Errno) -> SecretError {
    move |errno| SecretError::System { what, errno }
}

/// The error of a call that locks memory.
fn locking(what: &'static str) -> impl Fn(Errno) -> SecretError {
    move |errno| match (errno, getrlimit(Resource::Memlock).current) {
        (Errno::AGAIN | Errno::NOMEM | Errno::PERM, Some(limit)) => SecretError::Locked { limit },
        _ => system(what)(errno),
    }
}

/// A mapped page.
#[derive(Debug)]
pub struct SecretPage {
    base: NonNull<u8>,
    fd: OwnedFd,
    is_hidden: bool,
}

// SAFETY: it is plain memory, which is reached through a pointer only.
unsafe impl Send for SecretPage {}

impl SecretPage {
    /// A new page of zeros.
    pub fn create() -> Result<Self, SecretError> {
        hidden_file().map_or_else(|_| Self::create_locked(), Self::map)
    }

    /// One without the kernel's kind of memory for secrets.
    fn create_locked() -> Result<Self, SecretError> {
        let flags = MemfdFlags::CLOEXEC;
        let name = c"foreswap-key";
        let fd = rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(name, flags))
            .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, BYTES as u64).map_err(system("ftruncate"))?;
        Self::map(fd)
    }

    /// The page that another process made.
    pub fn attach(fd: OwnedFd) -> Result<Self, SecretError> {
        let page = Self::map(fd)?;
        page.keep_from_children()?;
        Ok(page)
    }

    /// Children that fork from now on do not inherit it.
    pub fn keep_from_children(&self) -> Result<(), SecretError> {
        self.advise(Advice::LinuxDontFork)
    }

    fn advise(&self, advice: Advice) -> Result<(), SecretError> {
        // SAFETY: sets a property of our own mapping.
        let advised = unsafe { madvise(self.base.as_ptr().cast(), BYTES, advice) };
        advised.map_err(system("madvise"))
    }

    fn map(fd: OwnedFd) -> Result<Self, SecretError> {
        let kind = rustix::fs::fstatfs(&fd).map_err(system("fstatfs"))?.f_type;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let wish = own_memory::wish(BYTES);
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base = unsafe { mmap(wish, BYTES, access, MapFlags::SHARED, &fd, 0) };
        let base = base.map_err(locking("mmap"))?.cast::<u8>();
        let base = NonNull::new(base).ok_or(system("mmap")(Errno::NOMEM))?;
        let page = SecretPage {
            base,
            fd,
            is_hidden: kind == HIDDEN,
        };
        page.lock()?;
        page.advise(Advice::LinuxDontDump)?;
        Ok(page)
    }

    /// A forked child has to do this again.
    pub fn lock(&self) -> Result<(), SecretError> {
        if self.is_hidden {
            // It is locked from the start, and mlock refuses it.
            return Ok(());
        }
        // SAFETY: our own mapping.
        unsafe { mlock(self.base.as_ptr().cast(), BYTES) }.map_err(locking("mlock"))
    }

    /// The descriptor, for passing on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.base
    }

    /// Keeps the mapping until the process ends, without its descriptor.
    pub fn leak(self) -> NonNull<u8> {
        let page = core::mem::ManuallyDrop::new(self);
        // SAFETY: the value is never dropped, so this is the only close.
        drop(unsafe { core::ptr::read(&raw const page.fd) });
        page.base
    }
}

impl Drop for SecretPage {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length.
        let _ = unsafe { munmap(self.base.as_ptr().cast::<c_void>(), BYTES) };
    }
}

/// A file of the kernel's memory for secrets, of one page.
fn hidden_file() -> Result<OwnedFd, Errno> {
    let flags = k::O_CLOEXEC as usize;
    // SAFETY: the call takes flags only and returns a new descriptor.
    let fd = unsafe {
        let fd = syscall(k::__NR_memfd_secret, [flags])?;
        OwnedFd::from_raw_fd(fd as i32)
    };
    rustix::fs::ftruncate(&fd, BYTES as u64)?;
    Ok(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The flags of the page's mapping, in /proc/self/smaps.
    fn flags_of(page: &SecretPage) -> String {
        let start = format!("{:x}-", page.start().as_ptr() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
        let rest = smaps.lines().skip_while(|line| !line.starts_with(&start));
        let flags = rest.into_iter().find(|line| line.starts_with("VmFlags:"));
        flags.expect("the mapping").to_owned()
    }

    fn is_secret_and_shared(page: &SecretPage) {
        page.keep_from_children().expect("advice");
        let flags = flags_of(page);
        // Locked, not dumped, not copied.
        for flag in [" lo", " dd", " dc"] {
            assert!(flags.contains(flag), "{flag} is not in {flags}");
        }
        // SAFETY: nobody else uses the page.
        unsafe { page.start().as_ptr().write(7) };
        let other = page.fd().try_clone_to_owned().expect("a descriptor");
        let other = SecretPage::attach(other).expect("the same page");
        // SAFETY: as above.
        assert_eq!(unsafe { other.start().as_ptr().read() }, 7);
    }

    #[test]
    fn the_page_is_locked_and_in_no_dump_or_child() {
        is_secret_and_shared(&SecretPage::create().expect("a page"));
    }

    #[test]
    fn so_is_its_substitute() {
        is_secret_and_shared(&SecretPage::create_locked().expect("a page"));
    }

    #[test]
    fn the_kernel_reads_no_hidden_page_for_anybody() {
        let page = SecretPage::create().expect("a page");
        if !page.is_hidden {
            eprintln!("skipped: this kernel has no memfd_secret");
            return;
        }
        use std::os::unix::fs::FileExt as _;
        let memory = std::fs::File::open("/proc/self/mem").expect("/proc/self/mem");
        let at = page.start().as_ptr() as u64;
        assert!(memory.read_at(&mut [0; 8], at).is_err());
    }
}
