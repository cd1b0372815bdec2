//! Reads from the store: what readahead decided becomes transfers, and their ends become pages.
//!
//! The thread that misses a page reads it itself, with the pages right behind it, by one system call, if nothing else is
//! to be read. Otherwise all reads go to the I/O thread, that of the page first. A page that could not be read is absent
//! again: whoever needs it reads it alone and gets the error of that page and of no other.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foreswap_core::pipe::Started;
use foreswap_core::readahead::file::{Cached, FilePage, PageCache, Run};
use foreswap_core::units::PAGE_SIZE;
use foreswap_store::ring::{Direction, IoVec};

use crate::cache::{PageId, Shared};
use crate::file::Inner;
use crate::frames::FrameId;
use crate::store::{Done, Span};

const PAGE: u64 = PAGE_SIZE as u64;
/// Pages of the largest transfer: 512 KiB.
const TRANSFER: usize = 128;
/// Pages that a thread reads itself for the one that it needs: 128 KiB.
const OWN: usize = 32;

/// Absent pages that got frames, and wait for one transfer.
#[derive(Debug)]
pub struct Chunk {
    first: FilePage,
    frames: Vec<FrameId>,
}

/// The pages of a file, while readahead decides.
pub struct Loading<'a> {
    shared: &'a Shared,
    file: &'a Inner,
    pages: u64,
    pub chunks: Vec<Chunk>,
    /// No frame could be had.
    full: bool,
}

impl Cached for Loading<'_> {
    fn file_pages(&self) -> u64 {
        self.pages
    }

    fn has(&self, page: FilePage) -> bool {
        self.file
            .map
            .get(page)
            .is_some_and(|entry| entry.load().has_frame())
    }
}

impl PageCache for Loading<'_> {
    fn take_mark(&mut self, page: FilePage) -> bool {
        self.file
            .map
            .get(page)
            .is_some_and(|entry| entry.take_mark())
    }

    fn read(&mut self, run: &Run) {
        self.reserve(run.start, run.pages);
        // A page that is in memory already gets the mark, too: the stream will come by.
        if let Some(page) = run.mark() {
            self.file.map.entry(page).mark();
        }
    }
}

impl<'a> Loading<'a> {
    pub fn new(shared: &'a Shared, file: &'a Inner) -> Self {
        Loading {
            shared,
            file,
            pages: file.bytes().div_ceil(PAGE),
            chunks: Vec::new(),
            full: false,
        }
    }

    /// Gives frames to the absent pages of a run, until no frame can be had.
    pub fn reserve(&mut self, start: FilePage, pages: u64) {
        let end = start.0.saturating_add(pages).min(self.pages);
        let mut at = start.0;
        // The search for a frame is long where there is none, and a plan may have thousands of runs.
        while at < end && !self.full {
            let until = end.min(at + TRANSFER as u64);
            let mut core = self.shared.core();
            let core = &mut *core;
            for page in (at..until).map(FilePage) {
                let entry = self.file.map.entry(page);
                let state = entry.load();
                if state.has_frame() {
                    continue;
                }
                let id = self.file.id_of(page);
                let Some(frame) = core.frames.take(id, &mut core.files) else {
                    self.full = true;
                    return;
                };
                if entry.begin_fill(state, frame) {
                    self.add(page, frame);
                } else {
                    core.frames.give_back(frame);
                }
            }
            at = until;
        }
    }

    fn add(&mut self, page: FilePage, frame: FrameId) {
        if let Some(last) = self.chunks.last_mut()
            && last.end() == page
            && last.frames.len() < TRANSFER
        {
            last.frames.push(frame);
            return;
        }
        self.chunks.push(Chunk {
            first: page,
            frames: vec![frame],
        });
    }
}

impl Chunk {
    fn end(&self) -> FilePage {
        self.first.plus(self.frames.len() as u64)
    }

    fn bytes(&self) -> u64 {
        self.frames.len() as u64 * PAGE
    }

    fn span(&self, shared: &Shared) -> Span {
        Span::new(
            Direction::Read,
            self.first.0 * PAGE,
            pieces(shared, &self.frames),
        )
    }

    /// The transfer has ended: its pages are in memory, or absent again. `zeros`: what lies behind the bytes that were
    /// read is zero and not unknown.
    fn end_transfer(self, shared: &Shared, file: &Inner, result: &io::Result<u64>, zeros: bool) {
        let bytes = *result.as_ref().unwrap_or(&0);
        let mut failed = Vec::new();
        for (number, (page, frame)) in (self.first.0..).zip(&self.frames).enumerate() {
            let entry = file.map.entry(FilePage(page));
            let here = bytes.saturating_sub(number as u64 * PAGE).min(PAGE) as usize;
            if here == 0 && !(zeros && result.is_ok()) {
                failed.push(entry.fail_fill());
                continue;
            }
            if here < PAGE_SIZE {
                shared.arena.clear(*frame, here);
            }
            entry.end_fill(0);
        }
        let count = self.frames.len() as u64;
        shared
            .counters
            .transferred(&shared.counters.pages_read, count - failed.len() as u64);
        if !failed.is_empty() {
            shared.give_back(failed);
        }
        shared.waiters.wake(file.id_of(self.first), count);
    }

    /// Leaves the read to the I/O thread. `awaited`: a program waits for it.
    fn start(self, shared: &Arc<Shared>, file: &Arc<Inner>, awaited: bool) {
        let span = self.span(shared).awaited(awaited);
        let started = file.pipe().on_start(shared.nanos());
        let (shared, file_too) = (Arc::clone(shared), Arc::clone(file));
        let done = Done::new(move |result| {
            note(&shared, &file_too, started, &result);
            self.end_transfer(&shared, &file_too, &result, false);
        });
        file.store.start(span, done);
    }

    /// Reads here and now.
    fn carry_out(self, shared: &Shared, file: &Inner) -> io::Result<()> {
        let started = file.pipe().on_start(shared.nanos());
        let result = file.store.carry_out(&self.span(shared));
        note(shared, file, started, &result);
        let ends = matches!(&result, Ok(bytes) if *bytes < self.bytes());
        let noticed = if ends {
            file.on_short_read(self.end())
        } else {
            Ok(())
        };
        let result = noticed.and(result);
        self.end_transfer(shared, file, &result, true);
        result.map(|_| ())
    }
}

fn note(shared: &Shared, file: &Inner, started: Started, result: &io::Result<u64>) {
    let bytes = *result.as_ref().unwrap_or(&0);
    file.pipe().on_end(started, shared.nanos(), bytes);
}

/// Frames in succession as one piece each.
pub fn pieces(shared: &Shared, frames: &[FrameId]) -> Vec<IoVec> {
    let mut pieces: Vec<IoVec> = Vec::new();
    for &frame in frames {
        let ptr = shared.arena.address(frame);
        match pieces.last_mut() {
            Some(last) if last.ptr.wrapping_add(last.len) == ptr => last.len += PAGE_SIZE,
            _ => pieces.push(IoVec {
                ptr,
                len: PAGE_SIZE,
            }),
        }
    }
    pieces
}

/// Starts all reads, first that of `needed`: what comes before it in the store's queue delays it. If it is the only one
/// and short, this thread makes it. Its error is returned if it is that of this page alone.
pub fn begin(
    shared: &Arc<Shared>,
    file: &Arc<Inner>,
    mut chunks: Vec<Chunk>,
    needed: Option<FilePage>,
) -> io::Result<()> {
    let own = needed.and_then(|page| chunks.iter().position(|chunk| chunk.first == page));
    if let Some(at) = own {
        let pages = chunks[at].frames.len();
        if chunks.len() == 1 && pages <= OWN {
            let result = chunks.remove(at).carry_out(shared, file);
            // If it is not alone, the page is absent after an error, and the next attempt is for it alone.
            return if pages == 1 { result } else { Ok(()) };
        }
        let mut own = chunks.remove(at);
        if own.frames.len() > OWN {
            let frames = own.frames.split_off(OWN);
            let first = own.end();
            chunks.insert(at, Chunk { first, frames });
        }
        own.start(shared, file, true);
    }
    chunks
        .into_iter()
        .for_each(|chunk| chunk.start(shared, file, false));
    Ok(())
}

/// Reads one page alone. Does nothing if the page is in memory or on its way, or if there is no frame at the moment.
pub fn alone(shared: &Arc<Shared>, file: &Arc<Inner>, page: FilePage) -> io::Result<()> {
    let mut loading = Loading::new(shared, file);
    loading.reserve(page, 1);
    let chunks = std::mem::take(&mut loading.chunks);
    begin(shared, file, chunks, Some(page))
}

impl Inner {
    /// The page's name in the cache.
    pub fn id_of(&self, page: FilePage) -> PageId {
        PageId {
            file: self.id,
            page,
        }
    }

    /// A read ended before the page `end`. The file ends there, or there is a hole that writes have left in front of
    /// pages that are not written yet, or others have cut the file.
    fn on_short_read(&self, end: FilePage) -> io::Result<()> {
        let now = self.store.bytes()?;
        let known = self.stored.load(Ordering::Acquire);
        if now < known.min(end.0 * PAGE) {
            self.was_cut(now);
        }
        Ok(())
    }
}
