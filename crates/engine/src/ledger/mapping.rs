//! The mapped memory of the ledger: the only place where its bytes become references.
//!
//! A memfd of fixed size (sealed, so that no process can make another one die of SIGBUS by
//! shrinking it), mapped shared by every process of the run. What is handed out are references to
//! atomics only; offsets come from a layout computed here from the area sizes, never from offsets
//! read out of shared memory, so that a damaged ledger can give wrong numbers but not wild pointers.

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use super::layout::{self, AREA_NAME_BYTES, AreaLayout, Header, Layout, MAX_PROCESSES, Record};
use super::options::Options;
use super::{AreaId, ProcId};
use crate::sys::own_memory;

/// Why a ledger could not be made or attached.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// A system call failed.
    #[error("{what} failed for the ledger: {errno}")]
    System {
        /// The call.
        what: &'static str,
        /// Its error.
        errno: Errno,
    },
    /// The descriptor holds something else, or a ledger of another version.
    #[error(
        "the ledger does not match this build ({what}): supervisor and preload object are of different versions"
    )]
    Mismatch {
        /// Which field differs.
        what: &'static str,
    },
    /// More than eight areas, or an area of no slots or too many.
    #[error("swap areas out of bounds: up to 8 areas of 2 MiB to 1 TiB each, in whole 2 MiB")]
    Areas,
}

fn system(what: &'static str) -> impl Fn(Errno) -> LedgerError {
    move |errno| LedgerError::System { what, errno }
}

/// What the ledger keeps of one swap area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AreaInfo {
    /// Slots of 4 KiB; a multiple of 512.
    pub slots: u32,
    /// The highest is filled first.
    pub priority: i32,
    /// Free for the engine (direct I/O and the like).
    pub flags: u32,
    /// Where slot 0 starts in the file.
    pub first_byte: u64,
    /// For messages; cut to 192 bytes.
    pub name: String,
}

/// What a run starts with.
#[derive(Clone, Debug)]
pub struct LedgerSpec {
    /// Pages that may be resident, over all processes.
    pub limit_pages: u64,
    /// The user's choices.
    pub options: Options,
    /// The areas, in the order of their descriptors in [`super::protocol::Welcome`].
    pub areas: Vec<AreaInfo>,
}

/// A mapped ledger. Cheap to share by reference; unmapped when dropped.
#[derive(Debug)]
pub struct Ledger {
    base: NonNull<u8>,
    fd: OwnedFd,
    layout: Layout,
}

// SAFETY: the mapping is shared memory made of atomics; `base` is never handed out.
unsafe impl Send for Ledger {}
// SAFETY: as above, all access through `&Ledger` is atomic.
unsafe impl Sync for Ledger {}

impl Ledger {
    /// Makes the ledger of a new run.
    pub fn create(spec: &LedgerSpec) -> Result<Self, LedgerError> {
        let slots: Vec<u32> = spec.areas.iter().map(|area| area.slots).collect();
        let layout = layout::layout(&slots).ok_or(LedgerError::Areas)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // NOEXEC_SEAL is newer than some kernels, and demanded by some systems' policy.
        let fd = rustix::fs::memfd_create(c"foreswap-ledger", flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| rustix::fs::memfd_create(c"foreswap-ledger", flags))
            .map_err(system("memfd_create"))?;
        rustix::fs::ftruncate(&fd, layout.total).map_err(system("ftruncate"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(system("F_ADD_SEALS"))?;
        let ledger = Self::map(fd, layout)?;
        ledger.write_header(spec);
        Ok(ledger)
    }

    /// Maps the ledger that a supervisor handed over.
    pub fn attach(fd: OwnedFd) -> Result<Self, LedgerError> {
        let bytes = rustix::fs::fstat(&fd).map_err(system("fstat"))?.st_size;
        let bytes = u64::try_from(bytes).unwrap_or(0);
        let small = layout::layout(&[]).ok_or(LedgerError::Areas)?;
        if bytes < small.total {
            return Err(LedgerError::Mismatch {
                what: "size of the file",
            });
        }
        let seals = rustix::fs::fcntl_get_seals(&fd).map_err(system("F_GET_SEALS"))?;
        if !seals.contains(SealFlags::SHRINK | SealFlags::GROW) {
            return Err(LedgerError::Mismatch { what: "seals" });
        }
        let head = Self::map(fd, small)?;
        let layout = head.validate(bytes)?;
        Self::map(
            rustix::io::fcntl_dupfd_cloexec(&head.fd, 0).map_err(system("dup"))?,
            layout,
        )
    }

    fn map(fd: OwnedFd, layout: Layout) -> Result<Self, LedgerError> {
        let bytes = usize::try_from(layout.total).map_err(|_| LedgerError::Areas)?;
        let access = ProtFlags::empty();
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice disturbs nothing.
        let base =
            unsafe { rustix::mm::mmap(own_memory::wish(bytes), bytes, access, flags, &fd, 0) }
                .map_err(system("mmap"))?;
        let base = NonNull::new(base.cast()).ok_or(LedgerError::Areas)?;
        let ledger = Self { base, fd, layout };
        // SAFETY: mapped just now.
        unsafe { own_memory::open_unlocked(base.as_ptr() as usize, bytes) }
            .map_err(system("mprotect"))?;
        Ok(ledger)
    }

    fn write_header(&self, spec: &LedgerSpec) {
        let header = self.header();
        header.version.store(layout::VERSION, Relaxed);
        header
            .header_bytes
            .store(size_of::<Header>() as u32, Relaxed);
        header
            .record_bytes
            .store(size_of::<Record>() as u32, Relaxed);
        header.max_processes.store(MAX_PROCESSES as u32, Relaxed);
        header.total_bytes.store(self.layout.total, Relaxed);
        header.start_ns.store(monotonic_ns(), Relaxed);
        header.limit_pages.store(spec.limit_pages, Relaxed);
        header.options.store(&spec.options);
        header.areas.store(spec.areas.len() as u32, Relaxed);
        for (words, area) in header.area.iter().zip(&spec.areas) {
            let mut name = [0u8; AREA_NAME_BYTES];
            let kept = area.name.floor_char_boundary(AREA_NAME_BYTES);
            name[..kept].copy_from_slice(&area.name.as_bytes()[..kept]);
            for (word, chunk) in words.name.iter().zip(name.as_chunks::<8>().0) {
                word.store(u64::from_le_bytes(*chunk), Relaxed);
            }
            words.name_len.store(kept as u64, Relaxed);
            words.slots.store(area.slots, Relaxed);
            words.priority.store(area.priority.cast_unsigned(), Relaxed);
            words.flags.store(area.flags, Relaxed);
            words.first_byte.store(area.first_byte, Relaxed);
        }
        header.magic.store(layout::MAGIC, Release);
    }

    fn validate(&self, bytes: u64) -> Result<Layout, LedgerError> {
        let header = self.header();
        let check = |same: bool, what| {
            if same {
                Ok(())
            } else {
                Err(LedgerError::Mismatch { what })
            }
        };
        check(header.magic.load(Acquire) == layout::MAGIC, "magic")?;
        check(header.version.load(Relaxed) == layout::VERSION, "version")?;
        check(
            header.header_bytes.load(Relaxed) as usize == size_of::<Header>(),
            "header",
        )?;
        check(
            header.record_bytes.load(Relaxed) as usize == size_of::<Record>(),
            "record",
        )?;
        check(
            header.max_processes.load(Relaxed) as usize == MAX_PROCESSES,
            "processes",
        )?;
        let count = header.areas.load(Relaxed) as usize;
        check(count <= layout::MAX_AREAS, "areas")?;
        let slots: Vec<u32> = header.area[..count]
            .iter()
            .map(|a| a.slots.load(Relaxed))
            .collect();
        let layout = layout::layout(&slots).ok_or(LedgerError::Mismatch { what: "area sizes" })?;
        check(layout.total == bytes, "size of the file")?;
        check(
            layout.total == header.total_bytes.load(Relaxed),
            "total size",
        )?;
        Ok(layout)
    }

    /// The descriptor, to be passed on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Where the ledger is mapped, for lists of memory that must not be adopted.
    pub fn address_range(&self) -> std::ops::Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.layout.total as usize
    }

    /// The user's choices.
    pub fn options(&self) -> Options {
        self.header().options.load()
    }

    /// When the run started, ns of CLOCK_MONOTONIC.
    pub fn start_ns(&self) -> u64 {
        self.header().start_ns.load(Relaxed)
    }

    /// How many areas there are.
    pub fn area_count(&self) -> usize {
        self.layout.areas.len()
    }

    /// All areas, in the order of their descriptors.
    pub fn areas(&self) -> impl Iterator<Item = AreaId> {
        (0..self.area_count()).map(|index| AreaId(index as u8))
    }

    /// What is known of one area; `None` where there is no such area.
    pub fn area_info(&self, area: AreaId) -> Option<AreaInfo> {
        let slots = self.area_layout(area)?.slots;
        let words = &self.header().area[usize::from(area.0)];
        let mut name = Vec::with_capacity(AREA_NAME_BYTES);
        for word in &words.name {
            name.extend_from_slice(&word.load(Relaxed).to_le_bytes());
        }
        name.truncate(words.name_len.load(Relaxed) as usize);
        Some(AreaInfo {
            slots,
            priority: words.priority.load(Relaxed).cast_signed(),
            flags: words.flags.load(Relaxed),
            first_byte: words.first_byte.load(Relaxed),
            name: String::from_utf8_lossy(&name).into_owned(),
        })
    }

    pub(super) fn area_layout(&self, area: AreaId) -> Option<&AreaLayout> {
        self.layout.areas.get(usize::from(area.0))
    }

    pub(super) fn header(&self) -> &Header {
        // SAFETY: the mapping is longer than a header (checked in `attach`), page aligned, and a
        // header is valid for every bit pattern; all of it is atomics.
        unsafe { self.base.cast::<Header>().as_ref() }
    }

    pub(super) fn record(&self, process: ProcId) -> &Record {
        &self.slice::<Record>(self.layout.records, process.index(), 1)[0]
    }

    pub(super) fn words32(&self, at: u64, count: u32) -> &[AtomicU32] {
        self.slice(at, 0, count as usize)
    }

    pub(super) fn words64(&self, at: u64, skip: u64, count: u64) -> &[AtomicU64] {
        self.slice(at, skip as usize, count as usize)
    }

    /// `count` elements from the `skip`th of the table at offset `at`.
    fn slice<T: AtomicsOnly>(&self, at: u64, skip: usize, count: usize) -> &[T] {
        let first = at as usize + skip * size_of::<T>();
        assert!(first + count * size_of::<T>() <= self.layout.total as usize);
        debug_assert!(first.is_multiple_of(align_of::<T>()));
        // SAFETY: inside the mapping (just checked), aligned because tables start at pages, and
        // `T` consists of atomics, valid for every bit pattern.
        unsafe { std::slice::from_raw_parts(self.base.add(first).cast().as_ptr(), count) }
    }

    /// Gives the pages of a whole-page range of words back; they read as zero afterwards.
    pub(super) fn punch(&self, at: u64, words: u64) {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // Only memory is at stake: the words are zero already.
        let _ = rustix::fs::fallocate(&self.fd, mode, at, words * 8);
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length; references to it borrow `self`.
        let _ =
            unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.layout.total as usize) };
    }
}

/// Types that may be looked at in shared memory.
///
/// # Safety
/// Implementors are `repr(C)` and consist of atomics (and padding) only.
unsafe trait AtomicsOnly {}
// SAFETY: an atomic.
unsafe impl AtomicsOnly for AtomicU32 {}
// SAFETY: an atomic.
unsafe impl AtomicsOnly for AtomicU64 {}
// SAFETY: `repr(C)`, atomics only, see `layout`.
unsafe impl AtomicsOnly for Record {}

/// CLOCK_MONOTONIC in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
