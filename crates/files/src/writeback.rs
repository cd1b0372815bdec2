//! When dirty pages are written, and how.
//!
//! In the order of the file, up to 1 MiB at once. A background thread begins when an eighth of the frames is dirty, or
//! pages have been dirty for half a minute. A write waits when half of the frames are dirty, so that there are always
//! clean pages to evict. A page that is being written does not change until the transfer has ended: the store never gets
//! a mixture of two states of it.
//!
//! A page whose write failed is dirty again, and the error is kept for the next sync.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use foreswap_core::readahead::file::FilePage;
use foreswap_core::units::PAGE_SIZE;
use foreswap_store::ring::Direction;

use crate::cache::{Shared, lock};
use crate::entry::DIRTY;
use crate::file::Inner;
use crate::frames::FrameId;
use crate::load::pieces;
use crate::store::{Done, Span};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages of the largest transfer: 1 MiB.
const TRANSFER: usize = 256;
/// Pages are written at this age at the latest, or at twice this age.
const OLD: Duration = Duration::from_secs(15);
/// The wait after a failure.
const RETRY: Duration = Duration::from_millis(100);

/// From this many dirty pages on they are written in the background.
pub const fn background(frames: u32) -> u64 {
    frames as u64 / 8
}

/// From this many dirty pages on writes wait.
pub const fn hard(frames: u32) -> u64 {
    frames as u64 / 2
}

/// Transfers of a file to its store, and what became of them.
#[derive(Debug, Default)]
pub struct Writing {
    state: Mutex<WritingState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct WritingState {
    in_flight: u64,
    error: Option<io::Error>,
}

/// An error that can be returned more than once.
fn copy_of(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}

impl Writing {
    fn wait(&self) {
        let mut state = lock(&self.state);
        while state.in_flight > 0 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// The error that the next sync will return.
    pub fn error(&self) -> Option<io::Error> {
        lock(&self.state).error.as_ref().map(copy_of)
    }

    fn take_error(&self) -> io::Result<()> {
        lock(&self.state).error.take().map_or(Ok(()), Err)
    }
}

/// Pages in succession whose write-back has begun.
struct Batch {
    first: u64,
    frames: Vec<FrameId>,
}

impl Inner {
    /// A page becomes dirty. Before its state says so.
    pub fn add_dirty(&self, shared: &Shared, page: FilePage) {
        if lock(&self.dirty).insert(page.0) {
            shared.dirty.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Begins write-back of the first dirty pages from `from` on. Pages that a writer has at this moment are left out.
    fn take_batch(&self, from: u64) -> Option<Batch> {
        let mut dirty = lock(&self.dirty);
        let mut batch: Option<Batch> = None;
        for &page in dirty.range(from..) {
            match &mut batch {
                Some(batch) if batch.first + batch.frames.len() as u64 != page => break,
                Some(batch) if batch.frames.len() == TRANSFER => break,
                _ => {}
            }
            match (self.map.entry(FilePage(page)).begin_writeback(), &mut batch) {
                (Some(state), Some(batch)) => batch.frames.push(state.frame()),
                (Some(state), None) => {
                    batch = Some(Batch {
                        first: page,
                        frames: vec![state.frame()],
                    });
                }
                (None, Some(_)) => break,
                (None, None) => {}
            }
        }
        let batch = batch?;
        for page in (batch.first..).take(batch.frames.len()) {
            dirty.remove(&page);
        }
        lock(&self.writing.state).in_flight += 1;
        Some(batch)
    }

    /// Starts to write dirty pages, up to `most`. Returns how many.
    pub fn write_back(self: &Arc<Self>, shared: &Arc<Shared>, most: u64) -> u64 {
        let (mut count, mut from) = (0, 0);
        while count < most
            && let Some(batch) = self.take_batch(from)
        {
            let pages = batch.frames.len() as u64;
            from = batch.first + pages;
            count += pages;
            batch.start(shared, self);
        }
        count
    }

    /// Writes all pages that are dirty now, and waits.
    fn write_all(self: &Arc<Self>, shared: &Arc<Shared>) {
        self.write_back(shared, u64::MAX);
        // What is left has a writer, which may have begun before the data that is to be written came.
        let left: Vec<u64> = lock(&self.dirty).iter().copied().collect();
        for page in left {
            let entry = self.map.entry(FilePage(page));
            while entry.load().is(DIRTY) {
                match self.take_batch(page) {
                    Some(batch) => batch.start(shared, self),
                    None => std::thread::yield_now(),
                }
            }
        }
        self.writing.wait();
    }

    /// Writes everything, and makes it survive a crash of the machine.
    pub fn sync(self: &Arc<Self>, shared: &Arc<Shared>) -> io::Result<()> {
        self.write_all(shared);
        let synced = self.store.sync();
        self.writing.take_error().and(synced)
    }
}

impl Batch {
    fn start(self, shared: &Arc<Shared>, file: &Arc<Inner>) {
        // After the pages were taken: whoever cuts the file changes the size first and then waits for them.
        let size = file.writes_end();
        let offset = self.first * PAGE;
        let whole = self.frames.len() as u64 * PAGE;
        let bytes = size.saturating_sub(offset).min(whole);
        let in_tail = bytes % PAGE;
        let mut parts = Vec::new();
        let full = (bytes / PAGE) as usize;
        if full > 0 {
            parts.push(Span::new(
                Direction::Write,
                offset,
                pieces(shared, &self.frames[..full]),
            ));
        }
        if in_tail > 0 {
            let mut tail = pieces(shared, &self.frames[full..=full]);
            tail[0].len = in_tail as usize;
            parts.push(Span::new(
                Direction::Write,
                offset + full as u64 * PAGE,
                tail,
            ));
        }
        let flight = Arc::new(Flight {
            shared: Arc::clone(shared),
            file: Arc::clone(file),
            end: offset + bytes,
            batch: self,
            error: Mutex::default(),
        });
        for span in parts {
            let flight = Arc::clone(&flight);
            file.store.start(
                span,
                Done::new(move |result| {
                    if let Err(error) = result {
                        lock(&flight.error).get_or_insert(error);
                    }
                }),
            );
        }
    }
}

/// A batch on its way. It has ended when the last of its transfers drops it.
struct Flight {
    shared: Arc<Shared>,
    file: Arc<Inner>,
    end: u64,
    batch: Batch,
    error: Mutex<Option<io::Error>>,
}

impl Drop for Flight {
    fn drop(&mut self) {
        let (shared, file) = (&self.shared, &self.file);
        let error = lock(&self.error).take();
        let count = self.batch.frames.len() as u64;
        let pages = self.batch.first..self.batch.first + count;
        if error.is_none() {
            file.stored.fetch_max(self.end, Ordering::AcqRel);
            shared.dirty.fetch_sub(count, Ordering::Relaxed);
        } else {
            lock(&file.dirty).extend(pages.clone());
        }
        let bits = if error.is_some() { DIRTY } else { 0 };
        for page in pages {
            file.map.entry(FilePage(page)).end_writeback(bits);
        }
        shared
            .counters
            .transferred(&shared.counters.pages_written, count);
        shared
            .waiters
            .wake(file.id_of(FilePage(self.batch.first)), count);
        let mut state = lock(&file.writing.state);
        state.in_flight -= 1;
        if error.is_some() {
            state.error = error;
        }
        drop(state);
        file.writing.changed.notify_all();
        shared.flusher.announce();
    }
}

/// The last handle of a file is dropped.
pub fn on_close(shared: &Arc<Shared>, file: &Arc<Inner>) {
    file.write_all(shared);
}

/// The background thread of a cache, started by the first write.
#[derive(Debug, Default)]
pub struct Flusher {
    bell: Arc<Bell>,
    started: OnceLock<()>,
}

#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<Rung>,
    /// For the thread.
    wanted: Condvar,
    /// For writers that wait.
    written: Condvar,
}

#[derive(Debug, Default)]
struct Rung {
    wanted: bool,
    closed: bool,
}

impl Flusher {
    /// Dirty pages are to be written.
    pub fn kick(&self, shared: &Arc<Shared>) {
        self.started.get_or_init(|| {
            let (bell, cache) = (Arc::clone(&self.bell), Arc::downgrade(shared));
            let thread = std::thread::Builder::new().name("foreswap-flush".to_owned());
            // Without the thread, writers at the hard watermark write themselves.
            let _ = thread.spawn(move || run(&bell, &cache));
        });
        lock(&self.bell.rung).wanted = true;
        self.bell.wanted.notify_one();
    }

    fn announce(&self) {
        self.bell.written.notify_all();
    }

    /// Waits a moment for pages to become clean.
    pub fn wait_a_moment(&self) {
        let rung = lock(&self.bell.rung);
        let _ = self
            .bell
            .written
            .wait_timeout(rung, Duration::from_millis(5));
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        lock(&self.bell.rung).closed = true;
        self.bell.wanted.notify_one();
    }
}

fn run(bell: &Bell, cache: &Weak<Shared>) {
    loop {
        let mut rung = lock(&bell.rung);
        let mut old = false;
        while !rung.wanted && !rung.closed && !old {
            let waited = bell
                .wanted
                .wait_timeout(rung, OLD)
                .unwrap_or_else(PoisonError::into_inner);
            (rung, old) = (waited.0, waited.1.timed_out());
        }
        if rung.closed {
            return;
        }
        rung.wanted = false;
        drop(rung);
        let Some(shared) = cache.upgrade() else {
            return;
        };
        flush(&shared, old);
    }
}

/// Writes until less than the background watermark is dirty; everything if it is old.
fn flush(shared: &Arc<Shared>, everything: bool) {
    let target = if everything {
        0
    } else {
        background(shared.frames) / 2
    };
    for file in shared.files() {
        let dirty = shared.dirty.load(Ordering::Relaxed);
        if dirty <= target {
            return;
        }
        file.write_back(shared, dirty - target);
        file.writing.wait();
        if file.writing.error().is_some() {
            std::thread::sleep(RETRY);
        }
    }
}
