//! Determines the size of an area and reserves its room.
//!
//! A requested size is really allocated: a disk that fills up later cannot fail a program's memory. A default size is
//! an upper bound in a sparse file: generous, but never more than most of the free room.

use std::fs::File;
use std::path::Path;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::{AreaError, MIN_AREA_BYTES, PAGE_BYTES, TMPFS_MAGIC};

/// Share of the free room that a default area may use, in percent.
const DEFAULT_SHARE: u64 = 80;
const DEFAULT_LEAST: u64 = 16 << 30;
const DEFAULT_PER_LIMIT: u64 = 8;
/// Fallback sizes for file systems that cannot hold larger files: FAT's limit and half of it.
const SMALL_SYSTEMS: [u64; 2] = [(4 << 30) - PAGE_BYTES, (2 << 30) - PAGE_BYTES];

/// min(80 % of the free bytes, max(16 GiB, 8 times the memory limit)), in whole pages.
fn default_size(free: u64, memory_limit: u64) -> u64 {
    let share = (u128::from(free) * u128::from(DEFAULT_SHARE) / 100) as u64;
    let wish = memory_limit
        .saturating_mul(DEFAULT_PER_LIMIT)
        .max(DEFAULT_LEAST);
    let bytes = share.min(wish);
    bytes - bytes % PAGE_BYTES
}

fn free_bytes(file: &File, path: &Path) -> Result<u64, AreaError> {
    let system =
        rustix::fs::fstatvfs(file).map_err(|errno| AreaError::on_io(path, errno.into()))?;
    Ok(system.f_bavail.saturating_mul(system.f_frsize))
}

/// `ulimit -f`. Exceeding it would not only fail but kill the process with SIGXFSZ.
pub(super) fn file_size_limit() -> Option<u64> {
    rustix::process::getrlimit(rustix::process::Resource::Fsize).current
}

/// Gives an empty file the default size, sparse.
pub(super) fn extend_by_default(
    file: &File,
    path: &Path,
    memory_limit: u64,
    notes: &mut Vec<String>,
) -> Result<u64, AreaError> {
    let free = free_bytes(file, path)?;
    let mut bytes = default_size(free, memory_limit);
    if bytes < MIN_AREA_BYTES {
        return Err(AreaError::NoRoom {
            path: path.to_owned(),
            needed: MIN_AREA_BYTES,
            free,
        });
    }
    if let Some(limit) = file_size_limit().filter(|limit| *limit < bytes) {
        bytes = limit - limit % PAGE_BYTES;
        notes.push(format!(
            "the swap area on {} is limited to {bytes} bytes by `ulimit -f`",
            path.display()
        ));
        if bytes < MIN_AREA_BYTES {
            return Err(AreaError::FileSizeLimit {
                path: path.to_owned(),
                bytes: MIN_AREA_BYTES,
                limit: Some(limit),
            });
        }
    }
    let smaller = SMALL_SYSTEMS.into_iter().filter(|size| *size < bytes);
    let mut refusal = Errno::FBIG;
    for size in std::iter::once(bytes).chain(smaller) {
        match rustix::fs::ftruncate(file, size) {
            Ok(()) => {
                if size < bytes {
                    notes.push(format!(
                        "the swap area on {} is limited to {size} bytes by its file system",
                        path.display()
                    ));
                }
                return Ok(size);
            }
            Err(Errno::FBIG) => {}
            Err(errno) => {
                refusal = errno;
                break;
            }
        }
    }
    Err(on_extend(path, bytes, refusal))
}

/// Extends a file to at least `bytes`, fully allocated; `allocated` bytes already are.
pub(super) fn reserve(
    file: &File,
    path: &Path,
    bytes: u64,
    allocated: u64,
    notes: &mut Vec<String>,
) -> Result<(), AreaError> {
    if let Some(limit) = file_size_limit().filter(|limit| *limit < bytes) {
        return Err(AreaError::FileSizeLimit {
            path: path.to_owned(),
            bytes,
            limit: Some(limit),
        });
    }
    let free = free_bytes(file, path)?;
    let needed = bytes.saturating_sub(allocated);
    let no_room = AreaError::NoRoom {
        path: path.to_owned(),
        needed,
        free,
    };
    if needed > free {
        return Err(no_room);
    }
    let length = rustix::fs::fstat(file)
        .map_err(|errno| AreaError::on_io(path, errno.into()))?
        .st_size as u64;
    // Room reserved in a tmpfs is memory taken from the programs that need it.
    let reservable = rustix::fs::fstatfs(file)
        .map(|system| system.f_type as u64 != TMPFS_MAGIC)
        .unwrap_or(true);
    let allocation = if reservable {
        allocate(file, bytes)
    } else {
        Err(Errno::OPNOTSUPP)
    };
    match allocation {
        Ok(()) => Ok(()),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            if length < bytes {
                rustix::fs::ftruncate(file, bytes)
                    .map_err(|errno| on_extend(path, bytes, errno))?;
            }
            if reservable {
                notes.push(format!(
                    "the file system of {} cannot reserve room: if it fills up, swapping out fails",
                    path.display()
                ));
            }
            Ok(())
        }
        Err(Errno::NOSPC | Errno::DQUOT) => {
            // Return the blocks that were allocated before the disk was full.
            if length < bytes {
                let _ = rustix::fs::ftruncate(file, length);
            }
            Err(no_room)
        }
        Err(errno) => Err(on_extend(path, bytes, errno)),
    }
}

fn allocate(file: &File, bytes: u64) -> Result<(), Errno> {
    loop {
        match rustix::fs::fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn on_extend(path: &Path, bytes: u64, errno: Errno) -> AreaError {
    match errno {
        Errno::FBIG => AreaError::FileSizeLimit {
            path: path.to_owned(),
            bytes,
            limit: None,
        },
        _ => AreaError::on_io(path, errno.into()),
    }
}

/// Makes a range read as zeros without writing it: keeps a file's blocks if possible, else frees them; on devices
/// only if the device does it itself.
pub(super) fn zero_range(file: &File, offset: u64, bytes: u64) -> Result<(), Errno> {
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let keep = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
    let is_device = rustix::fs::FileType::from_raw_mode(rustix::fs::fstat(file)?.st_mode)
        == rustix::fs::FileType::BlockDevice;
    let ways: &[FallocateFlags] = if is_device { &[punch] } else { &[keep, punch] };
    let mut result = Err(Errno::OPNOTSUPP);
    for way in ways {
        result = rustix::fs::fallocate(file, *way, offset, bytes);
        if result != Err(Errno::OPNOTSUPP) {
            break;
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn the_default_is_generous_but_leaves_a_fifth_free() {
        assert_eq!(default_size(100 * GIB, GIB), 16 * GIB);
        assert_eq!(default_size(100 * GIB, 4 * GIB), 32 * GIB);
        assert_eq!(default_size(10 * GIB, GIB), 8 * GIB);
        assert_eq!(default_size(100 * GIB, 64 * GIB), 80 * GIB);
    }

    #[test]
    fn the_default_is_whole_pages_at_any_value() {
        assert_eq!(default_size(10_001, 0), 4096);
        assert_eq!(default_size(0, u64::MAX), 0);
        assert_eq!(default_size(u64::MAX, u64::MAX) % PAGE_BYTES, 0);
    }
}
