//! A cache: frames with one budget, and the files that share them.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use foreswap_core::readahead::file::FilePage;
use foreswap_core::units::{Nanos, PAGE_SIZE};

use crate::CachedFile;
use crate::arena::Arena;
use crate::entry::MOST_FRAMES;
use crate::file::Inner;
use crate::frames::{FrameId, Frames, Pages, Use};
use crate::stats::{Counters, Stats};
use crate::store::{LocalFile, Options, Ring, Store};
use crate::waiters::Waiters;
use crate::writeback::Flusher;

/// The least budget: room for the transfers of a few threads.
const LEAST_BYTES: u64 = 1 << 20;

/// A page of a file of this cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageId {
    /// The file's number in the cache.
    pub file: u32,
    pub page: FilePage,
}

/// The files of a cache, by number.
#[derive(Debug, Default)]
pub struct Files(Vec<Option<Arc<Inner>>>);

impl Files {
    fn file(&self, page: PageId) -> Option<&Inner> {
        self.0.get(page.file as usize)?.as_deref()
    }
}

impl Pages<PageId> for Files {
    fn take_use(&mut self, page: PageId) -> Use {
        let entry = self.file(page).and_then(|file| file.map.get(page.page));
        entry.map_or(Use::None, |entry| entry.take_use())
    }

    fn evict(&mut self, page: PageId) -> bool {
        let entry = self.file(page).and_then(|file| file.map.get(page.page));
        entry.is_some_and(|entry| entry.evict().is_some())
    }
}

/// What a lock protects: which page is in which frame.
#[derive(Debug)]
pub struct Core {
    pub frames: Frames<PageId>,
    pub files: Files,
}

/// A cache, as its files and transfers share it.
#[derive(Debug)]
pub struct Shared {
    pub arena: Arena,
    core: Mutex<Core>,
    pub waiters: Waiters,
    pub counters: Counters,
    pub frames: u32,
    /// Pages that are dirty or being written.
    pub dirty: AtomicU64,
    pub flusher: Flusher,
    started: Instant,
}

/// The lock's content, whatever a thread that panicked under it has left: each change is complete by itself.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub fn core(&self) -> MutexGuard<'_, Core> {
        lock(&self.core)
    }

    /// The time since the cache was made.
    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// As [`Self::now`], in nanoseconds.
    pub fn nanos(&self) -> Nanos {
        self.now().as_nanos() as Nanos
    }

    /// A frame has no page any more.
    pub fn give_back(&self, frames: impl IntoIterator<Item = FrameId>) {
        let mut core = self.core();
        frames
            .into_iter()
            .for_each(|frame| core.frames.give_back(frame));
    }

    /// All files.
    pub fn files(&self) -> Vec<Arc<Inner>> {
        self.core().files.0.iter().flatten().cloned().collect()
    }

    /// A file has been closed, and no page of it is in memory.
    pub fn forget(&self, file: u32) {
        self.core().files.0[file as usize] = None;
    }
}

/// Memory of a fixed size for the pages of files.
///
/// A clone is the same cache. Its memory is given back when the last clone and the last of its files are dropped.
/// Neither a cache nor its files may be used in a forked child, which has no I/O thread.
#[derive(Clone, Debug)]
pub struct Cache {
    shared: Arc<Shared>,
    ring: Arc<Ring>,
}

impl Cache {
    /// A cache of so many bytes, in whole pages of 4 KiB; the tables for them take 1 % more. Memory is allocated as it
    /// is used.
    ///
    /// # Errors
    /// `InvalidInput` for less than 1 MiB or more than 1 TiB; otherwise the system's, when memory, threads or
    /// descriptors are exhausted.
    pub fn new(bytes: u64) -> io::Result<Self> {
        let frames = bytes / PAGE_SIZE as u64;
        if bytes < LEAST_BYTES || frames > MOST_FRAMES {
            let message = format!("a cache of {bytes} bytes: it should have 1 MiB to 1 TiB");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let frames = frames as u32;
        let shared = Arc::new(Shared {
            arena: Arena::new(frames)?,
            core: Mutex::new(Core {
                frames: Frames::new(frames),
                files: Files::default(),
            }),
            waiters: Waiters::default(),
            counters: Counters::default(),
            frames,
            dirty: AtomicU64::new(0),
            flusher: Flusher::default(),
            started: Instant::now(),
        });
        let ring = Ring::new()?;
        Ok(Cache { shared, ring })
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// As [`LocalFile::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<CachedFile> {
        self.open_with(path, Options::new())
    }

    /// Opens a file with options.
    ///
    /// A file that is open twice has two states in memory, which do not see each other's changes: share one
    /// [`CachedFile`] instead, by cloning it.
    ///
    /// # Errors
    /// As [`LocalFile::open`].
    pub fn open_with(&self, path: impl AsRef<Path>, options: Options) -> io::Result<CachedFile> {
        let file = LocalFile::open(path.as_ref(), options, &self.ring)?;
        self.open_store(Arc::new(file), options.writes())
    }

    /// A file whose bytes are in `store`.
    ///
    /// # Errors
    /// The store's, when it is asked for its size.
    pub fn open_store(&self, store: Arc<dyn Store>, writable: bool) -> io::Result<CachedFile> {
        let bytes = store.bytes()?;
        let mut core = self.shared.core();
        let files = &mut core.files.0;
        let free = files.iter().position(Option::is_none);
        let id = free.unwrap_or(files.len());
        let inner = Arc::new(Inner::new(id as u32, store, bytes, writable));
        match free {
            Some(at) => files[at] = Some(Arc::clone(&inner)),
            None => files.push(Some(Arc::clone(&inner))),
        }
        drop(core);
        Ok(CachedFile::of(Arc::clone(&self.shared), inner))
    }

    /// The thread that carries this cache's transfers, for a [`LocalFile`] below another store.
    pub fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.shared.frames) * PAGE_SIZE as u64
    }

    /// What it has done so far.
    pub fn stats(&self) -> Stats {
        Stats {
            dirty_pages: self.shared.dirty.load(Ordering::Relaxed),
            free_pages: self.shared.core().frames.free() as u64,
            ..self.shared.counters.sum()
        }
    }
}
