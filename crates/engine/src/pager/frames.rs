//! The frame arena: the memory behind the core's frames.
//!
//! Private anonymous pages of the engine, registered on a userfaultfd, because pages can be moved only to registered
//! memory. Not inherited by fork.

use core::ptr::NonNull;

use foreswap_core::units::{Frame, LEAF_PAGES, PAGE_SIZE};
use foreswap_core::world::Digest;
use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use crate::digest::digest_of;
use crate::sys::own_memory::{self, Kind};

/// The arena; frame `n` is its page `n`. It begins at a boundary of 2 MiB.
pub struct Arena {
    start: NonNull<u8>,
    frames: u32,
}

/// Bytes of a huge page.
pub const HUGE: usize = LEAF_PAGES * PAGE_SIZE;

impl Arena {
    /// An arena of `frames` frames without memory.
    pub fn new(frames: u32) -> Result<Self, Errno> {
        let bytes = frames as usize * PAGE_SIZE;
        let start = own_memory::map(bytes, Kind::Frames)?;
        debug_assert!((start.as_ptr() as usize).is_multiple_of(HUGE));
        let arena = Arena { start, frames };
        arena.set_properties(arena.address(), bytes)?;
        Ok(arena)
    }

    fn set_properties(&self, start: usize, bytes: usize) -> Result<(), Errno> {
        let at = core::ptr::without_provenance_mut(start);
        // SAFETY: both only set properties of a private mapping.
        unsafe {
            madvise(at, bytes, Advice::LinuxDontFork)?;
            // Huge pages come here by moves only. Not every kernel has any to disable.
            let _ = madvise(at, bytes, Advice::LinuxNoHugepage);
        }
        Ok(())
    }

    /// Map the 512 frames from `first` on anew, without page tables. They are empty, and not registered.
    pub fn renew(&mut self, first: Frame) -> Result<(), Errno> {
        let start = self.pointer(first) as usize;
        // SAFETY: the frames are empty, and of this arena.
        unsafe { own_memory::renew(start, HUGE) }?;
        self.set_properties(start, HUGE)
    }

    /// Bytes of address space.
    pub fn bytes(&self) -> usize {
        self.frames as usize * PAGE_SIZE
    }

    /// First byte of the arena.
    pub fn address(&self) -> usize {
        self.start.as_ptr() as usize
    }

    /// First byte of a frame.
    pub fn pointer(&self, frame: Frame) -> *mut u8 {
        assert!(
            frame.0 < self.frames,
            "frame {} of {}",
            frame.0,
            self.frames
        );
        // SAFETY: the frame lies in the arena, as was just checked.
        unsafe { self.start.as_ptr().add(frame.0 as usize * PAGE_SIZE) }
    }

    /// Overwrite a frame that has memory with zeros.
    pub fn clear(&mut self, frame: Frame) {
        // SAFETY: the frame has memory and only the pager thread touches frames.
        unsafe { self.pointer(frame).write_bytes(0, PAGE_SIZE) }
    }

    /// Overwrite each aligned 8 bytes of a frame that has memory with `word`.
    pub fn fill_with(&mut self, frame: Frame, word: u64) {
        let words = self.pointer(frame).cast::<[u64; PAGE_SIZE / 8]>();
        // SAFETY: as for `clear`; a page is aligned for words.
        unsafe { words.write([word; PAGE_SIZE / 8]) }
    }

    /// The content of a frame that has memory.
    pub fn page(&self, frame: Frame) -> &[u8; PAGE_SIZE] {
        // SAFETY: as for `clear`; a frame that is being written to an area is only read.
        unsafe { &*self.pointer(frame).cast::<[u8; PAGE_SIZE]>() }
    }

    /// Its digest.
    pub fn digest(&self, frame: Frame) -> Digest {
        digest_of(self.page(frame))
    }

    /// How many frames there are.
    pub fn frames(&self) -> u32 {
        self.frames
    }

    /// Free all memory.
    pub fn discard(&mut self) {
        // SAFETY: the frames' content is of no interest any more.
        let dropped = unsafe { own_memory::discard(self.address(), self.bytes()) };
        debug_assert!(dropped.is_ok());
    }
}
