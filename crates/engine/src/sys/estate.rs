//! The engine's own memory: one reserved range of the address space.
//!
//! Everything the engine allocates in the process it serves (heap, stacks, frames, doorbells) lies
//! in one reservation, so "is this ours?" is one comparison: adoption leaves the range out, and a
//! fork child unmaps its parent's engine with one call. Pieces are handed out in order and never
//! taken back; what frees and reuses memory lives above this.

use core::ptr::NonNull;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

/// Address space that is reserved, in bytes. Bounds what the engine can ever use: at 1 % of what it
/// manages this serves 1.6 TiB.
const RESERVED: usize = 16 << 30;
const PAGE: usize = 4096;

static START: AtomicUsize = AtomicUsize::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// Reserve the range, once per process.
pub fn open() -> Result<(), Errno> {
    if START.load(Relaxed) != 0 {
        return Ok(());
    }
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory in use.
    let start = unsafe {
        mmap_anonymous(core::ptr::null_mut(), RESERVED, ProtFlags::empty(), flags)
    }?;
    NEXT.store(start as usize, Relaxed);
    START.store(start as usize, Relaxed);
    Ok(())
}

/// The reserved range, in bytes; empty before [`open`].
pub fn range() -> core::ops::Range<usize> {
    match START.load(Relaxed) {
        0 => 0..0,
        start => start..start + RESERVED,
    }
}

/// A zeroed piece of `bytes` (rounded up to pages), aligned to `align` (a power of two of at least
/// a page), readable and writable.
pub fn piece(bytes: usize, align: usize) -> Result<NonNull<u8>, Errno> {
    open()?;
    let bytes = bytes.next_multiple_of(PAGE);
    let mut next = NEXT.load(Relaxed);
    let start = loop {
        let start = next.next_multiple_of(align.max(PAGE));
        // A page that stays inaccessible lies behind each piece.
        let end = start + bytes + PAGE;
        if end > range().end {
            return Err(Errno::NOMEM);
        }
        match NEXT.compare_exchange_weak(next, end, Relaxed, Relaxed) {
            Ok(_) => break start,
            Err(now) => next = now,
        }
    };
    let at = start as *mut core::ffi::c_void;
    // SAFETY: the piece lies in our reservation and nobody else was given it.
    unsafe { mprotect(at, bytes, MprotectFlags::READ | MprotectFlags::WRITE) }?;
    NonNull::new(at.cast()).ok_or(Errno::NOMEM)
}

/// In a fork child: let go of the parent's range, so that the next [`open`] reserves another. The
/// old one stays mapped until [`unmap`].
pub fn renounce() -> core::ops::Range<usize> {
    let old = range();
    START.store(0, Relaxed);
    NEXT.store(0, Relaxed);
    old
}

/// Unmap a range that [`renounce`] returned.
///
/// # Safety
/// Nothing may point into it any more.
pub unsafe fn unmap(old: core::ops::Range<usize>) {
    if !old.is_empty() {
        // SAFETY: by contract nothing uses the range. Failure leaves address space behind.
        let _ = unsafe { munmap(old.start as *mut core::ffi::c_void, old.len()) };
    }
}
