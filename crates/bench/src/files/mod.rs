//! Reads of a file in several orders: through a [`foreswap_files::Cache`], and by `pread` through the kernel's.
//!
//! The file is made once, each page with a number of its own, which every read checks. Before a cold read both caches
//! are emptied of it.

mod numbered;
mod patterns;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use foreswap_files::store::{SlowStore, Slowness};
use foreswap_files::{Cache, CachedFile};

use numbered::Numbered;
pub use patterns::Pattern;

use crate::interrupt;

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// Reads between two looks for a signal.
const LOOK: u64 = 256;

/// Something that reads at an offset.
pub trait Reader: Sync {
    /// Fills the buffer.
    fn read(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()>;
}

impl Reader for File {
    fn read(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

impl Reader for CachedFile {
    fn read(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        self.read_exact_at(buffer, offset)
    }
}

/// What was read, and in which time.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// Reads.
    pub reads: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The time of all.
    pub time: Duration,
}

/// Reads `part` (this one of so many threads) of a pattern.
fn read_part(reader: &dyn Reader, work: &Work, part: (u64, u64)) -> anyhow::Result<()> {
    let size = work.pattern.read_bytes();
    let mut buffer = vec![0; size as usize];
    for n in (part.0..work.reads).step_by(part.1 as usize) {
        if (n / part.1).is_multiple_of(LOOK) {
            interrupt::check()?;
        }
        let offset = work.pattern.offset(n, work.bytes, work.seed);
        reader
            .read(&mut buffer, offset)
            .with_context(|| format!("a read at {offset}"))?;
        let (number, _) = buffer.split_first_chunk().context("a read of a page")?;
        let number = u64::from_le_bytes(*number);
        ensure!(
            number == offset / PAGE as u64,
            "page {} has the number {number}",
            offset / PAGE as u64
        );
    }
    Ok(())
}

/// A pattern on a file.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// The order.
    pub pattern: Pattern,
    /// Of the file.
    pub bytes: u64,
    /// How many there are.
    pub reads: u64,
    /// For random places.
    pub seed: u64,
}

impl Work {
    /// Reads with so many threads.
    pub fn run(&self, reader: &dyn Reader, threads: u64) -> anyhow::Result<Run> {
        let start = Instant::now();
        std::thread::scope(|scope| {
            let spawn = |n| scope.spawn(move || read_part(reader, self, (n, threads)));
            let others: Vec<_> = (1..threads).map(spawn).collect();
            let mine = read_part(reader, self, (0, threads));
            let others = others.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(_) => anyhow::bail!("a reading thread panicked"),
            });
            others.fold(mine, Result::and)
        })?;
        Ok(Run {
            reads: self.reads,
            bytes: self.reads * self.pattern.read_bytes(),
            time: start.elapsed(),
        })
    }
}

/// The file, removed when it is dropped.
#[derive(Debug)]
pub struct Made {
    path: PathBuf,
}

/// What the pages of so many bytes hold beside their numbers.
pub fn pattern(bytes: usize) -> Vec<u8> {
    let words = (0..bytes as u64).map(|n| crate::usemem::mix(n) as u8);
    words.collect()
}

/// Writes the file's pages from one on.
pub fn number_pages(buffer: &mut [u8], first: u64) {
    for (number, page) in (first..).zip(buffer.chunks_exact_mut(PAGE)) {
        page[..8].copy_from_slice(&number.to_le_bytes());
    }
}

impl Made {
    /// Makes a file of so many bytes, a multiple of 1 MiB.
    pub fn new(directory: &Path, bytes: u64) -> anyhow::Result<Self> {
        const STEP: usize = 1 << 20;
        let path = directory.join(format!("foreswap-bench-{}.file", std::process::id()));
        let file =
            File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let made = Made { path };
        let mut buffer = pattern(STEP);
        for at in (0..bytes).step_by(STEP) {
            interrupt::check()?;
            number_pages(&mut buffer, at / PAGE as u64);
            file.write_all_at(&buffer, at)?;
        }
        file.sync_all()?;
        Ok(made)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The kernel has no page of it, and it is open.
    pub fn cold(&self) -> anyhow::Result<File> {
        use std::os::fd::AsRawFd;
        let file = File::open(&self.path)?;
        // SAFETY: advice about a file that is open.
        let refused =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        ensure!(
            refused == 0,
            "the kernel does not drop the pages of {}",
            self.path.display()
        );
        Ok(file)
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A slow file of so many bytes, with the pages of [`Made`].
pub fn slow_file(bytes: u64, slowness: Slowness) -> anyhow::Result<Arc<SlowStore>> {
    let fast = Arc::new(Numbered::new(bytes));
    Ok(Arc::new(SlowStore::new(fast, slowness)?))
}

/// A cache of so many bytes whose memory the kernel has allocated: nobody measures the first use of memory.
pub fn warm_cache(bytes: u64) -> anyhow::Result<Cache> {
    let cache = Cache::new(bytes)?;
    let file = cache.open_store(Arc::new(Numbered::new(bytes)), false)?;
    let mut buffer = vec![0; 1 << 20];
    for at in (0..bytes).step_by(buffer.len()) {
        file.read_at(&mut buffer, at)?;
    }
    Ok(cache)
}
