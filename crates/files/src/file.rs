//! An open file, and its reads.
//!
//! A read copies page after page out of the frames, by the protocol of [`crate::entry`]. Only a page that is absent, on
//! its way, or marked by readahead takes the slow path: the file's lock, under which the policy decides.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

use foreswap_core::pipe::Pipe;
use foreswap_core::readahead::file::{
    Event, FilePage, Limits, OpenFile, PageCache, Pattern, Policy, Reading, Run,
};
use foreswap_core::units::PAGE_SIZE;

use crate::cache::{Cache, Shared, lock};
use crate::entry::{BUSY, DIRTY, MARK, PRESENT, WRITEBACK};
use crate::load::{self, Loading};
use crate::map::Map;
use crate::store::Store;
use crate::writeback::Writing;

const PAGE: u64 = PAGE_SIZE as u64;
/// The cache of a file that is opened without one: 64 MiB.
const OWN_CACHE: u64 = 64 << 20;
/// What is read ahead of a stream of which nothing is known: 4 MiB.
const LEAST_AHEAD: u64 = 4 << 20;
/// A stream's window has at least this many pages: 128 KiB.
const LEAST_WINDOW: u64 = 32;
/// All windows together have at most this part of the cache.
const WINDOWS: u64 = 4;

/// An open file, as its handles and transfers share it.
#[derive(Debug)]
pub struct Inner {
    pub id: u32,
    pub map: Map,
    pub store: Arc<dyn Store>,
    pub writable: bool,
    /// Its size for reads, in bytes.
    bytes: AtomicU64,
    /// Where write-back ends, in bytes. Ahead of `bytes` while a write extends the file: pages that it has written already
    /// must not be cut at the old size, and then count as clean.
    writes_end: AtomicU64,
    /// The size that the store is known to have. Less than `bytes` while pages at the end are not written yet.
    pub stored: AtomicU64,
    /// Writes share it; who changes the size has it alone.
    pub size: RwLock<()>,
    /// Dirty pages that are not being written.
    pub dirty: Mutex<BTreeSet<u64>>,
    pub writing: Writing,
    ahead: Mutex<OpenFile>,
    pipe: Mutex<Pipe>,
}

impl Inner {
    pub fn new(id: u32, store: Arc<dyn Store>, bytes: u64, writable: bool) -> Self {
        Inner {
            id,
            map: Map::default(),
            store,
            writable,
            bytes: AtomicU64::new(bytes),
            writes_end: AtomicU64::new(bytes),
            stored: AtomicU64::new(bytes),
            size: RwLock::default(),
            dirty: Mutex::default(),
            writing: Writing::default(),
            ahead: Mutex::new(OpenFile::new(Policy::Streams, Limits::default())),
            pipe: Mutex::new(Pipe::new(LEAST_AHEAD)),
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    pub fn pipe(&self) -> MutexGuard<'_, Pipe> {
        lock(&self.pipe)
    }

    /// Where write-back ends.
    pub fn writes_end(&self) -> u64 {
        self.writes_end.load(Ordering::Acquire)
    }

    /// A write is about to extend the file to this size.
    pub fn begin_growth(&self, bytes: u64) {
        self.writes_end.fetch_max(bytes, Ordering::AcqRel);
    }

    /// The size is at least this from now on.
    pub fn grow_to(&self, bytes: u64) {
        self.begin_growth(bytes);
        self.bytes.fetch_max(bytes, Ordering::AcqRel);
    }

    /// The size is this from now on.
    pub fn resize(&self, bytes: u64) {
        self.writes_end.store(bytes, Ordering::Release);
        self.bytes.store(bytes, Ordering::Release);
    }

    /// The store holds fewer bytes than it did: others have cut the file. Dirty pages are still of the file, which they
    /// extend again when they are written.
    pub fn was_cut(&self, bytes: u64) {
        self.stored.store(bytes, Ordering::Release);
        let last = lock(&self.dirty).last().copied();
        let dirty_end = last.map_or(0, |page| (page + 1) * PAGE);
        self.resize(bytes.max(dirty_end.min(self.bytes())));
    }
}

/// The last handle of a file.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    file: Arc<Inner>,
}

/// A file that is read and written through a [`Cache`].
///
/// All methods take `&self` and can be called by many threads. A clone is the same file. When the last clone is dropped,
/// dirty pages are written; errors of that are lost, so call [`CachedFile::sync`] before.
#[derive(Clone, Debug)]
pub struct CachedFile(Arc<Handle>);

thread_local! {
    /// The page that this thread used last: its file's number and its own.
    static LAST: Cell<(u32, u64)> = const { Cell::new((u32::MAX, u64::MAX)) };
}

/// Whether the thread used another page since its last use of this one.
fn is_apart(file: u32, page: FilePage) -> bool {
    LAST.with(|last| last.replace((file, page.0)) != (file, page.0))
}

/// The part of a page that a request of `left` bytes at `offset` covers: the page, its first byte, and the bytes.
pub fn part(offset: u64, left: usize) -> (FilePage, usize, usize) {
    let at = (offset % PAGE) as usize;
    (FilePage::of(offset), at, left.min(PAGE_SIZE - at))
}

/// The slow part of one read: what the policy has seen of it. Dropped, it tells the policy the end.
struct Slow<'a> {
    file: &'a CachedFile,
    reading: Option<Reading>,
    /// Bytes of the file at the beginning of the read.
    size: u64,
}

impl CachedFile {
    pub(crate) fn of(shared: Arc<Shared>, file: Arc<Inner>) -> Self {
        CachedFile(Arc::new(Handle { shared, file }))
    }

    pub(crate) fn parts(&self) -> (&Arc<Shared>, &Arc<Inner>) {
        (&self.0.shared, &self.0.file)
    }

    /// Opens a file for reading, with a cache of 64 MiB of its own. Use [`Cache::open`] for several files, and
    /// [`Cache::open_with`] to write.
    ///
    /// # Errors
    /// As [`Cache::new`] and [`Cache::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Cache::new(OWN_CACHE)?.open(path)
    }

    /// The size of the file in bytes, as far as it is known here.
    pub fn len(&self) -> u64 {
        self.0.file.bytes()
    }

    /// The file has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads bytes from `offset` on, and returns how many: fewer than asked for only if the file ends.
    ///
    /// If others change the file meanwhile, pages in memory stay as they are. If others extend it, a read that reaches
    /// the end as it was sees the new one. If others cut it, reads of pages that are not in memory end there.
    ///
    /// # Errors
    /// That of the page that could not be read; bytes before it are lost. Pages beside it are not affected.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut size = self.0.file.bytes();
        if offset.saturating_add(buffer.len() as u64) > size {
            size = self.look_for_growth()?;
        }
        let mut slow = Slow {
            file: self,
            reading: None,
            size,
        };
        let (mut done, mut missed) = (0, 0);
        while done < buffer.len() {
            let at = offset + done as u64;
            let left = usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX);
            if left == 0 {
                break;
            }
            let (page, from, bytes) = part(at, left.min(buffer.len() - done));
            let left = (buffer.len() - done - bytes) as u64;
            let target = &mut buffer[done..done + bytes];
            if !self.copy(page, from, target) {
                missed += 1;
                slow.read(page, from, target, left)?;
                // It may be this miss that found the file cut.
                size = size.min(self.0.file.bytes());
            }
            done += bytes.min(usize::try_from(size.saturating_sub(at)).unwrap_or(usize::MAX));
        }
        let pages = (offset % PAGE + done as u64).div_ceil(PAGE);
        self.0.shared.counters.hits(pages.saturating_sub(missed));
        Ok(done)
    }

    /// Fills the buffer.
    ///
    /// # Errors
    /// As [`CachedFile::read_at`]; `UnexpectedEof` if the file ends before.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match self.read_at(buffer, offset)? {
            bytes if bytes == buffer.len() => Ok(()),
            _ => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    /// Reads into several buffers in order, as [`CachedFile::read_at`] into one.
    ///
    /// # Errors
    /// As [`CachedFile::read_at`].
    pub fn read_vectored_at(
        &self,
        buffers: &mut [IoSliceMut<'_>],
        offset: u64,
    ) -> io::Result<usize> {
        let mut done = 0;
        for buffer in buffers {
            let bytes = self.read_at(buffer, offset + done as u64)?;
            done += bytes;
            if bytes < buffer.len() {
                break;
            }
        }
        Ok(done)
    }

    /// How the file will be read: in order (windows of twice the size), in no order (no readahead), or not said.
    pub fn advise(&self, pattern: Pattern) {
        lock(&self.0.file.ahead).advise(pattern);
    }

    /// Starts to read these bytes, as far as frames are free for them, and does not wait.
    pub fn prefetch(&self, bytes: Range<u64>) {
        let (shared, file) = self.parts();
        let first = FilePage::of(bytes.start);
        let pages = bytes.end.div_ceil(PAGE).saturating_sub(first.0);
        let mut loading = Loading::new(shared, file);
        loading.read(&Run::plain(first, pages.min(u64::from(shared.frames) / 2)));
        let chunks = loading.chunks;
        // Nobody waits, so there is no error to report: who needs a page that failed reads it again.
        let _ = load::begin(shared, file, chunks, None);
    }

    /// Removes all pages of the file from memory that are clean and not in use, as after others have changed it.
    pub fn evict(&self) {
        self.evict_from(FilePage(0));
    }

    fn evict_from(&self, first: FilePage) {
        let (shared, file) = self.parts();
        let evicted: Vec<_> = file
            .map
            .from(first)
            .filter_map(|(_, entry)| entry.evict())
            .collect();
        shared.give_back(evicted);
    }

    /// Asks the store for the size, since a read goes beyond the one that is known.
    fn look_for_growth(&self) -> io::Result<u64> {
        let file = &self.0.file;
        let now = file.store.bytes()?;
        if now > file.stored.load(Ordering::Acquire) {
            let _alone = file
                .size
                .write()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            let before = file.stored.swap(now, Ordering::AcqRel);
            // Pages behind the old end are zeros here.
            self.evict_from(FilePage::of(before));
            file.grow_to(now);
        }
        Ok(file.bytes())
    }

    /// Copies from a page in memory. False if the page is not there, or has a mark.
    #[inline]
    fn copy(&self, page: FilePage, from: usize, to: &mut [u8]) -> bool {
        let (shared, file) = (&self.0.shared, &self.0.file);
        let Some(entry) = file.map.get(page) else {
            return false;
        };
        loop {
            let state = entry.load();
            if !state.is_readable() || state.is(MARK) {
                return false;
            }
            shared.arena.copy_out(state.frame(), from, to);
            if entry.still(state) {
                entry.note_use(state, is_apart(file.id, page));
                return true;
            }
        }
    }
}

impl Slow<'_> {
    /// Copies from a page that is not there, or has a mark; nothing if the file has been cut before the page. `left`:
    /// bytes of the request behind this page.
    fn read(&mut self, page: FilePage, from: usize, to: &mut [u8], left: u64) -> io::Result<()> {
        let (shared, file) = self.file.parts();
        let mut counted = false;
        loop {
            let state = file.map.entry(page).load();
            if !state.is_readable() || state.is(MARK) {
                if state.is(PRESENT | BUSY) {
                    // A writer copies at most a page.
                    std::thread::yield_now();
                    continue;
                }
                if !state.has_frame() && page.0 * PAGE >= file.bytes() {
                    return Ok(());
                }
                if !state.is(PRESENT) && !std::mem::replace(&mut counted, true) {
                    shared.counters.miss();
                }
                // A mark is acted upon before its page arrives: what comes next is on its way a latency earlier.
                if state.is(BUSY) && !state.is(MARK) {
                    let is_over = || !file.map.entry(page).load().is(BUSY);
                    shared.waiters.wait(file.id_of(page), is_over);
                } else {
                    self.decide(page, from, to.len() as u64 + left)?;
                }
                continue;
            }
            if self.file.copy(page, from, to) {
                return Ok(());
            }
        }
    }

    /// Lets the policy decide about a page, and starts what it wants; waits for the page if it was absent.
    fn decide(&mut self, page: FilePage, from: usize, left: u64) -> io::Result<()> {
        let (shared, file) = self.file.parts();
        let mut loading = Loading::new(shared, file);
        {
            let mut ahead = lock(&file.ahead);
            let limits = limits(shared, file, ahead.streams());
            ahead.set_limits(limits);
            let offset = page.0 * PAGE + from as u64;
            let reading = self
                .reading
                .get_or_insert_with(|| ahead.begin(offset, left, self.size));
            while let Some(at) = ahead.read(reading, &mut loading) {
                if at >= page {
                    break;
                }
            }
        }
        let chunks = std::mem::take(&mut loading.chunks);
        load::begin(shared, file, chunks, Some(page))?;
        let state = file.map.entry(page).load();
        if !state.has_frame() {
            load::alone(shared, file, page)?;
            if !file.map.entry(page).load().has_frame() {
                self.file.wait_for_frames()?;
            }
        }
        // Whoever else took the mark acts on it.
        file.map.entry(page).take_mark();
        Ok(())
    }
}

/// The largest window of one stream.
fn limits(shared: &Shared, file: &Inner, streams: u64) -> Limits {
    let window = file.pipe().window() / PAGE;
    let most = u64::from(shared.frames) / WINDOWS;
    let max = (window.min(most) / streams).clamp(LEAST_WINDOW.min(most), most);
    Limits {
        max,
        device: max.max(256).min(most),
    }
}

impl Drop for Slow<'_> {
    fn drop(&mut self) {
        let Some(reading) = &mut self.reading else {
            return;
        };
        let (shared, file) = self.file.parts();
        let mut loading = Loading::new(shared, file);
        let mut ahead = lock(&file.ahead);
        while let Some(event) = reading.next(&mut loading) {
            if let Event::Approach(_) | Event::Mark(_) | Event::End { .. } = event {
                let plan = ahead.decide(reading, &loading, event);
                plan.runs().for_each(|run| loading.read(&run));
            }
        }
        drop(ahead);
        let _ = load::begin(shared, file, loading.chunks, None);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        crate::writeback::on_close(&self.shared, &self.file);
        // Transfers in flight and the flusher may still own pages for a moment.
        let mut frames = Vec::new();
        for (page, entry) in self.file.map.from(FilePage(0)) {
            while entry.load().has_frame() {
                match entry.discard() {
                    Some(state) => {
                        frames.push(state.frame());
                        if state.is(DIRTY) {
                            self.shared.dirty.fetch_sub(1, Ordering::Relaxed);
                        }
                    }
                    None => self.shared.waiters.wait(self.file.id_of(page), || {
                        let state = entry.load();
                        !state.is(BUSY) && !state.is(WRITEBACK)
                    }),
                }
            }
        }
        self.shared.give_back(frames);
        self.shared.forget(self.file.id);
    }
}
