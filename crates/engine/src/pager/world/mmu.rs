//! Moves of pages between the program and the frames, by userfaultfd.
//!
//! The kernel reports a partly completed ioctl as EAGAIN with the bytes done; trying the rest yields the actual reason.

use foreswap_core::units::{Frame, LEAF_PAGES, PAGE_SIZE, Vpn};
use foreswap_core::world::{Digest, Done, HugeMmu, Mmu, Stop};

use super::{Linux, pause};
use crate::digest::prefetch;
use crate::pager::frames::HUGE;
use crate::pager::huge;
use crate::sys::own_memory;
use crate::sys::uffd::{Outcome, Why};

/// How often a short wait inside the kernel (for a page under migration, for example) is repeated.
const TRIES: u32 = 4;
/// How often a move of the engine's own memory is repeated. The obstacle passes soon.
const OWN_TRIES: u32 = 1000;
/// How often that is repeated where the core counts on it.
const RELEASE_TRIES: u32 = 50;

/// Process `pages` pages by calls of `step(first, count)`, until all are done or the reason for the stop is known.
/// The kernel accepts a range within one VMA only; a range over unmerged neighbours is cut.
pub(super) fn retry_partial(pages: u32, mut step: impl FnMut(u32, u32) -> Outcome) -> Done {
    let (mut done, mut tries, mut most) = (0, 0, pages);
    while done < pages {
        let Err(short) = step(done, most.min(pages - done)) else {
            done += most.min(pages - done);
            continue;
        };
        done += (short.done / PAGE_SIZE) as u32;
        let cut = most.min(pages - done) > 1;
        let stop = match short.why {
            _ if done >= pages => break,
            Why::Again if short.done > 0 => continue,
            Why::Again if tries < TRIES => {
                tries += 1;
                continue;
            }
            Why::Invalid | Why::NoEntry if short.done == 0 && cut => {
                most = most.min(pages - done) / 2;
                continue;
            }
            Why::Again => Stop::Again,
            Why::Exists => Stop::Exists,
            Why::Busy => Stop::Busy,
            Why::NoEntry => Stop::Absent,
            Why::Invalid | Why::Other(_) => Stop::Fixed,
            Why::Gone => Stop::Gone,
            Why::NoMemory => Stop::NoMemory,
        };
        return Done::stopped(done, stop);
    }
    Done::all(pages)
}

pub(super) const fn bytes(pages: u32) -> usize {
    pages as usize * PAGE_SIZE
}

/// At the destination, "no entry" means that none of the engine's memory is mapped there.
fn gone(done: Done) -> Done {
    match done.stop {
        Some(Stop::Absent) => Done {
            stop: Some(Stop::Gone),
            ..done
        },
        _ => done,
    }
}

impl Mmu for Linux {
    fn move_out(&mut self, page: Vpn, frame: Frame, n: u32) -> Done {
        if !self.keep_from_children() {
            return Done::stopped(0, Stop::Again);
        }
        let (from, to) = (page.address() as usize, self.arena.pointer(frame) as usize);
        let mut done = self.move_between(from, to, page, to, n);
        if done.stop == Some(Stop::Absent) && self.program.mmap_changing() {
            // The whole mapping may have moved away, together with the page.
            done.stop = Some(Stop::Again);
        }
        if done.pages > 0 {
            self.lent.came(frame, done.pages);
            self.record(|to| to.evicted(page, done.pages));
        }
        done
    }

    fn move_in(&mut self, frame: Frame, page: Vpn, n: u32) -> Done {
        let backed = self.lent.backed(frame, n);
        if backed < n {
            let done = match backed {
                0 => Done::all(0),
                _ => self.move_in(frame, page, backed),
            };
            let stop = done.stop.or(Some(Stop::Again));
            return Done { stop, ..done };
        }
        let (from, to) = (self.arena.pointer(frame) as usize, page.address() as usize);
        let done = gone(self.move_between(from, to, page, from, n));
        self.lent.went(frame, done.pages);
        self.mapped(page, done)
    }

    fn copy_in(&mut self, frame: Frame, page: Vpn) -> Done {
        let from = self.arena.pointer(frame).cast_const().cast();
        let done = gone(retry_partial(1, |_, _| {
            // SAFETY: the frame has memory; the program's page is absent or the call refuses.
            unsafe { self.program.copy(page.address() as usize, from, PAGE_SIZE) }
        }));
        self.mapped(page, done)
    }

    fn zero_in(&mut self, page: Vpn, n: u32) -> Done {
        let to = page.address() as usize;
        let n = n.min(self.zeros.pages);
        // Copied zeros instead of the kernel's zero page, which the first write would replace without an event.
        let done = gone(retry_partial(n, |done, n| {
            let left = bytes(n);
            // SAFETY: as many zeros are readable; the program's pages are absent or it refuses.
            unsafe { self.program.copy(to + bytes(done), self.zeros.start, left) }
        }));
        self.mapped(page, done)
    }

    fn poison(&mut self, page: Vpn) -> Done {
        gone(retry_partial(1, |_, _| {
            self.program.poison(page.address() as usize, PAGE_SIZE)
        }))
    }

    fn wake(&mut self, page: Vpn) {
        // Fails only if nothing is registered, and then no thread waits.
        let _ = self.program.wake(page.address() as usize, PAGE_SIZE);
    }

    fn unshare(&mut self, page: Vpn, n: u32) {
        if self.is_protected() {
            // It would wait for room, and it is called to make room.
            let at = page.address() as usize;
            let _ = self.program.writeprotect(at, bytes(n), false);
        }
        self.unsharer.ask(page, n);
    }

    fn is_unsharing(&self) -> bool {
        self.unsharer.is_busy()
    }

    fn fill(&mut self, frame: Frame, n: u32) -> Done {
        let to = self.arena.pointer(frame) as usize;
        let n = n.min(self.zeros.pages);
        retry_partial(n, |done, n| {
            let left = bytes(n);
            // SAFETY: as many zeros are readable; the frames are ours and empty.
            unsafe { self.program.copy(to + bytes(done), self.zeros.start, left) }
        })
    }

    fn release(&mut self, frame: Frame, n: u32) {
        let mut gone = 0;
        for _ in 0..RELEASE_TRIES {
            gone += self.try_release(frame.plus(gone), n - gone);
            if gone == n {
                return;
            }
        }
        debug_assert_eq!(gone, n);
    }

    fn renew(&mut self, frame: Frame, n: u32) {
        // What fails is tried again before the read.
        self.own(frame, n);
    }

    fn clear(&mut self, frame: Frame, n: u32) {
        self.overwrite(frame, n, |arena, frame, fresh| {
            if !fresh {
                arena.clear(frame);
            }
        });
    }

    fn fill_with(&mut self, frame: Frame, n: u32, word: u64) {
        self.overwrite(frame, n, |arena, frame, _| arena.fill_with(frame, word));
    }

    fn digest_of(&mut self, frame: Frame) -> Digest {
        let in_order = self.hashed.is_some_and(|last| last.plus(1) == frame);
        self.hashed = Some(frame);
        if in_order && frame.0 + 1 < self.arena.frames() {
            prefetch(self.arena.pointer(frame.plus(1)));
        }
        self.arena.digest(frame)
    }

    fn digest_read(&mut self, frame: Frame) -> Digest {
        let number = frame.0.checked_sub(self.read_from.0);
        match number.and_then(|n| self.read_hashes.get(n as usize)) {
            Some(&number) => Digest::Hash(number),
            None => self.digest_of(frame),
        }
    }
}

impl HugeMmu for Linux {
    fn fill_huge(&mut self, first: Frame) -> bool {
        let to = self.arena.pointer(first) as usize;
        self.huge.fill(&self.program, &self.quiet, to)
    }

    fn is_huge(&mut self, first: Frame) -> bool {
        self.huge.is_one(self.arena.pointer(first) as usize)
    }

    fn is_mapped_huge(&mut self, unit: Vpn) -> bool {
        self.huge.is_one(unit.address() as usize)
    }

    fn rebuild(&mut self, first: Frame) {
        let at = self.arena.pointer(first) as usize;
        // A failure leaves page tables of small pages behind: huge pages are split there, nothing is lost.
        if self.program.unregister(at, HUGE).is_ok() {
            let renewed = self.arena.renew(first);
            let registered = self.program.register_missing(at, HUGE);
            debug_assert_eq!((renewed, registered), (Ok(()), Ok(())));
        }
    }

    fn collapse(&mut self, unit: Vpn) -> bool {
        huge::collapse(unit.address() as usize)
    }
}

impl Linux {
    /// Give the memory of `n` frames back to the system. Returns how many have none now, from the first on: the kernel
    /// does not move a page that it holds or has locked for a moment.
    pub(super) fn try_release(&mut self, frame: Frame, n: u32) -> u32 {
        let from = self.arena.pointer(frame) as usize;
        if n as usize == LEAF_PAGES && self.huge.release(&self.quiet, from) {
            self.lent.went(frame, n);
            return n;
        }
        let mut all = 0;
        while all < n {
            let part = (n - all).min(self.trash.frames());
            let gone = self.release_part(frame.plus(all), part);
            all += gone;
            if gone < part {
                break;
            }
        }
        self.lent.went(frame, all);
        all
    }

    /// Free the memory of frames that cannot move. Unregistered, they raise no event, which only this thread could read.
    fn discard_in_place(&self, frame: Frame, n: u32) -> bool {
        let (start, len) = (self.arena.pointer(frame) as usize, bytes(n));
        let unregistered = self.program.unregister(start, len);
        // SAFETY: the content of the frames is not needed any more.
        let is_gone = unregistered.is_ok() && unsafe { own_memory::discard(start, len) }.is_ok();
        let registered = self.program.register_missing(start, len);
        debug_assert_eq!(registered, Ok(()));
        is_gone
    }

    fn release_part(&mut self, frame: Frame, n: u32) -> u32 {
        let (from, to) = (self.arena.pointer(frame) as usize, self.trash.address());
        let mut gone = 0;
        for _ in 0..OWN_TRIES {
            let at = bytes(gone);
            let moved = retry_partial(n - gone, |done, n| {
                let skip = at + bytes(done);
                // SAFETY: both are ours; the trash is empty.
                unsafe {
                    self.quiet
                        .move_pages(to + skip, from + skip, bytes(n), true)
                }
            });
            gone += moved.pages;
            match moved.stop {
                // The program is in the middle of a `mlockall`: one side is locked, the other is not.
                Some(Stop::Fixed) => own_memory::unlock_all(),
                // The kernel holds the page, or another page of the huge page that it is a part of, for how long nobody
                // knows.
                Some(Stop::Busy) if self.discard_in_place(frame.plus(gone), n - gone) => gone = n,
                // It has locked the page.
                Some(Stop::Busy | Stop::Again) => pause(),
                _ => break,
            }
        }
        self.trash.discard();
        gone
    }
}
