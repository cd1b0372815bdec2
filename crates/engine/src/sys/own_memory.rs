//! Every mapping of the engine, in one list: adoption leaves these ranges alone, and a fork child finds the remains
//! of its parent's engine.
//!
//! The list is a fixed table of atomics in static memory: it needs neither an allocator nor a lock and is readable
//! from any thread. It holds few, large mappings (stacks, allocator segments, arenas). If it is full, mapping fails
//! with ENOMEM: an unlisted range could be adopted, and the engine would page itself out.

use core::ffi::c_void;
use core::ptr::{NonNull, without_provenance_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use linux_raw_sys::general as k;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munlock, munmap,
};

use super::syscall::syscall;

/// Sufficient for some gigabytes of allocator segments; 48 KiB of static memory.
const CAPACITY: usize = 2048;
/// An entry being filled.
const CLAIMED: usize = 1;
const PR_SET_VMA: usize = 0x5356_4d41;

/// The purpose of a mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A raw thread's stack and thread block.
    Thread = 1,
    /// A segment of the engine's allocator.
    Heap = 2,
    /// Page frames for eviction and swap-in.
    Frames = 3,
    /// The doorbell's pages and slots.
    Doorbell = 4,
    /// Other mappings of the engine.
    Other = 5,
    /// The memory shared by all processes of the run.
    Ledger = 6,
    /// The expanded key of the run.
    Secret = 7,
}

/// One listed mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Own {
    /// First byte.
    pub start: usize,
    /// Bytes.
    pub len: usize,
    /// Its purpose.
    pub kind: Kind,
    /// Made by the engine of a parent process.
    pub inherited: bool,
}

struct Entry {
    /// 0 is free, [`CLAIMED`] is being filled, else the mapping's first byte.
    start: AtomicUsize,
    len: AtomicUsize,
    kind: AtomicU32,
    generation: AtomicU32,
}

static TABLE: [Entry; CAPACITY] = [const {
    Entry {
        start: AtomicUsize::new(0),
        len: AtomicUsize::new(0),
        kind: AtomicU32::new(0),
        generation: AtomicU32::new(0),
    }
}; CAPACITY];

/// Entries from here on were never used.
static REACH: AtomicUsize = AtomicUsize::new(0);

/// The room for the engine's mappings below this module's own data. The program would have to map as much before it
/// met them.
const BELOW: usize = 8 << 40;
/// The gap between two of them, and their alignment.
const GAP: usize = 2 << 20;
/// Bytes of that room in use.
static PLACED: AtomicUsize = AtomicUsize::new(0);

/// Counts the forks between the first process and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Maps `len` bytes of zeroed private memory, without reserve, and lists them.
pub fn map(len: usize, kind: Kind) -> Result<NonNull<u8>, Errno> {
    let base = reserve(len, kind)?;
    // SAFETY: mapped just now.
    if let Err(errno) = unsafe { open_unlocked(base.as_ptr() as usize, len) } {
        // SAFETY: mapped above, not visible elsewhere.
        unsafe { unmap(base, len) }?;
        return Err(errno);
    }
    Ok(base)
}

/// Opens a closed mapping of the engine for reading and writing. After `mlockall(MCL_FUTURE)` the kernel locks every
/// new mapping, and fills it at once if it is accessible: frames and doors, which must be empty, and tables that are
/// meant to stay sparse. Mappings are therefore created closed, and unlocked first.
///
/// # Safety
/// The range is a mapping of the engine's.
pub unsafe fn open_unlocked(start: usize, len: usize) -> Result<(), Errno> {
    let at = without_provenance_mut(start);
    // SAFETY: the caller's promise.
    unsafe {
        munlock(at, len)?;
        mprotect(at, len, MprotectFlags::READ | MprotectFlags::WRITE)
    }
}

/// Replaces part of a mapping of the engine by a fresh one, without pages or page tables.
///
/// # Safety
/// Its content is not needed, and no userfaultfd is registered on it.
pub unsafe fn renew(start: usize, len: usize) -> Result<(), Errno> {
    let at = without_provenance_mut(start);
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::FIXED;
    // SAFETY: the caller's promise.
    unsafe {
        mmap_anonymous(at, len, ProtFlags::empty(), flags)?;
        open_unlocked(start, len)
    }
}

/// Unlocks mappings of the engine that the program's `mlockall` locked. The engine locks the key itself.
pub fn unlock_all() {
    for own in ranges().filter(|own| own.kind != Kind::Secret) {
        // SAFETY: changes nothing but whether pages may leave. A mapping that was unmapped
        // meanwhile is refused, or is a new one that is open to be locked again.
        let _ = unsafe { munlock(without_provenance_mut(own.start), own.len) };
    }
}

/// Drops the pages of `start..start + len`, locked or not.
///
/// # Safety
/// Their content is not needed.
pub unsafe fn discard(start: usize, len: usize) -> Result<(), Errno> {
    let at = without_provenance_mut(start);
    // `LinuxDontNeed` drops pages; `DontNeed` is POSIX's hint.
    // SAFETY: the caller's promise.
    match unsafe { madvise(at, len, Advice::LinuxDontNeed) } {
        // Locked by a `mlockall` of the program.
        // SAFETY: as above.
        Err(Errno::INVAL) => unsafe { madvise(at, len, Advice::LinuxDontneedLocked) },
        other => other,
    }
}

/// As [`map`], but without any access, which costs nothing even under strict accounting; `mprotect` opens parts of
/// it.
pub fn reserve(len: usize, kind: Kind) -> Result<NonNull<u8>, Errno> {
    let prot = ProtFlags::empty();
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping where nothing is.
    let at = unsafe { mmap_anonymous(wish(len), len, prot, flags) }?;
    let Some(base) = NonNull::new(at.cast::<u8>()) else {
        return Err(Errno::NOMEM);
    };
    if !list(at as usize, len, kind) {
        // SAFETY: mapped just above, not visible elsewhere.
        unsafe { munmap(at, len) }?;
        return Err(Errno::NOMEM);
    }
    // SAFETY: mapped just above; see `open_unlocked`.
    let _ = unsafe { munlock(at, len) };
    // The name keeps the kernel from merging the mapping with the program's neighbours and identifies it in
    // /proc/PID/maps. Kernels without names refuse, without further effect.
    let name = c"foreswap".as_ptr() as usize;
    // SAFETY: names the mapping just made; the string is static.
    let _ = unsafe { syscall(k::__NR_prctl, [PR_SET_VMA, 0, at as usize, len, name]) };
    Ok(base)
}

/// The preferred place of a mapping of `len` bytes: far below the program's mappings. The kernel's own choice would
/// be the highest hole, and holes are the program's: a range that it unmapped, or kept from this fork child
/// (MADV_DONTFORK), must fault when it is touched. Nor may the engine block program mappings that grow in place.
pub fn wish(len: usize) -> *mut c_void {
    let guarded = (len + GAP).next_multiple_of(GAP);
    let before = PLACED.fetch_add(guarded, Ordering::Relaxed);
    let here = (&raw const TABLE) as usize;
    // A hint only: if it is not free, the kernel finds another place.
    let at = here
        .checked_sub(BELOW)
        .map(|start| start / GAP * GAP + before);
    without_provenance_mut(at.filter(|at| at + guarded < here).unwrap_or(0))
}

/// Unmaps a mapping of [`map`] and removes it from the list.
///
/// # Safety
/// `base` and `len` are those of a listed mapping that is not used any more.
pub unsafe fn unmap(base: NonNull<u8>, len: usize) -> Result<(), Errno> {
    unlist(base.as_ptr() as usize);
    // SAFETY: the caller's promise.
    unsafe { munmap(base.as_ptr().cast(), len) }
}

/// Lists a mapping that was created elsewhere; false if the list is full.
pub fn list(start: usize, len: usize, kind: Kind) -> bool {
    for (index, entry) in TABLE.iter().enumerate() {
        if entry
            .start
            .compare_exchange(0, CLAIMED, Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
        {
            REACH.fetch_max(index + 1, Ordering::Relaxed);
            entry.len.store(len, Ordering::Relaxed);
            entry.kind.store(kind as u32, Ordering::Relaxed);
            entry
                .generation
                .store(GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
            // Release: a reader that sees the address sees the rest.
            entry.start.store(start, Ordering::Release);
            return true;
        }
    }
    false
}

/// Removes the mapping that starts at `start` from the list.
pub fn unlist(start: usize) {
    if let Some(entry) = find(start) {
        entry.start.store(0, Ordering::Release);
    }
}

fn find(start: usize) -> Option<&'static Entry> {
    TABLE
        .iter()
        .find(|entry| entry.start.load(Ordering::Acquire) == start)
}

/// The listed mappings, in no order. Mappings made or dropped meanwhile may be missed or shown.
pub fn ranges() -> impl Iterator<Item = Own> {
    let generation = GENERATION.load(Ordering::Relaxed);
    let used = TABLE.iter().take(REACH.load(Ordering::Relaxed));
    used.filter_map(move |entry| {
        let start = entry.start.load(Ordering::Acquire);
        if start <= CLAIMED {
            return None;
        }
        let kind = match entry.kind.load(Ordering::Relaxed) {
            1 => Kind::Thread,
            2 => Kind::Heap,
            3 => Kind::Frames,
            4 => Kind::Doorbell,
            6 => Kind::Ledger,
            7 => Kind::Secret,
            _ => Kind::Other,
        };
        Some(Own {
            start,
            len: entry.len.load(Ordering::Relaxed),
            kind,
            inherited: entry.generation.load(Ordering::Relaxed) != generation,
        })
    })
}

/// In a fork child, before other calls of this module: listed mappings count as inherited from now on.
pub fn forget_after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// In a fork child: unmaps the inherited mappings selected by `which`, and unlists them. A mapping that was kept from
/// children (MADV_DONTFORK) is absent, and memory of the child may be in its place: `which` must reject it, and
/// [`drop_from_list`] is for it. MADV_WIPEONFORK has no such problem.
///
/// # Safety
/// The selected mappings are not used any more in this process.
pub unsafe fn unmap_inherited(mut which: impl FnMut(&Own) -> bool) {
    for own in ranges() {
        if own.inherited && which(&own) {
            unlist(own.start);
            // SAFETY: listed, inherited, and given up by the caller.
            let _ = unsafe { munmap(without_provenance_mut(own.start), own.len) };
        }
    }
}

/// In a fork child: unlists the inherited mappings selected by `which` without unmapping them.
pub fn drop_from_list(mut which: impl FnMut(&Own) -> bool) {
    for own in ranges() {
        if own.inherited && which(&own) {
            unlist(own.start);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_is_listed_until_it_is_unmapped() {
        let base = map(8192, Kind::Other).expect("map");
        let start = base.as_ptr() as usize;
        let seen = ranges().find(|own| own.start == start);
        let own = Own {
            start,
            len: 8192,
            kind: Kind::Other,
            inherited: false,
        };
        assert_eq!(seen, Some(own));
        // SAFETY: mapped above, not in use.
        unsafe { unmap(base, 8192) }.expect("unmap");
        assert!(ranges().all(|own| own.start != start));
    }
}
