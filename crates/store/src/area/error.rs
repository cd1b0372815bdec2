//! Why an area cannot be used, in the user's terms: the finding, the expectation, the remedy.

use std::io;
use std::path::{Path, PathBuf};

use super::MIN_AREA_BYTES;

/// A swap area was refused.
#[derive(Debug, thiserror::Error)]
pub enum AreaError {
    /// `--swap` without a value.
    #[error("--swap is empty: name a directory, a file or a block device")]
    Empty,
    /// A RAM area with invalid syntax or size.
    #[error(
        "swap area {given}: {why}; expected ram:SIZE, such as ram:512M or ram:512M,zstd (a path that \
         starts with `ram:` is written `./ram:...`)"
    )]
    Ram {
        /// The argument.
        given: String,
        /// The fault in it.
        why: String,
    },
    /// There is no such file.
    #[error(
        "swap area {}: it does not exist; name a directory, or create the file first: \
         `install -m 600 /dev/null {}`", path.display(), quoted(path)
    )]
    NotFound {
        /// The area.
        path: PathBuf,
    },
    /// The file system's permissions forbid it.
    #[error(
        "swap area {}: permission denied; foreswap must be allowed to read and write it \
         (a directory: to create files in it); name another one with --swap", path.display()
    )]
    Permission {
        /// The area.
        path: PathBuf,
    },
    /// A socket, a pipe, a character device.
    #[error(
        "swap area {}: neither a directory nor a regular file nor a block device; name one of \
         these", path.display()
    )]
    WrongKind {
        /// The area.
        path: PathBuf,
    },
    /// A link to a regular file.
    #[error(
        "swap area {}: a symbolic link to a file, which another user could redirect; give the path \
         that it points to", path.display()
    )]
    Symlink {
        /// The area.
        path: PathBuf,
    },
    /// Group or others may read or write it.
    #[error(
        "swap area {}: its mode is {mode:03o}, so others could read the memory swapped to it; \
         expected {wanted:03o}: `chmod {wanted:o} {}`", path.display(), path.display()
    )]
    OpenToOthers {
        /// The area.
        path: PathBuf,
        /// Permission bits found.
        mode: u32,
        /// Permission bits that would be accepted.
        wanted: u32,
    },
    /// A file of another user.
    #[error(
        "swap area {}: it belongs to user {owner}, who could read the memory swapped to it; \
         expected user {us}: `chown {us} {}`, or name another file", path.display(), path.display()
    )]
    ForeignOwner {
        /// The area.
        path: PathBuf,
        /// The file's user id.
        owner: u32,
        /// This process' user id.
        us: u32,
    },
    /// Another foreswap holds the lock.
    #[error(
        "swap area {}: another foreswap is using it; wait for it to end, or name another area \
         (a directory can serve any number)", path.display()
    )]
    InUse {
        /// The area.
        path: PathBuf,
    },
    /// The kernel swaps to it.
    #[error(
        "swap area {}: the kernel is swapping to it (see /proc/swaps); `swapoff {}` first, or name \
         another area", path.display(), path.display()
    )]
    KernelSwap {
        /// The area.
        path: PathBuf,
    },
    /// A file system on it is in use.
    #[error(
        "swap area {}: it is mounted on {}; foreswap would destroy that file system; name a device \
         that is not in use, or a directory", path.display(), mount_point.display()
    )]
    Mounted {
        /// The device.
        path: PathBuf,
        /// Where it is mounted.
        mount_point: PathBuf,
    },
    /// Held by another user than a mount or swap: RAID, device mapper, another foreswap.
    #[error(
        "swap area {}: the device or a part of it is in use (a mounted partition, RAID, LVM, another \
         program); `lsblk {}` shows by what; name a device that is free", path.display(), path.display()
    )]
    DeviceBusy {
        /// The device.
        path: PathBuf,
    },
    /// It contains data that is not foreswap's.
    #[error(
        "swap area {}: it holds data ({what}), which foreswap would overwrite; expected an empty \
         file, zeros, a `mkswap` signature or an earlier area of foreswap; if nothing on it is \
         needed: `wipefs -a {} && mkswap {}`", path.display(), path.display(), path.display()
    )]
    HasData {
        /// The area.
        path: PathBuf,
        /// The recognised kind of data.
        what: String,
    },
    /// Less than 1 MiB.
    #[error(
        "swap area {}: a size of {bytes} bytes is too small, the least is {MIN_AREA_BYTES} (1M); give a larger \
         --swap-size", path.display()
    )]
    TooSmall {
        /// The area.
        path: PathBuf,
        /// Its size, or the requested size.
        bytes: u64,
    },
    /// The request exceeds the device.
    #[error(
        "swap area {}: --swap-size asks for {asked} bytes, the device has {bytes}; ask for less, or \
         leave --swap-size out to use all of it", path.display()
    )]
    DeviceTooSmall {
        /// The device.
        path: PathBuf,
        /// Bytes requested.
        asked: u64,
        /// Bytes available.
        bytes: u64,
    },
    /// The file system is too full.
    #[error(
        "swap area {}: no room: {needed} bytes are needed and the file system has {free} free; ask \
         for a smaller --swap-size, free some, or name an area on another file system with --swap",
        path.display()
    )]
    NoRoom {
        /// The area.
        path: PathBuf,
        /// Bytes required.
        needed: u64,
        /// Bytes that the file system offers to this process.
        free: u64,
    },
    /// `ulimit -f`, or the file system's own maximum.
    #[error(
        "swap area {}: a file of {bytes} bytes exceeds the limit for files ({}); raise it with \
         `ulimit -f`, or ask for a smaller --swap-size", path.display(), limit_text(*.limit)
    )]
    FileSizeLimit {
        /// The area.
        path: PathBuf,
        /// Bytes requested.
        bytes: u64,
        /// The limit, if it is known.
        limit: Option<u64>,
    },
    /// The trial page did not read back as written.
    #[error("swap area {}: a trial page did not read back as written; name another area", path.display())]
    Unfaithful {
        /// The area.
        path: PathBuf,
    },
    /// The remains of the run could not be removed.
    #[error(
        "swap area {}: the swapped pages could not be erased ({source}); `shred {}` does it by hand",
        path.display(), path.display()
    )]
    Erase {
        /// The area.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Any other error.
    #[error("swap area {}: {source}; name another area with --swap", path.display())]
    Io {
        /// The area.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl AreaError {
    /// The error for a failure to find or open the area.
    pub(super) fn on_open(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => AreaError::NotFound { path },
            io::ErrorKind::PermissionDenied => AreaError::Permission { path },
            _ => AreaError::Io { path, source },
        }
    }

    /// The error for a failure to read, write or inspect the open area.
    pub(super) fn on_io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::InvalidData => AreaError::Unfaithful { path },
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => AreaError::NoRoom {
                path,
                needed: MIN_AREA_BYTES,
                free: 0,
            },
            _ => AreaError::Io { path, source },
        }
    }
}

fn limit_text(limit: Option<u64>) -> String {
    match limit {
        Some(bytes) => format!("{bytes} bytes"),
        None => "the file system's".to_owned(),
    }
}

/// A path as a word of a command for a shell.
fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_are_words_of_a_shell() {
        let quoted = |path: &str| quoted(Path::new(path));
        assert_eq!(quoted("/tmp/area-1.img"), "/tmp/area-1.img");
        assert_eq!(quoted("/tmp/a b"), "'/tmp/a b'");
        assert_eq!(quoted("/tmp/it's"), r"'/tmp/it'\''s'");
    }
}
