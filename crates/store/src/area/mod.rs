//! Opens a swap area, or reports exactly why not, with a remedy.
//!
//! A swap area holds the memory of a user's programs and overwrites its former contents. This module is therefore
//! strict: it refuses files that others may read, files and devices with a user's data, and devices that are mounted
//! or in use. A directory is the safe default: the file in it never has a name, is private from its first moment and
//! vanishes with its last descriptor, also after `kill -9`.
//!
//! It runs in the supervisor, before the command starts; the descriptors then go to the managed processes. The lock
//! against a second foreswap belongs to the open file and lasts as long as any process has it open; if all have been
//! killed, as long as the disk writes ([`lease`]). Other programs can claim a device by then.

pub mod contents;
mod error;
mod far;
pub mod lease;
mod occupancy;
mod room;

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, IFlags, MemfdFlags, Mode, OFlags, SealFlags};
use rustix::io::Errno;

pub use error::AreaError;
pub use far::Far;

use contents::Contents;

use crate::ram::{self, Method, RamError};

/// Unit of all offsets and sizes.
pub const PAGE_BYTES: u64 = 4096;
/// Below this, the size is a typing error.
pub const MIN_AREA_BYTES: u64 = 1 << 20;

const TMPFS_MAGIC: u64 = 0x0102_1994;
const BTRFS_MAGIC: u64 = 0x9123_683e;

/// The user's description of a swap area, unverified.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AreaSpec {
    /// A directory, a regular file or a block device.
    Path(PathBuf),
    /// Compressed memory.
    Ram {
        /// The maximum size of the compressed pages, in bytes.
        capacity: u64,
        /// The compression method.
        method: Method,
    },
}

impl AreaSpec {
    /// Parses a `--swap` argument: a path, or `ram:SIZE`, `ram:SIZE,lz4` or `ram:SIZE,zstd`, where `size` parses SIZE
    /// or reports an error. Touches no file; [`open`] does. A path that starts with `ram:` is written `./ram:`.
    pub fn parse(
        text: &str,
        size: impl FnOnce(&str) -> Result<u64, String>,
    ) -> Result<Self, AreaError> {
        if let Some(words) = text.strip_prefix("ram:") {
            let refused = |why: String| AreaError::Ram {
                given: text.to_owned(),
                why,
            };
            let (bytes, method) = words.split_once(',').unwrap_or((words, "lz4"));
            let method = Method::named(method).ok_or_else(|| {
                refused(format!(
                    "no compression is called {method:?}, but lz4 and zstd"
                ))
            })?;
            let capacity = size(bytes).map_err(refused)?;
            ram::slots(capacity).map_err(|error| refused(error.to_string()))?;
            return Ok(AreaSpec::Ram { capacity, method });
        }
        if text.is_empty() {
            return Err(AreaError::Empty);
        }
        Ok(AreaSpec::Path(PathBuf::from(text)))
    }

    /// The default area: an unlinked file under `$TMPDIR`, else `/tmp`.
    pub fn temporary() -> Self {
        AreaSpec::Path(std::env::temp_dir())
    }
}

/// An area that belongs to this run while any copy of its descriptor is open.
#[derive(Debug)]
pub struct OpenArea {
    /// Open for reading and writing, close-on-exec, locked.
    pub file: File,
    /// For messages; the file may have no name.
    pub path: PathBuf,
    /// Size, a multiple of 4 KiB, at least 1 MiB, `reserved_bytes` included.
    pub bytes: u64,
    /// Bytes at the front that must never be written: 0, or one page if the file or device has a name and must be
    /// recognised later. Slot 0 is then taken, as on the kernel's areas.
    pub reserved_bytes: u64,
    /// Opened with `O_DIRECT`: memory, offsets and lengths must be multiples of 4 KiB.
    pub direct: bool,
    /// Notes for the user, one sentence each.
    pub notes: Vec<String>,
    /// It is memory, read and written through [`crate::ram`]: `bytes` is the capacity of its slots, not of the
    /// compressed pages.
    pub is_ram: bool,
    /// It is on a server.
    pub far: Option<Far>,
    named: bool,
}

impl OpenArea {
    /// Whether the area has a name, in which case its contents outlive the run until [`OpenArea::erase`].
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Whether transfers of an ended process can be detected (see [`lease`]), and the reason if not.
    pub fn shows_transfers(&self) -> Result<(), Errno> {
        match self.is_ram {
            true => Ok(()),
            false => lease::try_out(self.file.as_fd()),
        }
    }

    /// Transfers use the page cache from now on, which has the data of every write of a thread that has ended.
    pub fn leave_direct_io(&mut self) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        rustix::fs::fcntl_setfl(&self.file, flags - OFlags::DIRECT)?;
        self.direct = false;
        Ok(())
    }

    /// Makes the pages unreadable for the next user of the file or device: call it when the last managed process has
    /// ended. No effect on areas without a name.
    pub fn erase(&self) -> Result<(), AreaError> {
        if !self.named {
            return Ok(());
        }
        let length = self.bytes - self.reserved_bytes;
        room::zero_range(&self.file, self.reserved_bytes, length).map_err(|errno| {
            AreaError::Erase {
                path: self.path.clone(),
                source: errno.into(),
            }
        })
    }
}

/// Opens, checks, sizes and locks an area. `swap_size` is the requested size; without it a named area is used whole,
/// and the size of an unnamed one follows from the free room and `memory_limit` (bytes).
pub fn open(
    spec: &AreaSpec,
    swap_size: Option<u64>,
    memory_limit: u64,
) -> Result<OpenArea, AreaError> {
    let path = match spec {
        AreaSpec::Path(path) => path,
        AreaSpec::Ram { capacity, method } => return open_ram(*capacity, *method),
    };
    if let Some(bytes) = swap_size.filter(|bytes| *bytes < MIN_AREA_BYTES) {
        return Err(AreaError::TooSmall {
            path: path.clone(),
            bytes,
        });
    }
    let swap_size = swap_size.map(|bytes| bytes - bytes % PAGE_BYTES);
    let metadata = std::fs::metadata(path).map_err(|error| AreaError::on_open(path, error))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        open_in_directory(path, swap_size, memory_limit)
    } else if kind.is_file() {
        open_file(path, swap_size, memory_limit)
    } else if kind.is_block_device() {
        open_device(path, &metadata, swap_size)
    } else {
        Err(AreaError::WrongKind { path: path.clone() })
    }
}

/// Memory shared by the processes of the run. The file has no name and a fixed size; memory is allocated on use.
fn open_ram(capacity: u64, method: Method) -> Result<OpenArea, AreaError> {
    let path = PathBuf::from(format!("ram:{}", spelled(capacity)));
    let path = match method {
        Method::Lz4 => path,
        Method::Zstd => PathBuf::from(format!("{},zstd", path.display())),
    };
    let failed = |errno: Errno| AreaError::on_io(&path, errno.into());
    let bounds = |error: RamError| AreaError::Ram {
        given: path.display().to_string(),
        why: error.to_string(),
    };
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memory_file(c"foreswap-ram", flags).map_err(failed)?;
    let bytes = ram::memory_bytes(capacity).map_err(bounds)?;
    // The limit also applies to memory files.
    if let Some(limit) = room::file_size_limit().filter(|limit| *limit < bytes) {
        return Err(AreaError::FileSizeLimit {
            path,
            bytes,
            limit: Some(limit),
        });
    }
    rustix::fs::ftruncate(&file, bytes).map_err(failed)?;
    let first = ram::first_bytes(capacity, method).map_err(bounds)?;
    rustix::io::pwrite(&file, &first, 0).map_err(failed)?;
    // No process can shrink it and cause SIGBUS in the others.
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals).map_err(failed)?;
    Ok(OpenArea {
        file: File::from(file),
        bytes: u64::from(ram::slots(capacity).map_err(bounds)?) * PAGE_BYTES,
        reserved_bytes: 0,
        direct: false,
        notes: Vec::new(),
        is_ram: true,
        far: None,
        named: false,
        path,
    })
}

fn memory_file(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    // NOEXEC_SEAL is newer than some kernels, and required by some systems' policy.
    rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
        .or_else(|_| rustix::fs::memfd_create(name, flags))
}

/// A size in its shortest exact form.
fn spelled(bytes: u64) -> String {
    let units = [("G", 30), ("M", 20), ("K", 10)];
    let whole = units
        .iter()
        .find(|(_, shift)| bytes.trailing_zeros() >= *shift);
    whole.map_or_else(
        || bytes.to_string(),
        |(unit, shift)| format!("{}{unit}", bytes >> shift),
    )
}

fn open_in_directory(
    directory: &Path,
    swap_size: Option<u64>,
    memory_limit: u64,
) -> Result<OpenArea, AreaError> {
    let mut notes = Vec::new();
    let (file, mut direct) = open_direct(|flags| open_unnamed(directory, flags))
        .map_err(|errno| AreaError::on_open(directory, errno.into()))?;
    lock(&file, directory)?;
    prepare_for_file_system(&file, directory, &mut notes);
    // The file is empty: one page of zeros tests reads and writes.
    contents::try_page(&file, &contents::Page::zeroed(), &mut direct)
        .map_err(|error| AreaError::on_io(directory, error))?;
    rustix::fs::ftruncate(&file, 0).map_err(|errno| AreaError::on_io(directory, errno.into()))?;
    let bytes = match swap_size {
        Some(bytes) => {
            room::reserve(&file, directory, bytes, 0, &mut notes)?;
            bytes
        }
        None => room::extend_by_default(&file, directory, memory_limit, &mut notes)?,
    };
    note_buffered(direct, directory, &mut notes);
    Ok(OpenArea {
        file,
        path: directory.to_owned(),
        bytes,
        reserved_bytes: 0,
        direct,
        notes,
        is_ram: false,
        far: None,
        named: false,
    })
}

fn open_file(
    path: &Path,
    swap_size: Option<u64>,
    memory_limit: u64,
) -> Result<OpenArea, AreaError> {
    let mut notes = Vec::new();
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let (file, mut direct) =
        open_direct(|extra| rustix::fs::open(path, flags | extra, Mode::empty()).map(File::from))
            .map_err(|errno| match errno {
            Errno::LOOP => AreaError::Symlink {
                path: path.to_owned(),
            },
            _ => AreaError::on_open(path, errno.into()),
        })?;
    // From here on only the open file is used: the name may point elsewhere by now.
    let metadata = file
        .metadata()
        .map_err(|error| AreaError::on_io(path, error))?;
    if !metadata.is_file() {
        return Err(AreaError::WrongKind {
            path: path.to_owned(),
        });
    }
    refuse_exposed(path, &metadata, 0o077)?;
    occupancy::refuse_kernel_swap(path, &metadata)?;
    lock(&file, path)?;

    let old_bytes = metadata.len();
    let found = contents::recognise_file(&file, old_bytes, &mut direct)
        .map_err(|error| AreaError::on_io(path, error))?;
    if let Contents::Foreign(what) = found {
        return Err(AreaError::HasData {
            path: path.to_owned(),
            what,
        });
    }
    if old_bytes == 0 {
        prepare_for_file_system(&file, path, &mut notes);
    }
    let bytes = match swap_size {
        Some(bytes) => {
            let allocated = metadata.blocks().saturating_mul(512).min(old_bytes);
            room::reserve(&file, path, bytes, allocated, &mut notes)?;
            bytes
        }
        None if old_bytes == 0 => room::extend_by_default(&file, path, memory_limit, &mut notes)?,
        None => old_bytes - old_bytes % PAGE_BYTES,
    };
    named_area(file, path, bytes, direct, &found, notes)
}

fn open_device(
    path: &Path,
    metadata: &std::fs::Metadata,
    swap_size: Option<u64>,
) -> Result<OpenArea, AreaError> {
    occupancy::refuse_mounted(path, metadata)?;
    occupancy::refuse_kernel_swap(path, metadata)?;
    refuse_exposed(path, metadata, 0o007)?;
    // Device names such as /dev/disk/by-id/... are symbolic links, and are followed here. O_EXCL on a device: no
    // other user (a mount, a RAID, swapon) holds it, nor can from now on.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::EXCL;
    let (file, mut direct) =
        open_direct(|extra| rustix::fs::open(path, flags | extra, Mode::empty()).map(File::from))
            .map_err(|errno| match errno {
            Errno::BUSY => AreaError::DeviceBusy {
                path: path.to_owned(),
            },
            _ => AreaError::on_open(path, errno.into()),
        })?;
    let opened = file
        .metadata()
        .map_err(|error| AreaError::on_io(path, error))?;
    if !opened.file_type().is_block_device() || opened.rdev() != metadata.rdev() {
        return Err(AreaError::WrongKind {
            path: path.to_owned(),
        });
    }
    lock(&file, path)?;
    let device_bytes = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
        .map_err(|errno| AreaError::on_io(path, errno.into()))?;
    let bytes = swap_size.unwrap_or(device_bytes - device_bytes % PAGE_BYTES);
    if bytes > device_bytes {
        return Err(AreaError::DeviceTooSmall {
            path: path.to_owned(),
            asked: bytes,
            bytes: device_bytes,
        });
    }
    let found = contents::recognise_file(&file, device_bytes, &mut direct)
        .map_err(|error| AreaError::on_io(path, error))?;
    if let Contents::Foreign(what) = found {
        return Err(AreaError::HasData {
            path: path.to_owned(),
            what,
        });
    }
    named_area(file, path, bytes, direct, &found, Vec::new())
}

/// The last step for areas with a name: leave a mark that tells the next run that this is not a user's data.
/// `mkswap`'s own mark is kept.
fn named_area(
    file: File,
    path: &Path,
    bytes: u64,
    mut direct: bool,
    found: &Contents,
    mut notes: Vec<String>,
) -> Result<OpenArea, AreaError> {
    if bytes < MIN_AREA_BYTES {
        return Err(AreaError::TooSmall {
            path: path.to_owned(),
            bytes,
        });
    }
    let mark = match found {
        Contents::KernelSwap(page) => page.clone(),
        _ => contents::header(),
    };
    contents::try_page(&file, &mark, &mut direct).map_err(|error| AreaError::on_io(path, error))?;
    note_buffered(direct, path, &mut notes);
    let area = OpenArea {
        file,
        path: path.to_owned(),
        bytes,
        reserved_bytes: PAGE_BYTES,
        direct,
        notes,
        is_ram: false,
        far: None,
        named: true,
    };
    // Discard the remains of a killed run now. Not on devices: some take minutes for it.
    if matches!(found, Contents::Ours) && is_regular(&area.file) {
        let _ = area.erase();
    }
    Ok(area)
}

fn is_regular(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.is_file())
}

/// Opens with `O_DIRECT`, or without it if the file system does not support it.
fn open_direct(open: impl Fn(OFlags) -> Result<File, Errno>) -> Result<(File, bool), Errno> {
    match open(OFlags::DIRECT) {
        Ok(file) => Ok((file, true)),
        Err(Errno::INVAL) => open(OFlags::empty()).map(|file| (file, false)),
        Err(error) => Err(error),
    }
}

/// A file without a name, never readable by other users.
fn open_unnamed(directory: &Path, extra: OFlags) -> Result<File, Errno> {
    let private = Mode::RUSR | Mode::WUSR;
    // O_EXCL here: it cannot be given a name later either.
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::TMPFILE | OFlags::EXCL | extra;
    match rustix::fs::open(directory, flags, private) {
        Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::NOENT | Errno::NOSYS) => {
            create_and_unlink(directory, extra)
        }
        other => other.map(File::from),
    }
}

/// For file systems without `O_TMPFILE`: a name for a moment, for this user only.
fn create_and_unlink(directory: &Path, extra: OFlags) -> Result<File, Errno> {
    let flags =
        OFlags::RDWR | OFlags::CLOEXEC | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | extra;
    let mut result = Err(Errno::EXIST);
    for attempt in 0..64u32 {
        let mut name = OsString::from(".foreswap-");
        name.push(format!("{}-{attempt}", std::process::id()));
        let path = directory.join(name);
        result = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR);
        match &result {
            Err(Errno::EXIST) => continue,
            // Some file systems refuse O_DIRECT only after they have created the file.
            Err(Errno::INVAL) => {
                let _ = rustix::fs::unlink(&path);
            }
            Err(_) => {}
            Ok(_) => rustix::fs::unlink(&path)?,
        }
        break;
    }
    match result {
        // Such as /proc.
        Err(Errno::NOENT) if directory.is_dir() => Err(Errno::ACCESS),
        other => other.map(File::from),
    }
}

fn lock(file: &File, path: &Path) -> Result<(), AreaError> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) if lease::is_held_by_any(file.as_fd()) => Err(AreaError::InUse {
            path: path.to_owned(),
        }),
        // File systems without locks: nothing to hold, and no reason to refuse.
        Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOLCK) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(AreaError::InUse {
            path: path.to_owned(),
        }),
        Err(errno) => Err(AreaError::on_io(path, errno.into())),
    }
}

/// Refuses files that others could read or write while they contain a program's memory.
fn refuse_exposed(
    path: &Path,
    metadata: &std::fs::Metadata,
    forbidden: u32,
) -> Result<(), AreaError> {
    let mode = metadata.mode() & 0o7777;
    if mode & forbidden != 0 {
        return Err(AreaError::OpenToOthers {
            path: path.to_owned(),
            mode,
            wanted: mode & !forbidden & 0o666,
        });
    }
    let us = rustix::process::geteuid().as_raw();
    if metadata.is_file() && metadata.uid() != us {
        return Err(AreaError::ForeignOwner {
            path: path.to_owned(),
            owner: metadata.uid(),
            us,
        });
    }
    Ok(())
}

fn prepare_for_file_system(file: &File, path: &Path, notes: &mut Vec<String>) {
    let Ok(system) = rustix::fs::fstatfs(file) else {
        return;
    };
    match system.f_type as u64 {
        TMPFS_MAGIC => notes.push(format!(
            "{} is a tmpfs: what is swapped out to it still occupies memory",
            path.display()
        )),
        BTRFS_MAGIC => {
            // Copy-on-write would turn each write into an allocation. Can be disabled only while the file is empty.
            if let Ok(flags) = rustix::fs::ioctl_getflags(file) {
                let _ = rustix::fs::ioctl_setflags(file, flags | IFlags::NOCOW);
            }
        }
        _ => {}
    }
}

fn note_buffered(direct: bool, path: &Path, notes: &mut Vec<String>) {
    if !direct {
        notes.push(format!(
            "{} does not support O_DIRECT: swapped pages pass through the page cache, which is \
             slower and takes memory",
            path.display()
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_spelled_as_a_user_would() {
        for (bytes, text) in [(512 << 20, "512M"), (3 << 30, "3G"), (4097, "4097")] {
            assert_eq!(spelled(bytes), text);
        }
    }

    #[test]
    fn without_tmpfile_a_file_is_private_and_loses_its_name_at_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let first = create_and_unlink(directory.path(), OFlags::empty()).expect("a file");
        let second = create_and_unlink(directory.path(), OFlags::empty()).expect("another");
        for file in [&first, &second] {
            let metadata = file.metadata().expect("metadata");
            assert_eq!((metadata.nlink(), metadata.mode() & 0o7777), (0, 0o600));
        }
        let left = std::fs::read_dir(directory.path()).expect("a listing");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn names_that_are_taken_are_passed_over_and_left_alone() {
        let directory = tempfile::tempdir().expect("a directory");
        let taken = directory
            .path()
            .join(format!(".foreswap-{}-0", std::process::id()));
        std::fs::write(&taken, "somebody's").expect("a file");
        create_and_unlink(directory.path(), OFlags::empty()).expect("a file");
        assert_eq!(std::fs::read(&taken).expect("still there"), b"somebody's");
    }

    #[test]
    fn a_file_system_without_direct_io_is_opened_without() {
        let refusing = |flags: OFlags| {
            if flags.contains(OFlags::DIRECT) {
                Err(Errno::INVAL)
            } else {
                tempfile::tempfile().map_err(|_| Errno::IO)
            }
        };
        let (_, direct) = open_direct(refusing).expect("the second attempt");
        assert!(!direct);
        let denied = open_direct(|_| Err(Errno::ACCESS));
        assert_eq!(denied.err(), Some(Errno::ACCESS));
    }
}
