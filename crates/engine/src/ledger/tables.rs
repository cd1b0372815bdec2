//! The mapped memory of the ledger: the only place where its bytes become references.
//!
//! A memfd of fixed size (sealed, so that no process can shrink it and cause SIGBUS in another), mapped shared by
//! every process of the run. Only references to atomics are handed out. Offsets come from a layout computed here from
//! the area sizes, never from shared memory: a damaged ledger can give wrong numbers but not wild pointers.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, OnceLock};

use foreswap_store::ram::Ram;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise};

use crate::sys::limits;

use super::layout::{AreaLayout, Header, Record};
use super::mapping::{LedgerError, system};
use crate::sys::own_memory;

/// A mapped memfd.
#[derive(Debug)]
pub(super) struct Memory {
    base: NonNull<u8>,
    bytes: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping is shared memory made of atomics; `base` is handed out for such only.
unsafe impl Send for Memory {}
// SAFETY: as above, all access through `&Memory` is atomic.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates and maps a sealed file of this size, all zero.
    pub(super) fn create(bytes: u64) -> Result<Self, LedgerError> {
        // Beyond the limit the kernel ends the process (SIGXFSZ).
        if let Some(most) = limits::largest_file().filter(|most| *most < bytes) {
            return Err(LedgerError::FileSize { bytes, most });
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // NOEXEC_SEAL is newer than some kernels, and required by some systems' policy.
        let fd = rustix::fs::memfd_create(c"foreswap-ledger", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(c"foreswap-ledger", flags))
            .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("F_ADD_SEALS"))?;
        Self::map(fd, bytes)
    }

    /// Maps a received file; it must be sealed and of this size.
    pub(super) fn attach(fd: OwnedFd, bytes: u64) -> Result<Self, LedgerError> {
        let size = rustix::fs::fstat(&fd).map_err(system("fstat"))?.st_size;
        if u64::try_from(size) != Ok(bytes) {
            return Err(LedgerError::Mismatch {
                what: "size of the file",
            });
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(system("F_GET_SEALS"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(LedgerError::Mismatch { what: "seals" });
        }
        Self::map(fd, bytes)
    }

    fn map(fd: OwnedFd, bytes: u64) -> Result<Self, LedgerError> {
        let bytes = usize::try_from(bytes).map_err(|_| LedgerError::Areas)?;
        let access = ProtFlags::empty();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base =
            unsafe { rustix::mm::mmap(own_memory::wish(bytes), bytes, access, flags, &fd, 0) }
                .map_err(system("mmap"))?;
        let base = NonNull::new(base.cast()).ok_or(LedgerError::Areas)?;
        let memory = Self { base, bytes, fd };
        // SAFETY: mapped just now.
        unsafe { own_memory::open_unlocked(base.as_ptr() as usize, bytes) }
            .map_err(system("mprotect"))?;
        // A core dump reads all that is mapped, and a read of shared memory allocates it: gigabytes of empty records.
        // SAFETY: advice that changes no content.
        let _ = unsafe { madvise(base.as_ptr().cast(), bytes, Advice::LinuxDontDump) };
        Ok(memory)
    }

    /// As [`Memory::attach`], for any file size.
    pub(super) fn attach_whole(fd: OwnedFd) -> Result<Self, LedgerError> {
        let size = rustix::fs::fstat(&fd).map_err(system("fstat"))?.st_size;
        Self::attach(fd, u64::try_from(size).map_err(|_| LedgerError::Areas)?)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The first byte, for callers that need more than atomics.
    pub(super) fn start(&self) -> NonNull<u8> {
        self.base
    }

    pub(super) fn address_range(&self) -> std::ops::Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.bytes
    }

    /// `count` elements from the `skip`th of the table at offset `at`.
    pub(super) fn slice<T: AtomicsOnly>(&self, at: u64, skip: usize, count: usize) -> &[T] {
        let first = at as usize + skip * size_of::<T>();
        assert!(first + count * size_of::<T>() <= self.bytes);
        debug_assert!(first.is_multiple_of(align_of::<T>()));
        // SAFETY: inside the mapping (just checked), aligned because tables start at pages, and
        // `T` consists of atomics, valid for every bit pattern.
        unsafe { std::slice::from_raw_parts(self.base.add(first).cast().as_ptr(), count) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; references to it borrow `self`.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// The swap map of one area.
#[derive(Debug)]
pub(super) struct AreaTables {
    pub(super) memory: Memory,
    pub(super) layout: AreaLayout,
    /// For a RAM area: its memory, and the mapped range.
    pub(super) ram: OnceLock<(Arc<Ram>, Range<usize>)>,
}

impl std::ops::Deref for AreaTables {
    type Target = AreaLayout;

    fn deref(&self) -> &AreaLayout {
        &self.layout
    }
}

impl AreaTables {
    pub(super) fn words32(&self, at: u64, count: u32) -> &[AtomicU32] {
        self.memory.slice(at, 0, count as usize)
    }

    pub(super) fn words64(&self, at: u64, skip: u64, count: u64) -> &[AtomicU64] {
        self.memory.slice(at, skip as usize, count as usize)
    }

    /// Frees the pages of a whole-page range of words; they read as zero afterwards.
    pub(super) fn punch(&self, at: u64, words: u64) {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // Only memory is at stake: the words are already zero.
        let _ = rustix::fs::fallocate(self.memory.fd(), mode, at, words * 8);
    }
}

/// Types that may be accessed in shared memory.
///
/// # Safety
/// Implementors are `repr(C)` and consist of atomics (and padding) only.
pub(super) unsafe trait AtomicsOnly {}
// SAFETY: an atomic.
unsafe impl AtomicsOnly for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl AtomicsOnly for AtomicU64 {}
// SAFETY: `repr(C)`, atomics only, see `layout`.
unsafe impl AtomicsOnly for Record {}
// SAFETY: `repr(C)`, atomics only, see `layout`.
unsafe impl AtomicsOnly for Header {}
