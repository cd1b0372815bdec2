//! Encrypted areas behind the same interface as others: writes are encrypted before they go to the file, reads are
//! decrypted before they are reported.
//!
//! A write never encrypts in place: the frame's page may be needed again while the write is in progress. Its ciphertext
//! goes to buffers that the write owns until it has ended; if there are none, the queue is full. A read is decrypted where
//! it was read to, which nobody sees before its completion. Helpers do both for large pieces, as they hash others; small
//! ones are done on the caller's thread.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

use super::helpers::{LARGE, Task};
use super::ram::{PAGE, WithRam};
use super::{Completion, Direction, Io, IoError, IoVec, QueueError};
use crate::far::Runs;
use crate::seal::SealedArea;

/// Pages of the buffers: four large writes, which keep a disk busy.
pub const BUFFER_PAGES: u32 = 2048;

/// Memory for ciphertext.
struct Buffers {
    memory: NonNull<[u8; PAGE]>,
    runs: Runs,
}

impl Buffers {
    fn pointer(&self, page: u32) -> *mut [u8; PAGE] {
        assert!(page < BUFFER_PAGES);
        // SAFETY: there are so many pages.
        unsafe { self.memory.as_ptr().add(page as usize) }
    }

    /// Gives the memory back to the system while nothing is in it.
    fn discard(&mut self) {
        if self.runs.give_back() > 0 {
            let bytes = BUFFER_PAGES as usize * PAGE;
            // SAFETY: the memory is the lender's to us, and nothing in it is needed. A refusal costs only the memory.
            let _ = unsafe { madvise(self.memory.as_ptr().cast(), bytes, Advice::LinuxDontNeed) };
        }
    }
}

/// How far a write has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    /// A helper encrypts it.
    Encrypting,
    /// It is to be started.
    Ready,
    /// It is on its way.
    Started,
}

struct Write {
    token: u64,
    area: usize,
    offset: u64,
    /// Pages of the buffers or, of a far area, of its channel.
    buffer: Range<u32>,
    step: Step,
}

struct Read {
    token: u64,
    area: Arc<SealedArea>,
    slot: u32,
    pieces: Vec<IoVec>,
}

/// What a backend needs for its encrypted areas.
#[derive(Default)]
pub(super) struct Sealing {
    areas: Vec<Option<Arc<SealedArea>>>,
    buffers: Option<Buffers>,
    writes: Vec<Write>,
    reads: Vec<Read>,
    /// Vectors of completed reads, for the next ones.
    spare: Vec<Vec<IoVec>>,
}

impl Sealing {
    pub(super) fn area(&self, area: usize) -> Option<Arc<SealedArea>> {
        self.areas.get(area).cloned().flatten()
    }

    /// Encrypted writes that nobody else counts.
    pub(super) fn ready(&self) -> usize {
        let ready = self.writes.iter();
        ready.filter(|write| write.step == Step::Ready).count()
    }

    pub(super) fn give_back(&mut self) {
        if let Some(buffers) = &mut self.buffers {
            buffers.discard();
        }
    }

    /// A read has been started.
    pub(super) fn note_read(
        &mut self,
        token: u64,
        area: Arc<SealedArea>,
        slot: u32,
        iov: &[IoVec],
    ) {
        let mut pieces = self.spare.pop().unwrap_or_default();
        pieces.extend_from_slice(iov);
        self.reads.push(Read {
            token,
            area,
            slot,
            pieces,
        });
    }

    /// Removes the write with this token, if it has come to `step`.
    fn take_write(&mut self, token: u64, step: Step) -> Option<Write> {
        let ended = |write: &Write| write.token == token && write.step == step;
        let at = self.writes.iter().position(ended)?;
        Some(self.writes.swap_remove(at))
    }
}

/// The pages of a transfer, in order.
pub(super) fn pages_of(pieces: &[IoVec]) -> impl Iterator<Item = *mut [u8; PAGE]> {
    pieces.iter().flat_map(|piece| {
        (0..piece.len / PAGE).map(|page| piece.ptr.wrapping_add(page * PAGE).cast())
    })
}

impl WithRam {
    /// Makes an area that was set an encrypted one, or (`None`) a plain one. No transfer of it may be in flight.
    pub fn set_sealed(&mut self, area: usize, sealed: Option<Arc<SealedArea>>) {
        let areas = &mut self.sealing.areas;
        if areas.len() <= area {
            areas.resize(area + 1, None);
        }
        areas[area] = sealed;
    }

    /// Lends memory for the ciphertext of writes; without it, no encrypted area can be written to.
    ///
    /// # Safety
    /// [`BUFFER_PAGES`] pages from `memory` on, aligned to pages, are mapped and used by nobody else as long as this value
    /// lives.
    pub unsafe fn lend_buffers(&mut self, memory: NonNull<u8>) {
        self.sealing.buffers = Some(Buffers {
            memory: memory.cast(),
            runs: Runs::new(BUFFER_PAGES),
        });
    }

    /// Bytes of memory that the buffers have, at most.
    pub fn buffer_bytes(&self) -> u64 {
        let buffers = self.sealing.buffers.as_ref();
        buffers.map_or(0, |buffers| u64::from(buffers.runs.touched()) * PAGE as u64)
    }

    /// Begins a write of an encrypted area.
    ///
    /// # Safety
    /// As for [`super::Io::write`].
    pub(super) unsafe fn begin_sealed(
        &mut self,
        token: u64,
        area: usize,
        sealed: Arc<SealedArea>,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        let slot = sealed.slot_at(offset).ok_or(QueueError::BadLength)?;
        let count: usize = iov.iter().map(|piece| piece.len / PAGE).sum();
        let whole = iov.iter().all(|piece| piece.len.is_multiple_of(PAGE));
        let pages = u32::try_from(count).map_err(|_| QueueError::BadLength)?;
        if pages == 0 || pages > BUFFER_PAGES || !whole {
            return Err(QueueError::BadLength);
        }
        let (buffer, to) = self.take_buffer(area, pages)?;
        let number = sealed.numbers(count);
        let write = |step| Write {
            token,
            area,
            offset,
            buffer: buffer.clone(),
            step,
        };
        if let [piece] = iov
            && count >= LARGE
        {
            let task = Task::seal(Arc::clone(&sealed), slot, number, to);
            if self.helpers.hand_over(token, piece.ptr.cast(), count, task) {
                self.sealing.writes.push(write(Step::Encrypting));
                self.helpers.flush();
                return Ok(());
            }
        }
        for (at, page) in pages_of(iov).enumerate() {
            // SAFETY: the caller lends the pages, which nobody writes to; the buffer is this write's.
            let (from, to) = unsafe { (&*page.cast_const(), &mut *to.add(at)) };
            sealed.seal(slot + at as u32, number + at as u64, from, to);
        }
        self.sealing.writes.push(write(Step::Ready));
        self.start_ready();
        Ok(())
    }

    /// Pages for the ciphertext of a write, and the first of them.
    fn take_buffer(
        &mut self,
        area: usize,
        pages: u32,
    ) -> Result<(Range<u32>, *mut [u8; PAGE]), QueueError> {
        if let Some(client) = self.below.client(area) {
            let buffer = client.reserve(pages)?;
            let to = client.pointer(&buffer);
            return Ok((buffer, to.cast()));
        }
        let buffers = self.sealing.buffers.as_mut().ok_or(QueueError::Full)?;
        let buffer = buffers.runs.take(pages).ok_or(QueueError::Full)?;
        let to = buffers.pointer(buffer.start);
        Ok((buffer, to))
    }

    /// Frees the buffer of a write that was not started.
    fn put_buffer(&mut self, write: &Write) {
        if let Some(client) = self.below.client(write.area) {
            client.release(&write.buffer);
        } else if let Some(buffers) = &mut self.sealing.buffers {
            buffers.runs.put(&write.buffer);
        }
    }

    /// A helper has encrypted a write: it can be started. False: this was no such job, or it failed.
    fn on_encrypted(&mut self, job: &Completion) -> bool {
        let Some(mut write) = self.sealing.take_write(job.token, Step::Encrypting) else {
            return false;
        };
        match job.result {
            Ok(()) => {
                write.step = Step::Ready;
                self.sealing.writes.push(write);
                true
            }
            Err(_) => {
                self.put_buffer(&write);
                false
            }
        }
    }

    /// Starts a write whose ciphertext is ready.
    fn start_write(&mut self, at: usize) -> Result<(), QueueError> {
        let write = &self.sealing.writes[at];
        let (token, area, offset) = (write.token, write.area, write.offset);
        if let Some(client) = self.below.client(area) {
            return client.start_reserved(token, offset, &write.buffer);
        }
        let buffers = self.sealing.buffers.as_ref().ok_or(QueueError::Full)?;
        let piece = IoVec {
            ptr: buffers.pointer(write.buffer.start).cast(),
            len: write.buffer.len() * PAGE,
        };
        // SAFETY: the buffer is this write's until its completion is reaped.
        unsafe {
            self.below
                .start(Direction::Write, token, area, offset, &[piece])
        }
    }

    /// Starts the writes whose ciphertext is ready, as far as the queue has room. The next call tries the others.
    fn start_ready(&mut self) {
        let mut at = 0;
        while let Some(write) = self.sealing.writes.get(at) {
            if write.step != Step::Ready {
                at += 1;
                continue;
            }
            match self.start_write(at) {
                Ok(()) => self.sealing.writes[at].step = Step::Started,
                Err(QueueError::Full) => return,
                Err(_) => {
                    // It would be refused again.
                    let write = self.sealing.writes.swap_remove(at);
                    self.put_buffer(&write);
                    let (token, result) = (write.token, Err(IoError::from_errno(Errno::INVAL)));
                    self.ended.push(Completion { token, result });
                    continue;
                }
            }
            at += 1;
            self.started += 1;
            if self.below.in_flight() == 1 {
                // The disk is idle. Refused transfers stay queued.
                let _ = self.below.flush();
            }
        }
    }

    /// Takes the jobs of writes that helpers have encrypted out of `out`, from number `from` on, and starts the writes.
    pub(super) fn start_encrypted(&mut self, out: &mut Vec<Completion>, from: usize) {
        if self.sealing.writes.is_empty() {
            return;
        }
        let mut at = from;
        while at < out.len() {
            if self.on_encrypted(&out[at]) {
                out.remove(at);
            } else {
                at += 1;
            }
        }
        let before = self.started;
        self.start_ready();
        if self.started > before {
            // Transfers that are not accepted stay queued for the next flush.
            let _ = self.below.flush();
        }
    }

    /// A transfer of a file has ended. True: it is a read that a helper decrypts now.
    pub(super) fn on_sealed_end(&mut self, ended: &Completion) -> bool {
        let token = ended.token;
        if let Some(write) = self.sealing.take_write(token, Step::Started)
            && self.below.client(write.area).is_none()
        {
            self.put_buffer(&write);
        }
        let reads = &mut self.sealing.reads;
        let Some(at) = reads.iter().position(|read| read.token == token) else {
            return false;
        };
        let mut read = reads.swap_remove(at);
        let handed = ended.result.is_ok() && self.decrypt(&read);
        read.pieces.clear();
        self.sealing.spare.push(read.pieces);
        handed
    }

    /// Decrypts a read that has ended. True: a helper does, and the completion follows.
    fn decrypt(&mut self, read: &Read) -> bool {
        if let [piece] = read.pieces[..]
            && piece.len >= LARGE * PAGE
        {
            let task = Task::Open(Arc::clone(&read.area), read.slot);
            let (first, pages) = (piece.ptr.cast(), piece.len / PAGE);
            if self.helpers.hand_over(read.token, first, pages, task) {
                return true;
            }
        }
        for (slot, page) in (read.slot..).zip(pages_of(&read.pieces)) {
            // SAFETY: the memory is lent until the completion is reported, which nobody has seen.
            let page = unsafe { &mut *page };
            // A page that does not open is one of zeros, and recognised by that.
            let _ = read.area.open(slot, page);
        }
        false
    }
}

#[cfg(test)]
mod tests;
