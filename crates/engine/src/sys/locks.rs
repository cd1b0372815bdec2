//! Locking the program's mappings, and only them, from a thread of the program.
//!
//! `mlockall` takes every mapping of the process, including the engine's: it would fill frames and doors, which must
//! be empty, and lock the reserved space of the tables. The preload object therefore locks mapping by mapping, and
//! this module walks the map for it, without allocation and through bare system calls, which preserve errno.

use core::ops::Range;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mm::{MlockFlags, mlock, mlock_with};
use rustix::process::{Resource, getrlimit};

use super::own_memory;

/// Bytes of the map per read, on the program's stack.
const CHUNK: usize = 2048;
/// Addresses from here on belong to the kernel.
const KERNEL: usize = 1 << 63;

/// Locks the program's mappings on fault: pages stay once they are present. The mapping at `except` is left out.
/// Fails like `mlockall`, with ENOMEM, beyond the program's limit.
pub fn lock_on_fault(except: usize) -> Result<(), Errno> {
    let mut bytes = 0;
    each_piece(|piece, _| {
        if !piece.contains(&except) {
            bytes += piece.len() as u64;
        }
    })?;
    if getrlimit(Resource::Memlock)
        .current
        .is_some_and(|limit| bytes > limit)
    {
        return Err(Errno::NOMEM);
    }
    each_piece(|piece, _| {
        if !piece.contains(&except) {
            // SAFETY: changes nothing but whether pages may leave. A range that is unmapped meanwhile is
            // refused, which is as well.
            let _ = unsafe { mlock_with(pointer(&piece), piece.len(), MlockFlags::ONFAULT) };
        }
    })
}

/// Locks the program's mappings and brings all pages in, through the pager if it manages them. The mapping at
/// `except` is left alone. As with `mlockall`, pages that cannot be brought in stay out.
pub fn lock_and_fill(except: usize) -> Result<(), Errno> {
    each_piece(|piece, open| {
        if open && !piece.contains(&except) {
            // SAFETY: as in `lock_on_fault`.
            let _ = unsafe { mlock(pointer(&piece), piece.len()) };
        }
    })
}

fn pointer(piece: &Range<usize>) -> *mut core::ffi::c_void {
    core::ptr::without_provenance_mut(piece.start)
}

/// Calls `act` with each part of the map that is not the engine's, and whether it permits any access. `act` may
/// change the map: each mapping is still visited at least once.
fn each_piece(mut act: impl FnMut(Range<usize>, bool)) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let map = open(c"/proc/thread-self/maps", flags, Mode::empty())?;
    let mut line = Line::default();
    let mut buffer = [0_u8; CHUNK];
    loop {
        let got = match rustix::io::read(&map, &mut buffer) {
            Ok(0) => return Ok(()),
            Ok(got) => got,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        for &byte in &buffer[..got] {
            let Some((range, open)) = line.take(byte) else {
                continue;
            };
            let mut rest = range;
            while rest.start < rest.end && rest.end < KERNEL {
                let (ours_start, ours_end) = first_of_ours(&rest);
                if rest.start < ours_start {
                    act(rest.start..ours_start, open);
                }
                rest.start = ours_end;
            }
        }
    }
}

/// The first part of `range` that is the engine's; empty at its end if there is none.
fn first_of_ours(range: &Range<usize>) -> (usize, usize) {
    own_memory::ranges()
        .map(|own| (own.start.max(range.start), own.start + own.len))
        .filter(|&(start, end)| start < range.end && end > start)
        .min()
        .unwrap_or((range.end, range.end))
}

/// A partially read line of the map: `start-end perms ...`.
#[derive(Default)]
struct Line {
    words: [usize; 2],
    /// The word being read; the rest of the line is skipped.
    word: usize,
    open: bool,
}

impl Line {
    /// Takes one more byte. At the end of the line returns the range, and whether it permits any access.
    fn take(&mut self, byte: u8) -> Option<(Range<usize>, bool)> {
        match (byte, self.word) {
            (b'\n', _) => {
                let Line { words, open, .. } = core::mem::take(self);
                return Some((words[0]..words[1], open));
            }
            (b'-', 0) | (b' ', _) => self.word += 1,
            (_, 0 | 1) => {
                let digit = char::from(byte).to_digit(16).unwrap_or(0);
                let value = &mut self.words[self.word];
                *value = *value << 4 | digit as usize;
            }
            (b'r' | b'w' | b'x', 2) => self.open = true,
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::own_memory::Kind;

    #[test]
    fn lines_are_read_byte_by_byte() {
        let text = b"7f0000000000-7f0000400000 rw-p 00000000 00:00 0 [anon: x-r w]\n\
            7f0000400000-7f0000500000 ---p 00000000 00:00 0 \n";
        let mut line = Line::default();
        let found: Vec<_> = text.iter().filter_map(|&byte| line.take(byte)).collect();
        let base = 0x7f00_0000_0000_usize;
        let expected = [
            (base..base + 0x40_0000, true),
            (base + 0x40_0000..base + 0x50_0000, false),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_engines_mappings_are_left_out_and_the_others_are_met() {
        let own = own_memory::map(1 << 20, Kind::Other).expect("map");
        let start = own.as_ptr() as usize;
        let other = Box::new(0_u8);
        let other = (&raw const *other) as usize;
        let (mut met_own, mut met_other) = (false, false);
        each_piece(|piece, open| {
            met_own |= piece.start < start + (1 << 20) && piece.end > start;
            met_other |= open && piece.contains(&other);
        })
        .expect("the map");
        assert!(!met_own && met_other);
        // SAFETY: mapped above, not in use.
        unsafe { own_memory::unmap(own, 1 << 20) }.expect("unmap");
    }
}
