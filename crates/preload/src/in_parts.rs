//! `mremap` of memory that is one mapping to the program and several to the kernel.
//!
//! The kernel joins neighbours only if their pages belong together. Memory that the program touched before foreswap
//! noticed it, beside managed memory, stays a mapping of its own for ever, and `mremap` over both fails. Here its parts
//! are moved one by one. The borders are found by trying: a part that is too long is refused without an effect.

use core::ffi::{c_int, c_void};

use crate::mappings::real_mremap;

const PAGE: usize = 4096;

/// A call of `mremap` that the kernel has refused with EFAULT: what is left of it. Lengths are whole pages.
pub struct Call {
    pub old: usize,
    pub length: usize,
    new: usize,
    flags: c_int,
    at: usize,
    /// Bytes that have been moved already.
    moved: usize,
}

impl Call {
    pub fn of(old: *mut c_void, length: usize, new: usize, flags: c_int, at: *mut c_void) -> Self {
        Call {
            old: old as usize,
            length: length.checked_next_multiple_of(PAGE).unwrap_or(0),
            new: new.checked_next_multiple_of(PAGE).unwrap_or(0),
            flags,
            at: at as usize,
            moved: 0,
        }
    }

    fn is_fixed(&self) -> bool {
        self.flags & libc::MREMAP_FIXED != 0
    }

    /// A move to a fixed place without a change of size may have moved the first part before it failed (since Linux 6.17).
    pub fn skip_what_moved(&mut self) {
        let resizes = self.length != self.new;
        if self.length == 0 || resizes || !self.is_fixed() || is_mapped(self.old) {
            return;
        }
        let (mut gone, mut there) = (1, self.length / PAGE);
        while gone < there {
            let middle = gone.midpoint(there);
            match is_mapped(self.old + middle * PAGE) {
                true => there = middle,
                false => gone = middle + 1,
            }
        }
        self.moved = gone * PAGE;
        self.old += self.moved;
        self.length -= self.moved;
    }

    /// Once more, if all of it is managed (`joined`); moves are in turn. If it fails again, nothing has moved.
    pub fn end(&self, joined: bool) -> *mut c_void {
        let whole = self.new - self.moved;
        let to = self.at + self.moved;
        if joined {
            let mapped = call(self.old, self.length, whole, self.flags, to);
            if mapped != libc::MAP_FAILED as usize {
                return pointer(mapped - self.moved);
            }
            if let Some(mapped) = self.in_parts(to, whole) {
                return pointer(mapped - self.moved);
            }
        }
        if self.moved > 0 {
            let back = move_all(self.at, self.moved, self.old - self.moved, self.moved);
            debug_assert!(back.is_ok(), "the old place is free");
        }
        // SAFETY: the calling thread's own.
        unsafe { *libc::__errno_location() = libc::EFAULT };
        libc::MAP_FAILED
    }

    fn in_parts(&self, to: usize, whole: usize) -> Option<usize> {
        let (old, length) = (self.old, self.length);
        if self.flags & libc::MREMAP_DONTUNMAP != 0 || length == 0 || whole == 0 {
            return None;
        }
        if !self.is_fixed() && whole >= length {
            // The last part alone may have room.
            let last = old + length - PAGE;
            if call(last, PAGE, PAGE + whole - length, 0, 0) == last {
                return Some(old);
            }
        }
        if self.flags & libc::MREMAP_MAYMOVE == 0 {
            return None;
        }
        let to = match self.is_fixed() {
            true => to,
            false => reserve(whole)?,
        };
        if let Err(moved) = move_all(old, length.min(whole), to, whole) {
            let back = move_all(to, moved, old, moved);
            debug_assert!(back.is_ok(), "the old place is free");
            if !self.is_fixed() {
                unmap(to, whole);
            }
            return None;
        }
        if whole < length {
            unmap(old + whole, length - whole);
        }
        Some(to)
    }
}

fn is_mapped(at: usize) -> bool {
    // SAFETY: only asks.
    unsafe { libc::msync(pointer(at), PAGE, libc::MS_ASYNC) == 0 }
}

/// Move `length` bytes from `from` to `to`, and extend the last part so that all are `whole` bytes. `Err`: the bytes
/// moved until a part was refused.
fn move_all(from: usize, length: usize, to: usize, whole: usize) -> Result<(), usize> {
    let mut done = 0;
    let mut part = length;
    while done < length {
        let part_of_rest = part.min(length - done);
        let last = done + part_of_rest == length;
        let extended = if last { whole - done } else { part_of_rest };
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        if call(from + done, part_of_rest, extended, flags, to + done) == to + done {
            done += part_of_rest;
            part = length;
        } else if part_of_rest > PAGE {
            part = (part_of_rest / 2).next_multiple_of(PAGE);
        } else {
            return Err(done);
        }
    }
    Ok(())
}

fn call(old: usize, length: usize, new_length: usize, flags: c_int, at: usize) -> usize {
    real_mremap(pointer(old), length, new_length, flags, pointer(at)) as usize
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
