//! The mapping at one address, by a call that reads no other (PROCMAP_QUERY, Linux 6.11).

use core::ops::Range;
use std::os::fd::OwnedFd;

use rustix::ioctl::{Opcode, Updater, ioctl, opcode};

use super::handed;

/// The kernel's `struct procmap_query`.
#[repr(C)]
#[derive(Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    vma_flags: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    rest: [u64; 4],
}

const PROCMAP_QUERY: Opcode = opcode::read_write::<Query>(b'f', 17);
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;

/// A mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Its bytes.
    pub range: Range<usize>,
    /// It may be written.
    pub writable: bool,
    /// It may be executed.
    pub executable: bool,
    /// Private and without a file.
    pub anonymous: bool,
    /// The inode of its file, and the byte of the file at which it begins.
    pub file: (u64, u64),
}

/// Asks for mappings of the calling process.
#[derive(Debug, Default)]
pub struct MappingAt {
    maps: Option<OwnedFd>,
}

impl MappingAt {
    /// The mapping that contains `address`. `None` if there is none, or if the kernel is older.
    pub fn find(&mut self, address: usize) -> Option<Mapping> {
        if self.maps.is_none() {
            self.maps = handed::open_in_proc(c"/proc/thread-self/maps").ok();
        }
        let mut query = Query {
            size: size_of::<Query>() as u64,
            address: address as u64,
            ..Query::default()
        };
        // SAFETY: the request is paired with its structure, which outlives the call.
        unsafe {
            ioctl(
                self.maps.as_ref()?,
                Updater::<PROCMAP_QUERY, _>::new(&mut query),
            )
        }
        .ok()?;
        let has = |flag| query.vma_flags & flag != 0;
        Some(Mapping {
            range: query.start as usize..query.end as usize,
            writable: has(WRITABLE),
            executable: has(EXECUTABLE),
            anonymous: !has(SHARED) && query.inode == 0,
            file: (query.inode, query.offset),
        })
    }
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};

    use super::*;

    const BYTES: usize = 64 << 10;

    #[test]
    fn mappings_are_told_by_kind() {
        let mut at = MappingAt::default();
        let rw = ProtFlags::READ | ProtFlags::WRITE;
        let file = tempfile::tempfile().expect("a file");
        file.set_len(BYTES as u64).expect("its length");
        // SAFETY: new mappings, removed below.
        let made = unsafe {
            [
                mmap_anonymous(core::ptr::null_mut(), BYTES, rw, MapFlags::PRIVATE),
                mmap_anonymous(core::ptr::null_mut(), BYTES, rw, MapFlags::SHARED),
                mmap(
                    core::ptr::null_mut(),
                    BYTES,
                    rw,
                    MapFlags::PRIVATE,
                    &file,
                    0,
                ),
            ]
        };
        for (made, anonymous) in made.into_iter().zip([true, false, false]) {
            let start = made.expect("a mapping");
            let found = at.find(start as usize + 100).expect("it is there");
            assert!(found.range.contains(&(start as usize + BYTES - 1)));
            assert!(found.writable && !found.executable);
            assert_eq!(found.anonymous, anonymous);
            // SAFETY: made above.
            unsafe { munmap(start, BYTES) }.expect("its end");
        }
        assert_eq!(at.find(4096), None);
    }
}
