//! A file of this machine, past the kernel's page cache.
//!
//! Whole pages move with O_DIRECT. The last page of a file, if it is not full, is written through a second descriptor
//! without O_DIRECT and to its exact length: the file is never longer than what was written to it, whenever the program
//! dies. The kernel keeps both ways coherent. Where the file system refuses O_DIRECT, all transfers are buffered, and the
//! kernel is told to drop the pages behind them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, fadvise};
use rustix::io::Errno;

use super::{Direction, Done, Ring, Span, Store};
use foreswap_core::units::PAGE_SIZE;

/// How a file is opened. By default for reading only, and it has to exist.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    write: bool,
    create: bool,
    truncate: bool,
    buffered: bool,
}

impl Options {
    /// For reading only.
    pub fn new() -> Self {
        Self::default()
    }

    /// Also for writing.
    pub fn write(self, write: bool) -> Self {
        Options { write, ..self }
    }

    /// Made if it does not exist; needs `write`.
    pub fn create(self, create: bool) -> Self {
        Options { create, ..self }
    }

    /// Emptied; needs `write`.
    pub fn truncate(self, truncate: bool) -> Self {
        Options { truncate, ..self }
    }

    /// Without O_DIRECT, as on a file system that refuses it.
    pub fn buffered(self, buffered: bool) -> Self {
        Options { buffered, ..self }
    }

    /// Whether it can be written.
    pub(crate) fn writes(self) -> bool {
        self.write
    }
}

/// An open file.
#[derive(Debug)]
pub struct LocalFile {
    /// Opened with O_DIRECT, if the file system has it.
    direct: Arc<File>,
    is_direct: bool,
    /// For the last page.
    buffered: File,
    ring: Arc<Ring>,
}

/// An error with the file's name. Its source is the system's, which has the number.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {path}: {source}")]
struct Named {
    path: String,
    source: io::Error,
}

fn named(path: &Path) -> impl FnOnce(io::Error) -> io::Error {
    let path = path.display().to_string();
    move |source| io::Error::new(source.kind(), Named { path, source })
}

impl LocalFile {
    /// Opens a regular file or a block device; its transfers go through `ring`.
    ///
    /// # Errors
    /// The system's, with the path. `InvalidInput` for anything that has no pages: a directory, pipe or character
    /// device.
    pub fn open(path: &Path, options: Options, ring: &Arc<Ring>) -> io::Result<Self> {
        let mut how = OpenOptions::new();
        how.read(true)
            .write(options.write)
            .create(options.create)
            .truncate(options.truncate);
        let buffered = how.open(path).map_err(named(path))?;
        let kind = buffered.metadata().map_err(named(path))?.file_type();
        if !kind.is_file() && !std::os::unix::fs::FileTypeExt::is_block_device(&kind) {
            let what = "neither a regular file nor a block device: read it without a cache";
            return Err(named(path)(io::Error::new(
                io::ErrorKind::InvalidInput,
                what,
            )));
        }
        how.create(false)
            .truncate(false)
            .custom_flags(libc::O_DIRECT);
        let direct = match how.open(path) {
            _ if options.buffered => None,
            Ok(file) => Some(file),
            Err(error) if Errno::from_io_error(&error) == Some(Errno::INVAL) => None,
            Err(error) => return Err(named(path)(error)),
        };
        let is_direct = direct.is_some();
        let direct = match direct {
            Some(file) => file,
            None => buffered.try_clone().map_err(named(path))?,
        };
        Ok(LocalFile {
            direct: Arc::new(direct),
            is_direct,
            buffered,
            ring: Arc::clone(ring),
        })
    }

    /// Whether transfers go past the kernel's page cache.
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// The file for a transfer: that without O_DIRECT if it ends within a page.
    fn file_for(&self, span: &Span) -> &File {
        match span.bytes().is_multiple_of(PAGE_SIZE) {
            true => &self.direct,
            false => &self.buffered,
        }
    }
}

/// One system call from byte `done` of the span on.
fn step(file: &File, span: &Span, done: usize) -> io::Result<usize> {
    let mut skip = done;
    let pieces = span.pieces().iter().filter_map(|piece| {
        let here = skip.min(piece.len);
        skip -= here;
        (here < piece.len).then(|| libc::iovec {
            iov_base: piece.ptr.wrapping_add(here).cast(),
            iov_len: piece.len - here,
        })
    });
    let pieces: Vec<_> = pieces.take(libc::UIO_MAXIOV as usize).collect();
    let (fd, count) = (file.as_raw_fd(), pieces.len() as libc::c_int);
    let offset = (span.offset() + done as u64) as libc::off_t;
    // SAFETY: the pieces are the cache's memory for this transfer.
    let moved = unsafe {
        match span.direction() {
            Direction::Read => libc::preadv(fd, pieces.as_ptr(), count, offset),
            Direction::Write => libc::pwritev(fd, pieces.as_ptr(), count, offset),
        }
    };
    usize::try_from(moved).map_err(|_| io::Error::last_os_error())
}

impl Store for LocalFile {
    fn start(&self, span: Span, done: Done) {
        if span.bytes().is_multiple_of(PAGE_SIZE) && self.is_direct {
            self.ring.start(&self.direct, span, done);
        } else {
            let result = self.carry_out(&span);
            done.end(result);
        }
    }

    fn carry_out(&self, span: &Span) -> io::Result<u64> {
        let file = self.file_for(span);
        let mut done = 0;
        while done < span.bytes() {
            match step(file, span, done) {
                Ok(0) if span.direction() == Direction::Write => {
                    return Err(io::ErrorKind::WriteZero.into());
                }
                Ok(0) => break,
                Ok(moved) => done += moved,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
            // The end of the file: with O_DIRECT nothing can be asked from here on.
            if span.direction() == Direction::Read && !done.is_multiple_of(PAGE_SIZE) {
                break;
            }
        }
        if !self.is_direct {
            let length = std::num::NonZeroU64::new(span.bytes() as u64);
            // Advice; dirty pages stay until they are written.
            let _ = fadvise(&self.buffered, span.offset(), length, Advice::DontNeed);
        }
        Ok(done as u64)
    }

    fn bytes(&self) -> io::Result<u64> {
        let metadata = self.buffered.metadata()?;
        if metadata.file_type().is_file() {
            return Ok(metadata.len());
        }
        Ok(rustix::fs::seek(
            &self.buffered,
            rustix::fs::SeekFrom::End(0),
        )?)
    }

    fn set_bytes(&self, bytes: u64) -> io::Result<()> {
        self.buffered.set_len(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.buffered.sync_data()
    }
}
