//! `mremap` of memory that the kernel sees as several mappings, and refused.
//!
//! The kernel joins neighbours only if their pages belong together. Memory that the program touched before foreswap
//! noticed it, beside managed memory, stays a mapping of its own for ever, and `mremap` over both fails with EFAULT. Here
//! its mappings are moved one by one; the engine, which reads the maps, says where they end.
//!
//! Since Linux 6.17 the kernel itself moves several mappings to a fixed place without a change of size, and leaves holes
//! between them alone. It stops with EFAULT at the first one that has a userfaultfd, if there are others. These are moved
//! here as well, so that the program sees no difference.

use core::ffi::{c_int, c_void};

use crate::PROGRAM;
use crate::mappings::{real_mremap, turn_to_move};

const PAGE: usize = 4096;

/// The arguments of a call. Lengths are whole pages.
pub struct Call {
    old: usize,
    length: usize,
    new: usize,
    flags: c_int,
    at: usize,
}

impl Call {
    pub fn of(old: *mut c_void, length: usize, new: usize, flags: c_int, at: *mut c_void) -> Self {
        Call {
            old: old as usize,
            length: length.checked_next_multiple_of(PAGE).unwrap_or(0),
            new: new.checked_next_multiple_of(PAGE).unwrap_or(0),
            flags,
            at: at as usize,
        }
    }

    fn has(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Before the call: whether it is one for which the kernel may move several mappings.
    pub fn may_be_several(&self) -> bool {
        let only_moves = self.length == self.new && !self.has(libc::MREMAP_DONTUNMAP);
        only_moves && self.has(libc::MREMAP_FIXED) && is_mapped(self.old)
    }

    /// Whether the call moves several mappings of one protection and leaves them mapped: it must not be tried first. The
    /// kernel may move some before it refuses the others, and nothing shows which.
    pub fn leaves_several(&self) -> bool {
        self.has(libc::MREMAP_DONTUNMAP)
            && self.has(libc::MREMAP_FIXED)
            && self.length > 0
            && self.length == self.new
            && mapping_at(self.old, self.length) < self.length
            && PROGRAM.joins(self.old, self.length).whole
    }

    /// The kernel has refused the call with EFAULT, or would. `several` is the answer of [`Call::may_be_several`] before it. Returns
    /// the result, or the error number.
    pub fn go_on(&self, several: bool) -> Result<usize, c_int> {
        if several && (!is_mapped(self.old) || kernel_moves_several()) {
            return self.move_several();
        }
        let resizes = self.length != self.new;
        let movable =
            self.length > 0 && self.new > 0 && !(resizes && self.has(libc::MREMAP_DONTUNMAP));
        // To the kernel it is several mappings, to the program it may be one.
        if !movable || !PROGRAM.joins(self.old, self.length).whole {
            return Err(libc::EFAULT);
        }
        if self.has(libc::MREMAP_FIXED) {
            return self.move_to(self.at).map(|()| self.at);
        }
        if !self.has(libc::MREMAP_DONTUNMAP) && self.resize_in_place() {
            return Ok(self.old);
        }
        if !self.has(libc::MREMAP_MAYMOVE) {
            return Err(libc::ENOMEM);
        }
        let to = reserve(self.new).ok_or(libc::ENOMEM)?;
        self.move_to(to)
            .map(|()| to)
            .inspect_err(|_| unmap(to, self.new))
    }

    fn resize_in_place(&self) -> bool {
        if self.new <= self.length {
            self.unmap_rest();
            return true;
        }
        // The last mapping alone may have room.
        let last = self.old + self.length - PAGE;
        call(last, PAGE, PAGE + self.new - self.length, 0, 0)
    }

    /// Move everything to `to`. If a part is refused, all are moved back.
    fn move_to(&self, to: usize) -> Result<(), c_int> {
        let length = self.length.min(self.new);
        let (mut done, mut result) = (0, Ok(()));
        while done < length && result.is_ok() {
            let part = mapping_at(self.old + done, length - done);
            let last = done + part == length;
            let extended = if last { self.new - done } else { part };
            let stays = self.flags & libc::MREMAP_DONTUNMAP;
            match part > 0 && fixed(self.old + done, part, extended, to + done, stays) {
                true => done += part,
                false => result = Err(libc::EFAULT),
            }
        }
        if result.is_ok() {
            self.unmap_rest();
            return result;
        }
        while done > 0 {
            let part = mapping_at(to, done);
            if part == 0 || !fixed(to + done - part, part, part, self.old + done - part, 0) {
                break;
            }
            done -= part;
        }
        result
    }

    /// Move the mappings that the kernel has not moved. If one is refused, the others stay moved, as if the kernel had moved
    /// them.
    fn move_several(&self) -> Result<usize, c_int> {
        let end = self.old + self.length;
        let mut from = self.old;
        while from < end {
            let next = PROGRAM.joins(from, end - from).next;
            if next.is_empty() || next.start >= end {
                break;
            }
            let start = next.start.max(from);
            let part = next.end.min(end) - start;
            if !fixed(start, part, part, self.at + (start - self.old), 0) {
                return Err(libc::EFAULT);
            }
            from = start + part;
        }
        Ok(self.at)
    }

    fn unmap_rest(&self) {
        if self.new < self.length {
            unmap(self.old + self.new, self.length - self.new);
        }
    }
}

/// Bytes of the mapping at `address`, at most `bytes`; 0 if there is none.
fn mapping_at(address: usize, bytes: usize) -> usize {
    let next = PROGRAM.joins(address, bytes).next;
    match next.contains(&address) {
        true => bytes.min(next.end - address),
        false => 0,
    }
}

/// Whether the kernel moves two mappings with one call: tried with two pages.
fn kernel_moves_several() -> bool {
    let Some(pages) = reserve(4 * PAGE) else {
        return false;
    };
    // SAFETY: these pages were reserved here.
    let differ = unsafe { libc::mprotect(pointer(pages + PAGE), PAGE, libc::PROT_READ) } == 0;
    let moves = differ && fixed(pages, 2 * PAGE, 2 * PAGE, pages + 2 * PAGE, 0);
    unmap(pages, 4 * PAGE);
    moves
}

fn is_mapped(at: usize) -> bool {
    // SAFETY: only asks.
    unsafe { libc::msync(pointer(at), PAGE, libc::MS_ASYNC) == 0 }
}

fn fixed(old: usize, length: usize, new_length: usize, at: usize, stays: c_int) -> bool {
    let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | stays;
    call(old, length, new_length, flags, at)
}

fn call(old: usize, length: usize, new_length: usize, flags: c_int, at: usize) -> bool {
    let _turn = turn_to_move();
    real_mremap(pointer(old), length, new_length, flags, pointer(at)) != libc::MAP_FAILED
}

fn reserve(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping at a free place.
    let at = unsafe { libc::mmap(core::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
    (at != libc::MAP_FAILED).then_some(at as usize)
}

fn unmap(at: usize, bytes: usize) {
    // SAFETY: the program has given up this memory, or it was reserved here.
    let _ = unsafe { libc::munmap(pointer(at), bytes) };
}

fn pointer(at: usize) -> *mut c_void {
    core::ptr::without_provenance_mut(at)
}
