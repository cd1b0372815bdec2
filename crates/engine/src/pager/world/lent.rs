//! Memory that the program may have lent to the kernel.
//!
//! An evicted page moves to a frame together with its memory, and that memory is reused. UFFDIO_MOVE refuses pinned
//! pages. But a page to which the kernel holds a plain reference (MSG_ZEROCOPY, vmsplice, the zero-copy sends of
//! io_uring, direct I/O of some file systems) moves like any other: the holder would read the next content of the
//! frame. No interface reports such references.
//!
//! Two facts hold: only a few kinds of system calls create them, and the kernel keeps a freed page while a reference
//! exists. So from the program's first such call on, the engine never writes to memory that was the program's. Before
//! a frame gets other content, its memory is freed and replaced by fresh memory. A program that lends nothing pays
//! one load per run of evicted pages.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use foreswap_core::units::{Frame, LEAF_PAGES, PAGE_SIZE};
use foreswap_core::world::{HugeMmu, Mmu};
use rustix::mm::{Advice, madvise};

use super::Linux;
use super::mmu::bytes;
use crate::pager::frames::Arena;

/// Frames whose memory was the program's after it began to lend.
pub struct Lent {
    lends: &'static AtomicBool,
    words: Vec<u64>,
    count: u32,
    /// Frames that have no memory, because none was available, although the core takes them to have some.
    bare: Vec<Frame>,
}

impl Lent {
    /// Starts with none of `frames` frames; `lends` is set before the program lends anything.
    pub fn new(lends: &'static AtomicBool, frames: u32) -> Self {
        Lent {
            lends,
            words: vec![0; (frames as usize).div_ceil(64)],
            count: 0,
            bare: Vec::new(),
        }
    }

    fn has(&self, frame: Frame) -> bool {
        self.words[frame.0 as usize / 64] >> (frame.0 % 64) & 1 != 0
    }

    fn set(&mut self, frame: Frame, n: u32, lent: bool) {
        for frame in frame.0..frame.0 + n {
            let (word, bit) = (&mut self.words[frame as usize / 64], 1 << (frame % 64));
            match (*word & bit != 0, lent) {
                (false, true) => self.count += 1,
                (true, false) => self.count -= 1,
                _ => {}
            }
            *word = if lent { *word | bit } else { *word & !bit };
        }
    }

    /// Whether the memory of `frame` must not be written.
    fn covers(&self, frame: Frame) -> bool {
        self.has(frame) || self.bare.contains(&frame)
    }

    fn is_empty(&self) -> bool {
        self.count == 0 && self.bare.is_empty()
    }

    /// Pages of the program moved to these frames.
    pub fn came(&mut self, frame: Frame, n: u32) {
        // The call that lends a page comes after the flag, and the move that brings the page here after the call.
        if self.lends.load(SeqCst) {
            self.set(frame, n, true);
        }
    }

    /// The memory of these frames moved to the program or was freed.
    pub fn went(&mut self, frame: Frame, n: u32) {
        if self.count > 0 {
            self.set(frame, n, false);
        }
        if !self.bare.is_empty() {
            self.bare
                .retain(|bare| !(frame.0..frame.0 + n).contains(&bare.0));
        }
    }

    /// How many of the `n` frames, from the first on, have memory.
    pub fn backed(&self, frame: Frame, n: u32) -> u32 {
        if self.bare.is_empty() {
            return n;
        }
        let is_backed = |i: &u32| !self.bare.contains(&frame.plus(*i));
        (0..n).take_while(is_backed).count() as u32
    }
}

impl Linux {
    /// The `n` frames have memory and are about to be written: ensure that it is not shared. False: there is no
    /// memory for some of them now.
    pub(super) fn own(&mut self, frame: Frame, n: u32) -> bool {
        if self.lent.is_empty() {
            return true;
        }
        let (mut at, end) = (frame.0, frame.0 + n);
        while at < end {
            let lent = (at..end).take_while(|&frame| self.lent.covers(Frame(frame)));
            let count = lent.count() as u32;
            if count > 0 && !self.exchange(Frame(at), count) {
                return false;
            }
            at += count.max(1);
        }
        true
    }

    /// Give each of `n` frames that have memory other content by `write`, which is told whether the memory is fresh: zeros.
    /// A frame that cannot be written now counts as one without memory. Frames that are replaced together stay a huge page.
    pub(super) fn overwrite(
        &mut self,
        frame: Frame,
        n: u32,
        write: impl Fn(&mut Arena, Frame, bool),
    ) {
        let frames = (0..n).map(|i| frame.plus(i));
        if self.lent.is_empty() {
            return frames.for_each(|frame| write(&mut self.arena, frame, false));
        }
        let lent: Vec<bool> = frames
            .clone()
            .map(|frame| self.lent.covers(frame))
            .collect();
        self.own(frame, n);
        for (frame, fresh) in frames.zip(lent) {
            if !self.lent.covers(frame) {
                write(&mut self.arena, frame, fresh);
            } else if !self.lent.bare.contains(&frame) {
                self.lent.bare.push(frame);
            }
        }
    }

    /// Replace the memory of `n` frames.
    fn exchange(&mut self, frame: Frame, n: u32) -> bool {
        let huge = n as usize == LEAF_PAGES && self.is_huge(frame);
        let released = self.try_release(frame, n);
        if released < n {
            // The rest is still what was lent: it must not be written, and is exchanged by the next attempt.
            let filled = self.fill(frame, released).pages;
            let bare = (filled..released).map(|i| frame.plus(i));
            self.lent.bare.extend(bare);
            return false;
        }
        if huge && self.fill_huge(frame) {
            return true;
        }
        let filled = self.fill(frame, n).pages;
        if filled == n {
            return true;
        }
        // While an event of the address space is pending, nothing can be copied here; unregistered memory is filled
        // by the kernel.
        let (first, left) = (frame.plus(filled), n - filled);
        let (at, len) = (self.arena.pointer(first), left as usize * PAGE_SIZE);
        let start = at as usize;
        let populated = self.program.unregister(start, len).is_ok()
            // SAFETY: the frames are ours, and nothing is in them.
            && unsafe { madvise(at.cast(), bytes(left), Advice::LinuxPopulateWrite) }.is_ok();
        let registered = self.program.register_missing(start, len).is_ok();
        if populated && registered {
            return true;
        }
        self.lent.bare.extend((0..left).map(|i| first.plus(i)));
        false
    }
}
