//! The memory of all frames, and copies from and to it.
//!
//! A frame changes while it is read: readers copy without a lock and find out afterwards whether the copy is good
//! ([`crate::entry`]). In Rust that is sound only if both sides access the bytes atomically. No slice of the arena ever
//! exists. Each copy is one `rep movsb` in an assembly block, which does what a loop of relaxed atomic loads and stores
//! of bytes would do: x86-64 splits no byte, keeps the order of loads, and the block is opaque to the compiler. A loop
//! of real atomics takes three times as long, since it is not vectorised. The kernel's transfers are outside of the
//! language; the system calls that start and end them order them.

use std::io;

use foreswap_core::units::PAGE_SIZE;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::frames::FrameId;

/// One huge page.
const ALIGNMENT: usize = 2 << 20;

/// The mapping.
#[derive(Debug)]
pub struct Arena {
    base: *mut u8,
    mapped: (*mut u8, usize),
    bytes: usize,
}

// SAFETY: the arena is an address and a length; all accesses to the memory behind it are atomic, as the module says.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Memory for so many frames. It is allocated by the kernel as it is used.
    pub fn new(frames: u32) -> io::Result<Self> {
        let bytes = frames as usize * PAGE_SIZE;
        let length = bytes + ALIGNMENT;
        let (access, flags) = (
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        );
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), length, access, flags) }?;
        let start = start.cast::<u8>();
        let base = start.wrapping_add(start.align_offset(ALIGNMENT));
        // A wish: refused by kernels without huge pages.
        // SAFETY: a range of the new mapping.
        let _ = unsafe { madvise(base.cast(), bytes, Advice::LinuxHugepage) };
        Ok(Arena {
            base,
            mapped: (start, length),
            bytes,
        })
    }

    /// The first byte of a frame.
    pub fn address(&self, frame: FrameId) -> *mut u8 {
        let at = frame.0 as usize * PAGE_SIZE;
        assert!(
            at < self.bytes,
            "frame {} of {}",
            frame.0,
            self.bytes / PAGE_SIZE
        );
        self.base.wrapping_add(at)
    }

    /// Copies a part of a frame, which may change meanwhile: then the bytes are a mixture.
    #[inline]
    pub fn copy_out(&self, frame: FrameId, from: usize, to: &mut [u8]) {
        assert!(from + to.len() <= PAGE_SIZE);
        let source = self.address(frame).wrapping_add(from);
        // SAFETY: the source lies in one frame (asserted); the target is the caller's.
        unsafe { copy(source, to.as_mut_ptr(), to.len()) }
    }

    /// Copies to a part of a frame.
    pub fn copy_in(&self, frame: FrameId, at: usize, from: &[u8]) {
        assert!(at + from.len() <= PAGE_SIZE);
        let target = self.address(frame).wrapping_add(at);
        // SAFETY: the target lies in one frame (asserted); the source is the caller's.
        unsafe { copy(from.as_ptr(), target, from.len()) }
    }

    /// Clears a frame from a byte on.
    pub fn clear(&self, frame: FrameId, from: usize) {
        const ZEROS: [u8; PAGE_SIZE] = [0; PAGE_SIZE];
        self.copy_in(frame, from, &ZEROS[from..]);
    }
}

/// # Safety
/// `from` can be read and `to` written for `count` bytes; they do not overlap.
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, count: usize) {
    // SAFETY: by the caller's promise. The direction flag is clear at the start of each assembly block.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") count => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the mapping is this arena's, and no copy or transfer outlives the cache that owns it.
        let _ = unsafe { munmap(self.mapped.0.cast(), self.mapped.1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_lie_apart_and_hold_what_was_copied_to_them() {
        let arena = Arena::new(3).expect("memory");
        assert_eq!(arena.address(FrameId(0)) as usize % ALIGNMENT, 0);
        for frame in 0..3u8 {
            arena.copy_in(FrameId(frame.into()), 0, &[frame + 1; PAGE_SIZE]);
        }
        arena.clear(FrameId(1), 100);
        let mut bytes = [9; 4];
        for (frame, from, expected) in [
            (0, PAGE_SIZE - 4, [1; 4]),
            (1, 98, [2, 2, 0, 0]),
            (1, PAGE_SIZE - 4, [0; 4]),
            (2, 0, [3; 4]),
        ] {
            arena.copy_out(FrameId(frame), from, &mut bytes);
            assert_eq!(bytes, expected);
        }
        arena.copy_out(FrameId(0), PAGE_SIZE, &mut []);
    }

    #[test]
    #[should_panic(expected = "frame 3 of 3")]
    fn there_is_no_frame_behind_the_last() {
        Arena::new(3).expect("memory").address(FrameId(3));
    }
}
