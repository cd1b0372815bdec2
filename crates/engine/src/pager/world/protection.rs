//! Moving pages of memory that is executable or has a protection key.
//!
//! UFFDIO_MOVE requires the same access rights and protection key on both sides. Frames are readable and writable,
//! without a key. For the moment of a move, the frames therefore get the protection of the program's memory. This
//! costs two more calls per move and has no visible effect: frames belong to the engine, the kernel merges their
//! mapping again, and no thread executes code in them.

use std::ffi::c_void;
use std::ops::Range;

use foreswap_core::units::{Nanos, PAGE_SIZE, Vpn};
use foreswap_core::world::{Done, Stop};
use rustix::io::Errno;

use super::mmu::{bytes, retry_partial};
use super::{Linux, now};
use crate::sys::mapping_at::MappingAt;
use crate::sys::process;

/// How long the program's set of protection keys is cached.
const KEYS_HOLD: Nanos = 1_000_000_000;
/// The number of keys of the processor.
const KEYS: i32 = 16;

/// The access rights of a mapping, beyond reading and writing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Protection {
    exec: bool,
    key: i32,
}

const PLAIN: Protection = Protection {
    exec: false,
    key: 0,
};

/// The program's unusual mappings, as far as known.
#[derive(Default)]
pub(super) struct Unusual {
    mapping_at: MappingAt,
    /// The last unusual mapping used.
    last: Option<(Range<usize>, Protection)>,
    /// The program's protection keys at present.
    keys: Vec<i32>,
    keys_at: Nanos,
}

impl Unusual {
    /// The keys that the program has allocated, probed on a page of the engine.
    fn keys(&mut self, page: usize) -> &[i32] {
        let now = now();
        if now - self.keys_at > KEYS_HOLD {
            self.keys_at = now;
            let is_allocated = |&key: &i32| {
                let keyed = Protection { exec: false, key };
                protect(page, PAGE_SIZE, keyed).is_ok()
            };
            self.keys = (1..KEYS).filter(is_allocated).collect();
            if !self.keys.is_empty() {
                let plain = process::protect_with_key(page as *mut c_void, PAGE_SIZE, false, 0);
                debug_assert_eq!(plain, Ok(()));
            }
        }
        &self.keys
    }
}

/// Change the protection of frames.
fn protect(start: usize, len: usize, protection: Protection) -> Result<(), Errno> {
    let Protection { exec, key } = protection;
    process::protect_with_key(start as *mut c_void, len, exec, key)
}

impl Linux {
    /// Move `n` pages from `from` to `to`: one is the program's `page`, the other the engine's frames at `frames`.
    /// The pages may belong to neighbours with different protections.
    pub(super) fn move_between(
        &mut self,
        from: usize,
        to: usize,
        page: Vpn,
        frames: usize,
        n: u32,
    ) -> Done {
        let mut moved = 0;
        loop {
            let skip = bytes(moved);
            let at = page.plus(moved.into()).address() as usize;
            let left = n - moved;
            let done = self.move_alike(from + skip, to + skip, at, frames + skip, left);
            moved += done.pages;
            // Some pages have moved and the next is refused: it may only need another protection.
            if done.stop != Some(Stop::Fixed) || done.pages == 0 || moved == n {
                return Done {
                    pages: moved,
                    stop: done.stop,
                };
            }
        }
    }

    /// Move as many of `n` pages as have the protection of the first, which is at `at`.
    fn move_alike(&mut self, from: usize, to: usize, at: usize, frames: usize, n: u32) -> Done {
        let is_refused = |done: &Done| done.stop == Some(Stop::Fixed) && done.pages == 0;
        if let Some((range, protection)) = self.unusual.last.clone()
            && range.contains(&at)
        {
            let done = self.move_protected(from, to, frames, n, protection);
            if !is_refused(&done) {
                return done;
            }
            // The mapping has changed.
            self.unusual.last = None;
        }
        let done = self.move_plain(from, to, n);
        if !is_refused(&done) {
            return done;
        }
        let Some(mapping) = self.unusual.mapping_at.find(at).filter(|at| at.writable) else {
            return done;
        };
        let (range, exec) = (mapping.range, mapping.executable);
        let mut tried = Vec::new();
        if exec {
            tried.push(Protection { exec, key: 0 });
        }
        let keys = self.unusual.keys(frames);
        tried.extend(keys.iter().map(|&key| Protection { exec, key }));
        for protection in tried {
            let moved = self.move_protected(from, to, frames, n, protection);
            if !is_refused(&moved) {
                self.unusual.last = Some((range, protection));
                return moved;
            }
        }
        done
    }

    fn move_protected(
        &self,
        from: usize,
        to: usize,
        frames: usize,
        n: u32,
        protection: Protection,
    ) -> Done {
        if protect(frames, bytes(n), protection).is_err() {
            return Done::stopped(0, Stop::Fixed);
        }
        let done = self.move_plain(from, to, n);
        // The kernel merges the split mapping again, which needs no further mapping.
        let restored = protect(frames, bytes(n), PLAIN);
        debug_assert_eq!(restored, Ok(()));
        done
    }

    fn move_plain(&self, from: usize, to: usize, n: u32) -> Done {
        retry_partial(n, |done, n| {
            let skip = bytes(done);
            // SAFETY: by the callers: one side is the program's, which finds the pages through faults, the other is
            // frames of the engine; the destination is empty or the call refuses.
            unsafe {
                self.program
                    .move_pages(to + skip, from + skip, bytes(n), false)
            }
        })
    }
}
