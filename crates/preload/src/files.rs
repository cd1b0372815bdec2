//! Files whose mappings the engine serves (`foreswap run --map-files`).
//!
//! The program maps the file as ever; the errors are the kernel's. If the file's path matches a pattern, and the mapping
//! can only be read or is private, the engine is asked to serve its whole pages. The pages behind them (the end of the
//! file, and what is beyond) stay the kernel's, with the kernel's zeros and signals.

use core::cell::UnsafeCell;
use core::ffi::{CStr, c_int};
use core::sync::atomic::AtomicUsize;
use core::sync::atomic::Ordering::{Acquire, Release};

use foreswap::program::{FileMapping, SMALL};

use crate::PROGRAM;

/// Most bytes of all patterns. `foreswap run` refuses more.
const MOST: usize = 4096;
/// Paths that are longer match no pattern.
const PATH: usize = 4096;
const PAGE: usize = 4096;

/// The patterns, a line each. A program may overwrite its environment, so they are copied.
struct Patterns {
    text: UnsafeCell<[u8; MOST]>,
    length: AtomicUsize,
}

// SAFETY: the text is written once, before the length is not zero.
unsafe impl Sync for Patterns {}

static PATTERNS: Patterns = Patterns {
    text: UnsafeCell::new([0; MOST]),
    length: AtomicUsize::new(0),
};

impl Patterns {
    fn text(&self) -> &[u8] {
        let length = self.length.load(Acquire);
        // SAFETY: nobody writes once the length is not zero.
        let text = unsafe { &*self.text.get() };
        &text[..length]
    }
}

/// The patterns of the run, a line each. Called once, by the constructor.
pub fn begin(patterns: &CStr) {
    let patterns = patterns.to_bytes();
    if patterns.len() > MOST {
        return;
    }
    // SAFETY: there is one thread, and the length is zero.
    unsafe { (&mut *PATTERNS.text.get())[..patterns.len()].copy_from_slice(patterns) };
    PATTERNS.length.store(patterns.len(), Release);
}

/// The patterns, for a program that this one executes; empty if there are none.
pub fn patterns() -> &'static [u8] {
    PATTERNS.text()
}

/// Whether the engine may serve this mapping: of a file that matches, large enough, and not written to through the mapping.
#[inline]
pub fn are_served(length: usize, protection: c_int, flags: c_int, fd: c_int) -> bool {
    let patterns = PATTERNS.text();
    if patterns.is_empty() || fd < 0 || length < SMALL || flags & libc::MAP_ANONYMOUS != 0 {
        return false;
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let readable = protection & libc::PROT_READ != 0 && protection & !access == 0;
    let others = libc::MAP_HUGETLB | libc::MAP_LOCKED | libc::MAP_SYNC;
    readable
        && flags & others == 0
        && (is_private(flags) || protection & libc::PROT_WRITE == 0 && is_read_only(fd))
        && matches(patterns, fd)
}

fn is_private(flags: c_int) -> bool {
    // MAP_SHARED_VALIDATE has both bits.
    flags & (libc::MAP_PRIVATE | libc::MAP_SHARED) == libc::MAP_PRIVATE
}

/// Whether a mapping of this descriptor can never be written to.
fn is_read_only(fd: c_int) -> bool {
    // SAFETY: no memory is involved.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_ACCMODE == libc::O_RDONLY
}

#[inline(never)]
fn matches(patterns: &[u8], fd: c_int) -> bool {
    let mut link = *b"/proc/self/fd/\0\0\0\0\0\0\0\0\0\0\0\0";
    let digits = fd.checked_ilog10().unwrap_or(0);
    let number = &mut link[b"/proc/self/fd/".len()..];
    for (to, power) in number.iter_mut().zip((0..=digits).rev()) {
        *to = b'0' + (fd / 10_i32.pow(power) % 10) as u8;
    }
    let mut path = [0; PATH];
    // SAFETY: the link ends with a zero, and the path is as long as said.
    let read = unsafe { libc::readlink(link.as_ptr().cast(), path.as_mut_ptr().cast(), PATH) };
    match usize::try_from(read) {
        Ok(length) if length < PATH => is_match(patterns, &path[..length]),
        _ => false,
    }
}

/// A pattern without a slash is that of a name in any folder.
fn is_match(patterns: &[u8], path: &[u8]) -> bool {
    let name = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    let mut patterns = patterns.split(|&byte| byte == b'\n');
    patterns.any(|pattern| match pattern.contains(&b'/') {
        true => fast_glob::glob_match(pattern, path),
        false => fast_glob::glob_match(pattern, name),
    })
}

/// Has the engine serve the mapping at `address`, if it can.
pub fn serve(address: usize, length: usize, flags: c_int, fd: c_int, offset: libc::off_t) -> bool {
    let Ok(offset) = usize::try_from(offset) else {
        return false;
    };
    let file = FileMapping {
        fd,
        first: (offset / PAGE) as u64,
        shared: !is_private(flags),
    };
    PROGRAM.maps_file(address, length, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_of_a_name_or_of_a_path() {
        let patterns = b"*.safetensors\n/data/**/*.npy\n/models/*";
        let served: [&[u8]; 5] = [
            b"/home/me/a.safetensors",
            b"/data/a.npy",
            b"/data/a/b/c.npy",
            b"/models/a.bin",
            b"a.safetensors",
        ];
        for path in served {
            assert!(is_match(patterns, path), "{}", path.escape_ascii());
        }
        let others: [&[u8]; 4] = [
            b"/home/me/a.safetensors.bak",
            b"/home/data/a.npy",
            b"/models/a/b.bin",
            b"/data/a.npz",
        ];
        for path in others {
            assert!(!is_match(patterns, path), "{}", path.escape_ascii());
        }
    }
}
