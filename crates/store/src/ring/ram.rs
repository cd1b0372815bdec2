//! RAM areas behind the same interface as files. Requests are executed at once on the caller's thread or, if they are
//! large, by a helper; their completions are reaped like any other. Helpers also hash large reads of files. Areas that are
//! encrypted are in `sealed`.
//!
//! A write may be accepted in part: the completion names pages that are incompressible, or for which there is no
//! room, and the caller puts them elsewhere.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::far::WithFar;
use super::helpers::{Helpers, LARGE, Task};
use super::sealed::{Sealing, pages_of};
use super::{Completion, Direction, Io, IoError, IoVec, MAX_DEPTH, QueueError};
use crate::far::Client;
use crate::ram::{Method, Ram, Reader, Refused, Writer};

pub(super) const PAGE: usize = 4096;
/// The most pages of one write.
const MOST_PAGES: usize = 512;

/// Refused pages of a write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refusal {
    /// A bit per page, from the first.
    pub pages: [u64; MOST_PAGES / 64],
    /// The area is full; otherwise the pages are incompressible.
    pub full: bool,
}

impl Refusal {
    fn add(&mut self, page: usize) {
        self.pages[page / 64] |= 1 << (page % 64);
    }

    pub(super) fn into_result(self) -> Result<(), IoError> {
        match self.pages.iter().all(|&word| word == 0) {
            true => Ok(()),
            false => Err(IoError::Refused(self)),
        }
    }
}

/// Whether any process uses a slot.
pub type IsUsed = Box<dyn Fn(u32) -> bool + Send + Sync>;

/// The reader and the writer of one thread for a RAM area.
pub(super) struct Codec {
    reader: Reader,
    writer: Writer,
}

impl Codec {
    fn new(method: Method, owner: u16) -> Self {
        Codec {
            reader: Reader::new(method),
            writer: Writer::new(owner, method),
        }
    }
}

/// A RAM area, as the threads of one process share it.
pub(super) struct SharedRam {
    ram: Arc<Ram>,
    is_used: IsUsed,
    /// The codecs of the workers, by number. Each is locked by its own thread, with rare short exceptions.
    helpers: Box<[Mutex<Codec>]>,
}

impl SharedRam {
    /// Calls `with` with the codec of worker `number`.
    pub(super) fn with_codec<T>(
        &self,
        number: usize,
        with: impl FnOnce(&Self, &mut Codec) -> T,
    ) -> T {
        let codec = self.helpers[number].lock();
        with(self, &mut codec.unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn read<'a>(
        &self,
        codec: &mut Codec,
        slot: u32,
        pages: impl Iterator<Item = &'a mut [u8; PAGE]>,
    ) -> Result<(), IoError> {
        for (slot, page) in (slot..).zip(pages) {
            let read = codec.reader.read(&self.ram, slot, page);
            read.map_err(|_| IoError::from_errno(Errno::IO))?;
        }
        Ok(())
    }

    /// `pages` with their numbers in the write. Refused pages are added to `refusal`.
    pub(super) fn write<'a>(
        &self,
        codec: &mut Codec,
        slot: u32,
        pages: impl Iterator<Item = (usize, &'a [u8; PAGE])>,
        as_it_is: bool,
        refusal: &mut Refusal,
    ) -> Result<(), IoError> {
        for (at, page) in pages {
            if refusal.full {
                refusal.add(at);
                continue;
            }
            let (ram, used, slot) = (&self.ram, &*self.is_used, slot + at as u32);
            match codec.writer.write(ram, slot, page, as_it_is, used) {
                Ok(()) => {}
                Err(Refused::Incompressible) => refusal.add(at),
                Err(Refused::Full) => {
                    refusal.full = true;
                    refusal.add(at);
                }
                Err(Refused::NoSuchSlot) => return Err(IoError::from_errno(Errno::INVAL)),
            }
        }
        Ok(())
    }
}

/// One process' access to a RAM area.
pub struct RamHandle {
    ram: Arc<Ram>,
    owner: u16,
    is_used: IsUsed,
}

impl RamHandle {
    /// For process number `owner` of the run.
    pub fn new(ram: Arc<Ram>, owner: u16, is_used: IsUsed) -> Self {
        RamHandle {
            ram,
            owner,
            is_used,
        }
    }

    /// For the requesting thread and this number of workers. All codecs are created here: a helper that is preempted
    /// while it allocates would delay the thread that serves faults.
    fn open(self, helpers: usize) -> OpenRam {
        let method = self.ram.method();
        let codec = || Codec::new(method, self.owner);
        OpenRam {
            codec: codec(),
            shared: Arc::new(SharedRam {
                ram: self.ram,
                is_used: self.is_used,
                helpers: (0..helpers).map(|_| Mutex::new(codec())).collect(),
            }),
        }
    }
}

/// A RAM area that is in use.
struct OpenRam {
    shared: Arc<SharedRam>,
    codec: Codec,
}

impl OpenRam {
    /// Closes the open chunks, for other processes to fill. A busy helper keeps its chunk.
    fn give_back(&mut self) {
        let ram = &self.shared.ram;
        self.codec.writer.give_back(ram);
        for codec in &*self.shared.helpers {
            if let Ok(mut codec) = codec.try_lock() {
                codec.writer.give_back(ram);
            }
        }
    }
}

/// A large read of a file that is hashed after its completion.
#[derive(Clone, Copy)]
struct Large {
    token: u64,
    first: *mut [u8; PAGE],
    pages: usize,
}

/// A backend for files with RAM areas, far areas, encrypted areas and helpers.
pub struct WithRam {
    pub(super) below: WithFar,
    /// Transfers that it was given.
    pub(super) started: u64,
    areas: Vec<Option<OpenRam>>,
    pub(super) ended: Vec<Completion>,
    pub(super) helpers: Helpers,
    large: Vec<Large>,
    pub(super) sealing: Sealing,
}

impl WithRam {
    /// On top of `below`, without a RAM area.
    pub fn new(below: Box<dyn Io>, helpers: Helpers) -> Self {
        WithRam {
            below: WithFar::new(below),
            started: 0,
            areas: Vec::new(),
            ended: Vec::with_capacity(MAX_DEPTH as usize),
            helpers,
            large: Vec::with_capacity(MAX_DEPTH as usize),
            sealing: Sealing::default(),
        }
    }

    /// Makes a RAM area available as area number `area`, or (`None`) removes it.
    pub fn set_ram(&mut self, area: usize, handle: Option<RamHandle>) {
        if self.areas.len() <= area {
            self.areas.resize_with(area + 1, || None);
        }
        self.areas[area] = handle.map(|handle| handle.open(self.helpers.numbers()));
    }

    /// Makes area number `area` one that is read and written through the relay, or (`None`) removes it. No transfer of it
    /// may be in flight.
    pub fn set_far(&mut self, area: usize, client: Option<Client>) {
        self.below.set_far(area, client);
    }

    /// Another process has to run for transfers in flight to end.
    pub fn is_relayed(&self) -> bool {
        self.below.is_relayed()
    }

    /// Bytes of memory that the channels of far areas have, at most.
    pub fn channel_bytes(&self) -> u64 {
        self.below.buffer_bytes()
    }

    /// Transfers of files started so far, and the number of these in flight. Later work of helpers on the bytes does
    /// not count.
    pub fn disk(&self) -> (u64, usize) {
        (self.started, self.below.in_flight())
    }

    /// Helpers are working, or about to.
    pub fn is_helped(&self) -> bool {
        self.helpers.in_flight() > 0
    }

    /// This process pauses its writes: others may use its open chunks, and the memory of empty buffers.
    pub fn give_back(&mut self) {
        self.sealing.give_back();
        self.below.give_back();
        let areas = self.areas.iter_mut().flatten();
        areas.for_each(OpenRam::give_back);
    }

    /// Has a helper hash `pages` pages from `first` on. The completion is reaped like a transfer's, whatever its
    /// result, and [`WithRam::hashes`] has the hashes. False: the caller must do it.
    ///
    /// # Safety
    ///
    /// The memory is mapped and no thread writes to it until the completion has been reaped.
    pub unsafe fn begin_hashing(
        &mut self,
        token: u64,
        first: *mut [u8; PAGE],
        pages: usize,
    ) -> bool {
        let handed = self.helpers.hand_over(token, first, pages, Task::Hash);
        self.helpers.flush();
        handed
    }

    /// Does a part of the helpers' work on this thread, 64 pages: of a job that it has begun, and must complete, or
    /// else, if it may `begin`, of one that no helper has begun. False: there is none.
    pub fn help(&mut self, begin: bool) -> bool {
        self.helpers.help(begin)
    }

    /// For a read or hashing that the last [`Io::reap`] returned: the first byte of its memory and the hashes of its
    /// pages, if a helper took them.
    pub fn hashes(&self, token: u64) -> Option<(*const u8, &[u64])> {
        self.helpers.hashes(token)
    }

    /// As [`Io::write`]; a RAM area stores incompressible pages as they are.
    ///
    /// # Safety
    ///
    /// As for [`Io::write`].
    pub unsafe fn write_uncompressed(
        &mut self,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(Direction::Write, token, area, offset, iov, true) }
    }

    unsafe fn begin(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
        as_it_is: bool,
    ) -> Result<(), QueueError> {
        let large = match iov {
            [piece] if piece.len >= LARGE * PAGE && piece.len.is_multiple_of(PAGE) => {
                Some((piece.ptr.cast(), piece.len / PAGE))
            }
            _ => None,
        };
        let Some(handle) = self.areas.get_mut(area).and_then(Option::as_mut) else {
            // SAFETY: the caller's promise.
            return unsafe { self.begin_file(direction, token, area, offset, iov, large) };
        };
        if self.ended.len() >= MAX_DEPTH as usize {
            return Err(QueueError::Full);
        }
        let pages: usize = iov.iter().map(|piece| piece.len / PAGE).sum();
        let whole = iov.iter().all(|piece| piece.len.is_multiple_of(PAGE));
        let slot = u32::try_from(offset / PAGE as u64).map_err(|_| QueueError::BadLength)?;
        if pages == 0 || pages > MOST_PAGES || !whole {
            return Err(QueueError::BadLength);
        }
        if let Some((first, pages)) = large {
            let area = Arc::clone(&handle.shared);
            let task = match direction {
                Direction::Read => Task::Read(area, slot),
                Direction::Write => Task::Write(area, slot, as_it_is),
            };
            if self.helpers.hand_over(token, first, pages, task) {
                self.helpers.flush();
                return Ok(());
            }
        }
        let each = pages_of(iov);
        let OpenRam { shared, codec } = handle;
        let result = match direction {
            Direction::Read => {
                // SAFETY: the memory is mapped and, until the completion is reaped, used by nobody
                // else, as the caller promises; no two pieces are the same.
                let pages = each.map(|page: *mut [u8; PAGE]| unsafe { &mut *page });
                shared.read(codec, slot, pages)
            }
            Direction::Write => {
                // SAFETY: as above; it is only read.
                let pages = each.map(|page: *mut [u8; PAGE]| unsafe { &*page.cast_const() });
                let mut refusal = Refusal::default();
                let done = shared.write(codec, slot, pages.enumerate(), as_it_is, &mut refusal);
                done.and(refusal.into_result())
            }
        };
        self.ended.push(Completion { token, result });
        Ok(())
    }

    unsafe fn begin_file(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
        large: Option<(*mut [u8; PAGE], usize)>,
    ) -> Result<(), QueueError> {
        let sealed = self.sealing.area(area);
        if let (Some(sealed), Direction::Write) = (&sealed, direction) {
            let sealed = Arc::clone(sealed);
            // SAFETY: the caller's promise.
            return unsafe { self.begin_sealed(token, area, sealed, offset, iov) };
        }
        let slot = sealed.as_ref().map(|area| area.slot_at(offset));
        let slot = slot.map(|slot| slot.ok_or(QueueError::BadLength));
        let slot = slot.transpose()?;
        // SAFETY: the caller's promise.
        unsafe { self.below.start(direction, token, area, offset, iov) }?;
        self.started += 1;
        match (sealed.zip(slot), direction, large) {
            (Some((sealed, slot)), _, _) => self.sealing.note_read(token, sealed, slot, iov),
            (None, Direction::Read, Some((first, pages))) => self.large.push(Large {
                token,
                first,
                pages,
            }),
            _ => {}
        }
        if large.is_some() && self.below.in_flight() == 1 {
            // The disk is idle: it begins while the caller prepares more. Refused transfers stay queued.
            let _ = self.below.flush();
        }
        Ok(())
    }

    /// Takes completed reads that helpers work on from now on out of `out`, from number `from` on.
    fn hand_over(&mut self, out: &mut Vec<Completion>, from: usize) {
        let mut at = from;
        while at < out.len() {
            let ended = out[at];
            let large = self
                .large
                .iter()
                .position(|large| large.token == ended.token);
            let large = large.map(|place| self.large.swap_remove(place));
            let handed = large.is_some_and(
                |Large {
                     token,
                     first,
                     pages,
                 }| {
                    ended.result.is_ok() && self.helpers.hand_over(token, first, pages, Task::Hash)
                },
            );
            if handed || self.on_sealed_end(&ended) {
                out.remove(at);
            } else {
                at += 1;
            }
        }
        self.helpers.flush();
    }
}

impl Io for WithRam {
    unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        area: usize,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        // SAFETY: the caller's promise.
        unsafe { self.begin(direction, token, area, offset, iov, false) }
    }

    fn flush(&mut self) -> Result<(), IoError> {
        self.below.flush()
    }

    fn reap(&mut self, out: &mut Vec<Completion>) {
        let from = out.len();
        self.helpers.reap(out);
        self.start_encrypted(out, from);
        out.append(&mut self.ended);
        let from = out.len();
        self.below.reap(out);
        self.hand_over(out, from);
        // There is room for more.
        let from = out.len();
        self.start_encrypted(out, from);
    }

    /// Also for completions that [`Io::poll_fd`] does not report.
    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty() || self.helpers.has_ended() || self.below.has_ended()
    }

    /// Also returns while the helpers' event is readable, that is until its reader has read it.
    fn wait(&mut self) -> Result<(), IoError> {
        self.below.flush()?;
        while self.helpers.help(false) {}
        if self.has_ended() {
            return Ok(());
        }
        if self.helpers.in_flight() == 0 {
            return self.below.wait();
        }
        let event = PollFd::from_borrowed_fd(self.helpers.event(), PollFlags::IN);
        // SAFETY: the backend keeps it open as long as it lives.
        let below = unsafe { BorrowedFd::borrow_raw(self.below.poll_fd()) };
        let mut fds = [event, PollFd::from_borrowed_fd(below, PollFlags::IN)];
        loop {
            match poll(&mut fds, None) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(IoError::from_errno(error)),
            }
        }
    }

    fn poll_fd(&self) -> RawFd {
        self.below.poll_fd()
    }

    fn in_flight(&self) -> usize {
        let above = self.ended.len() + self.sealing.ready();
        above + self.helpers.in_flight() + self.below.in_flight()
    }

    fn set_area(&mut self, area: usize, fd: Option<RawFd>) {
        self.below.set_area(area, fd);
    }

    fn name(&self) -> &'static str {
        self.below.name()
    }
}
