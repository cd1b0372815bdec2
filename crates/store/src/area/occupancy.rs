//! Whether the kernel uses a file or device: as its own swap, or under a mount.
//!
//! Entries are compared by device numbers, because a device has many names.

use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::AreaError;

pub(super) fn refuse_kernel_swap(path: &Path, metadata: &Metadata) -> Result<(), AreaError> {
    // Without /proc nothing is known; O_EXCL still protects devices.
    let Ok(table) = std::fs::read("/proc/swaps") else {
        return Ok(());
    };
    let active = swap_paths(&table)
        .filter_map(|path| std::fs::metadata(path).ok())
        .any(|swap| same(&swap, metadata));
    if active {
        return Err(AreaError::KernelSwap {
            path: path.to_owned(),
        });
    }
    Ok(())
}

pub(super) fn refuse_mounted(path: &Path, metadata: &Metadata) -> Result<(), AreaError> {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else {
        return Ok(());
    };
    let device = metadata.rdev();
    let numbers = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let mount = mounts(&table).find(|mount| {
        // btrfs and similar file systems have device numbers of their own; compare those of the source as well.
        mount.numbers == numbers.as_bytes()
            || std::fs::metadata(&mount.source).is_ok_and(|source| same(&source, metadata))
    });
    match mount {
        Some(mount) => Err(AreaError::Mounted {
            path: path.to_owned(),
            mount_point: mount.point,
        }),
        None => Ok(()),
    }
}

fn same(one: &Metadata, other: &Metadata) -> bool {
    let devices = one.file_type().is_block_device() && other.file_type().is_block_device();
    if devices {
        one.rdev() == other.rdev()
    } else {
        (one.dev(), one.ino()) == (other.dev(), other.ino())
    }
}

/// The first column of `/proc/swaps`, without its heading.
fn swap_paths(table: &[u8]) -> impl Iterator<Item = PathBuf> + '_ {
    table
        .split(|byte| *byte == b'\n')
        .skip(1)
        .filter_map(|line| words(line).next())
        .map(unescape)
}

struct Mount<'a> {
    numbers: &'a [u8],
    point: PathBuf,
    source: PathBuf,
}

/// The lines of `mountinfo`: id, parent, major:minor, root, mount point, options, optional fields
/// up to a dash, type, source.
fn mounts(table: &[u8]) -> impl Iterator<Item = Mount<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut fields = words(line);
        let numbers = fields.nth(2)?;
        let point = unescape(fields.nth(1)?);
        let source = unescape(fields.skip_while(|field| *field != b"-").nth(2)?);
        Some(Mount {
            numbers,
            point,
            source,
        })
    })
}

fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|byte| byte.is_ascii_whitespace())
        .filter(|word| !word.is_empty())
}

/// Undoes the kernel's octal escapes of blanks and backslashes.
fn unescape(word: &[u8]) -> PathBuf {
    let mut plain = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        match tail {
            [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] if *first == b'\\' => {
                plain.push(((a - b'0') << 6) | ((b - b'0') << 3) | (c - b'0'));
                rest = &tail[3..];
            }
            _ => {
                plain.push(*first);
                rest = tail;
            }
        }
    }
    PathBuf::from(OsString::from_vec(plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swaps_are_listed_without_the_heading() {
        let table = b"Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n\
            /dev/zram0                              partition\t1048572\t\t0\t\t100\n\
            /swap\\040file                          file\t\t1024\t\t0\t\t-2\n";
        let paths: Vec<_> = swap_paths(table).collect();
        assert_eq!(
            paths,
            [PathBuf::from("/dev/zram0"), PathBuf::from("/swap file")]
        );
    }

    #[test]
    fn mounts_give_numbers_point_and_source() {
        let table = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n\
            36 27 0:31 /root /my\\040disk rw shared:1 master:2 - btrfs /dev/sdb1 rw,space_cache\n\
            broken line\n\n";
        let found: Vec<_> = mounts(table).collect();
        assert_eq!(found.len(), 2);
        assert_eq!(found[0].numbers, b"254:0");
        assert_eq!(found[0].source, Path::new("/dev/vda"));
        assert_eq!(found[1].point, Path::new("/my disk"));
        assert_eq!(found[1].source, Path::new("/dev/sdb1"));
    }

    #[test]
    fn a_backslash_that_escapes_nothing_stays() {
        assert_eq!(unescape(b"a\\9b\\04"), Path::new("a\\9b\\04"));
        assert_eq!(unescape(b"\\134x"), Path::new("\\x"));
    }

    #[test]
    fn the_root_device_counts_as_mounted() {
        let table = std::fs::read("/proc/self/mountinfo").expect("mountinfo");
        assert!(mounts(&table).any(|mount| mount.point == Path::new("/")));
    }
}
