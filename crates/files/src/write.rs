//! Writes: to pages in memory, which become dirty.

use std::io;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use foreswap_core::readahead::file::FilePage;
use foreswap_core::units::PAGE_SIZE;

use crate::CachedFile;
use crate::cache::lock;
use crate::entry::{BUSY, DIRTY, PRESENT, WRITEBACK};
use crate::file::part;
use crate::load;
use crate::map::MOST_PAGES;
use crate::writeback::{background, hard};

const PAGE: u64 = PAGE_SIZE as u64;
/// What a map can hold. Less than the largest offset of Linux.
const MOST_BYTES: u64 = MOST_PAGES * PAGE;

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

impl CachedFile {
    /// Writes all of `bytes` from `offset` on, to memory. A write behind the end extends the file; bytes between are
    /// zero. The store gets them later, or by [`CachedFile::sync`]. A reader sees each page either before or after the
    /// write, never a mixture.
    ///
    /// # Errors
    /// `PermissionDenied` if the file was opened for reading only, `InvalidInput` if it would become too long, the error
    /// of reading a page of which only a part is written, and, when memory is full of dirty pages, the error of writing
    /// them. Pages before the one that failed are written.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let end = offset
            .checked_add(bytes.len() as u64)
            .filter(|end| *end <= MOST_BYTES);
        let Some(end) = end else {
            return Err(invalid(format!(
                "a write of {} bytes at {offset}: a file ends at {MOST_BYTES}",
                bytes.len()
            )));
        };
        self.check_writable()?;
        let (_, file) = self.parts();
        let shares = file.size.read().unwrap_or_else(PoisonError::into_inner);
        if end <= file.bytes() {
            return self.write_pages(bytes, offset);
        }
        drop(shares);
        let _alone = file.size.write().unwrap_or_else(PoisonError::into_inner);
        file.begin_growth(end);
        let written = self.write_pages(bytes, offset);
        // What a failed write has left behind the end is not of the file.
        file.resize(if written.is_ok() {
            end.max(file.bytes())
        } else {
            file.bytes()
        });
        written
    }

    /// Cuts the file or extends it with zeros, in memory and in the store.
    ///
    /// # Errors
    /// As [`CachedFile::write_at`], and the store's.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        if bytes > MOST_BYTES {
            return Err(invalid(format!(
                "a length of {bytes} bytes: a file ends at {MOST_BYTES}"
            )));
        }
        self.check_writable()?;
        let (_, file) = self.parts();
        let _alone = file.size.write().unwrap_or_else(PoisonError::into_inner);
        let before = file.bytes();
        if bytes < before {
            let (page, from, _) = part(bytes, 0);
            if from > 0 {
                self.write_page(page, from, &[0; PAGE_SIZE][from..])?;
            }
            // From here on no write-back of a page behind the end begins.
            file.resize(bytes);
            self.discard_from(FilePage(bytes.div_ceil(PAGE)));
            self.settle(page);
        }
        file.store.set_bytes(bytes)?;
        file.stored.store(bytes, Ordering::Release);
        file.resize(bytes);
        Ok(())
    }

    /// Writes all dirty pages of the file, and waits until they, and everything written before, survive a crash of the
    /// machine.
    ///
    /// # Errors
    /// The first error of a write since the last sync, also of one in the background. The pages that could not be
    /// written stay dirty in memory, and the next sync tries again.
    pub fn sync(&self) -> io::Result<()> {
        let (shared, file) = self.parts();
        file.sync(shared)
    }

    fn check_writable(&self) -> io::Result<()> {
        match self.parts().1.writable {
            true => Ok(()),
            false => Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "the file is open for reading only: open it with Options::new().write(true)",
            )),
        }
    }

    fn write_pages(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let (page, at, count) = part(offset + done as u64, bytes.len() - done);
            self.throttle()?;
            self.write_page(page, at, &bytes[done..done + count])?;
            done += count;
        }
        Ok(())
    }

    /// Wakes the background thread, and waits if too much is dirty.
    fn throttle(&self) -> io::Result<()> {
        let (shared, file) = self.parts();
        if shared.dirty.load(Ordering::Relaxed) <= background(shared.frames) {
            return Ok(());
        }
        shared.flusher.kick(shared);
        while shared.dirty.load(Ordering::Relaxed) > hard(shared.frames) {
            if let Some(error) = file.writing.error() {
                return Err(error);
            }
            shared.flusher.kick(shared);
            shared.flusher.wait_a_moment();
        }
        Ok(())
    }

    /// No frame could be had: the pages in memory are dirty, or transfers own them.
    pub(crate) fn wait_for_frames(&self) -> io::Result<()> {
        let (shared, file) = self.parts();
        if shared.dirty.load(Ordering::Relaxed) > background(shared.frames) {
            shared.flusher.kick(shared);
            if let Some(error) = file.writing.error() {
                return Err(error);
            }
        }
        shared.flusher.wait_a_moment();
        Ok(())
    }

    /// Writes to one page.
    fn write_page(&self, page: FilePage, at: usize, bytes: &[u8]) -> io::Result<()> {
        let (shared, file) = self.parts();
        let entry = file.map.entry(page);
        loop {
            let state = entry.load();
            if state.is_readable() && !state.is(WRITEBACK) {
                if !entry.begin_write(state) {
                    continue;
                }
                shared.arena.copy_in(state.frame(), at, bytes);
                if !state.is(DIRTY) {
                    file.add_dirty(shared, page);
                }
                entry.end_write(DIRTY);
                entry.note_use(entry.load(), true);
                return Ok(());
            }
            if state.is(PRESENT | BUSY) {
                std::thread::yield_now();
            } else if state.has_frame() {
                let is_over = || !entry.load().is(BUSY) && !entry.load().is(WRITEBACK);
                shared.waiters.wait(file.id_of(page), is_over);
            } else if bytes.len() == PAGE_SIZE
                || page.0 * PAGE >= file.stored.load(Ordering::Acquire)
            {
                if self.write_new(page, at, bytes)? {
                    return Ok(());
                }
            } else {
                load::alone(shared, file, page)?;
                if !entry.load().has_frame() {
                    self.wait_for_frames()?;
                }
            }
        }
    }

    /// Writes to a page that is absent and of which the store has nothing that stays. False if it is absent no more.
    fn write_new(&self, page: FilePage, at: usize, bytes: &[u8]) -> io::Result<bool> {
        let (shared, file) = self.parts();
        let entry = file.map.entry(page);
        let state = entry.load();
        if state.has_frame() {
            return Ok(false);
        }
        let frame = {
            let mut core = shared.core();
            let core = &mut *core;
            let frame = core.frames.take(file.id_of(page), &mut core.files);
            match frame {
                Some(frame) if !entry.begin_fill(state, frame) => {
                    core.frames.give_back(frame);
                    return Ok(false);
                }
                frame => frame,
            }
        };
        let Some(frame) = frame else {
            self.wait_for_frames()?;
            return Ok(false);
        };
        if bytes.len() < PAGE_SIZE {
            shared.arena.clear(frame, 0);
        }
        shared.arena.copy_in(frame, at, bytes);
        file.add_dirty(shared, page);
        entry.end_fill(DIRTY);
        shared.waiters.wake(file.id_of(page), 1);
        Ok(true)
    }

    /// Pages from `first` on are no longer of the file.
    fn discard_from(&self, first: FilePage) {
        let (shared, file) = self.parts();
        let mut frames = Vec::new();
        for (page, entry) in file.map.from(first) {
            while entry.load().has_frame() {
                let Some(state) = entry.discard() else {
                    self.settle(page);
                    continue;
                };
                frames.push(state.frame());
                if lock(&file.dirty).remove(&page.0) {
                    shared.dirty.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        shared.give_back(frames);
    }

    /// Waits until no transfer has the page.
    fn settle(&self, page: FilePage) {
        let (shared, file) = self.parts();
        let entry = file.map.entry(page);
        let is_over = || !entry.load().is(BUSY) && !entry.load().is(WRITEBACK);
        shared.waiters.wait(file.id_of(page), is_over);
    }
}
