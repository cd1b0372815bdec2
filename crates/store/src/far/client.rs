//! The engine's side of a channel.
//!
//! Bytes of a write are copied to the buffer before the relay is told, those of a read from it when it has ended: the relay
//! sees no memory of the program. The end of the relay fails all transfers in flight.

use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, IoSlice};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags,
    SocketType, recv, send, sendmsg, socketpair,
};

use super::{BUFFER_PAGES, Channel, MOST_BYTES, Request, Runs, VERSION};
use crate::ram::Backing;
use crate::ring::{Completion, Direction, IoError, IoVec, MAX_DEPTH, QueueError};

const PAGE: usize = 4096;
/// The part of the buffer, and of the numbers of transfers, that writes leave to reads: a thread waits for a read, and a slow
/// server may take seconds for all that can be written at once.
const FOR_READS: u32 = 4;
/// Looks without a completion between two looks whether the relay lives.
const LOOKS: u32 = 8;
/// How long a blocking read sleeps without such a look.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// A transfer in flight.
#[derive(Debug, Default)]
struct Slot {
    token: u64,
    /// Empty: none is in flight.
    buffer: Range<u32>,
    /// The memory that a read fills.
    to: Vec<IoVec>,
}

/// One engine's channel of one area. One thread uses it.
#[derive(Debug)]
pub struct Client {
    channel: Channel,
    /// The relay holds the other end.
    life: OwnedFd,
    runs: Runs,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Not visible to the relay yet.
    queued: Vec<Request>,
    looks: u32,
    is_over: bool,
}

// SAFETY: the pointers are those of transfers in flight, which belong to the caller of `start`; the channel's words are
// atomics.
unsafe impl Send for Client {}

impl Client {
    /// Announces a channel to the relay: `register` is the area's socket, `own` the process' description of the area (see
    /// [`crate::area::lease`]), which the relay keeps until the last transfer has ended; `bell` is the eventfd that it
    /// writes to when one has. `memory` is fresh, of [`super::BYTES`], and `file` its descriptor.
    ///
    /// # Errors
    /// No descriptors are left, or the relay has ended.
    pub fn open(
        memory: Box<dyn Backing>,
        file: BorrowedFd<'_>,
        register: BorrowedFd<'_>,
        own: BorrowedFd<'_>,
        bell: BorrowedFd<'_>,
    ) -> Result<Self, Errno> {
        let channel = Channel::create(memory).ok_or(Errno::INVAL)?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (life, its) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let fds = [file, its.as_fd(), bell, own];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !ancillary.push(SendAncillaryMessage::ScmRights(&fds)) {
            return Err(Errno::INVAL);
        }
        let version = VERSION.to_ne_bytes();
        let parts = [IoSlice::new(&version)];
        rustix::io::retry_on_intr(|| {
            sendmsg(register, &parts, &mut ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(Self {
            channel,
            life,
            runs: Runs::new(BUFFER_PAGES),
            slots: (0..MAX_DEPTH).map(|_| Slot::default()).collect(),
            free: (0..MAX_DEPTH).rev().collect(),
            queued: Vec::with_capacity(MAX_DEPTH as usize),
            looks: 0,
            is_over: false,
        })
    }

    /// Queues a transfer; as [`crate::ring::Io::start`].
    ///
    /// # Safety
    /// As for [`crate::ring::Io::read`] and [`crate::ring::Io::write`].
    pub unsafe fn start(
        &mut self,
        direction: Direction,
        token: u64,
        offset: u64,
        iov: &[IoVec],
    ) -> Result<(), QueueError> {
        let bytes: usize = iov.iter().map(|piece| piece.len).sum();
        if !bytes.is_multiple_of(PAGE) {
            return Err(QueueError::BadLength);
        }
        let pages = u32::try_from(bytes / PAGE).map_err(|_| QueueError::BadLength)?;
        let buffer = match direction {
            Direction::Read => self.take(pages)?,
            Direction::Write => self.reserve(pages)?,
        };
        if direction == Direction::Write {
            let mut at = self.pointer(&buffer);
            for piece in iov {
                // SAFETY: the caller lends the piece; the buffer is as long as all pieces together, and nobody else uses
                // it.
                unsafe {
                    at.copy_from_nonoverlapping(piece.ptr, piece.len);
                    at = at.add(piece.len);
                }
            }
        }
        let to = if direction == Direction::Read {
            iov
        } else {
            &[]
        };
        let queued = self.queue(direction, token, offset, &buffer, to);
        if queued.is_err() {
            self.release(&buffer);
        }
        queued
    }

    /// Reserves pages of the buffer, which the caller fills, for [`Client::start_reserved`].
    pub fn reserve(&mut self, pages: u32) -> Result<Range<u32>, QueueError> {
        let most = BUFFER_PAGES - BUFFER_PAGES / FOR_READS;
        match self.runs.used().saturating_add(pages) <= most {
            true => self.take(pages),
            false if pages > MOST_BYTES / PAGE as u32 => Err(QueueError::BadLength),
            false => Err(QueueError::Full),
        }
    }

    fn take(&mut self, pages: u32) -> Result<Range<u32>, QueueError> {
        if pages == 0 || pages > MOST_BYTES / PAGE as u32 {
            return Err(QueueError::BadLength);
        }
        self.runs.take(pages).ok_or(QueueError::Full)
    }

    /// The first byte of reserved pages.
    pub fn pointer(&self, reserved: &Range<u32>) -> *mut u8 {
        self.channel.page(reserved.start).as_ptr()
    }

    /// Gives up reserved pages.
    pub fn release(&mut self, reserved: &Range<u32>) {
        self.runs.put(reserved);
    }

    /// Queues a write of reserved pages, which belong to it from then on. After an error they are still reserved.
    pub fn start_reserved(
        &mut self,
        token: u64,
        offset: u64,
        reserved: &Range<u32>,
    ) -> Result<(), QueueError> {
        self.queue(Direction::Write, token, offset, reserved, &[])
    }

    fn queue(
        &mut self,
        direction: Direction,
        token: u64,
        offset: u64,
        buffer: &Range<u32>,
        to: &[IoVec],
    ) -> Result<(), QueueError> {
        if !offset.is_multiple_of(PAGE as u64) {
            return Err(QueueError::BadLength);
        }
        let left = match direction {
            Direction::Read => 0,
            Direction::Write => MAX_DEPTH / FOR_READS,
        };
        if self.free.len() <= left as usize {
            return Err(QueueError::Full);
        }
        let index = self.free.pop().ok_or(QueueError::Full)?;
        let slot = &mut self.slots[index as usize];
        (slot.token, slot.buffer) = (token, buffer.clone());
        slot.to.extend_from_slice(to);
        self.queued.push(Request {
            index,
            direction,
            offset,
            page: buffer.start,
            bytes: buffer.len() as u32 * PAGE as u32,
        });
        Ok(())
    }

    /// Hands all queued transfers to the relay.
    pub fn flush(&mut self) {
        if !self.queued.is_empty() && self.channel.request(&self.queued) {
            // If the socket is full, the relay has enough to read; if it has ended, the next look finds that.
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            let _ = send(&self.life, &[1], flags);
        }
        self.queued.clear();
    }

    /// Transfers that were started and not reaped.
    pub fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether [`Client::reap`] would find one that has ended.
    pub fn has_ended(&self) -> bool {
        self.channel.has_ended() || self.is_over && self.in_flight() > 0
    }

    /// Appends the transfers that have ended.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        let before = out.len();
        while let Some(end) = self.channel.reap() {
            let result = match end.errno {
                0 => Ok(()),
                errno => Err(IoError::Os { errno }),
            };
            out.extend(self.finish(end.index, result));
        }
        if out.len() > before {
            self.looks = 0;
        } else if self.in_flight() > 0 {
            self.looks += 1;
            if self.is_over || self.looks >= LOOKS {
                self.looks = 0;
                self.look(out);
            }
        }
    }

    /// The transfer with this number, if it is in flight.
    fn finish(&mut self, index: u32, result: Result<(), IoError>) -> Option<Completion> {
        let slot = self.slots.get_mut(index as usize)?;
        if slot.buffer.is_empty() {
            return None;
        }
        let buffer = std::mem::take(&mut slot.buffer);
        if result.is_ok() {
            let mut at = self.channel.page(buffer.start).as_ptr().cast_const();
            for piece in &slot.to {
                // SAFETY: the memory is the transfer's until this completion is seen; the relay is done with the buffer,
                // which is as long as all pieces together.
                unsafe {
                    piece.ptr.copy_from_nonoverlapping(at, piece.len);
                    at = at.add(piece.len);
                }
            }
        }
        slot.to.clear();
        let token = slot.token;
        self.runs.put(&buffer);
        self.free.push(index);
        Some(Completion { token, result })
    }

    /// If the relay has ended, so have the transfers in flight.
    fn look(&mut self, out: &mut Vec<Completion>) {
        let mut byte = [0];
        let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
        let has_ended = match recv(&self.life, &mut byte[..], flags) {
            Ok((_, 0)) => true,
            Err(errno) => !matches!(errno, Errno::AGAIN | Errno::INTR),
            Ok(_) => false,
        };
        self.is_over |= has_ended;
        if self.is_over {
            self.queued.clear();
            let result = Err(IoError::from_errno(Errno::HOSTDOWN));
            for index in 0..self.slots.len() as u32 {
                out.extend(self.finish(index, result));
            }
        }
    }

    /// Gives memory of the buffer back that nobody uses.
    pub fn give_back(&mut self) {
        match self.runs.give_back() {
            0 => {}
            pages => self.channel.discard(pages),
        }
    }

    /// Bytes of memory that the buffer has, at most.
    pub fn buffer_bytes(&self) -> u64 {
        u64::from(self.runs.touched()) * PAGE as u64
    }

    /// Reads into `bytes`, at most [`MOST_BYTES`], and waits for the end; `bell` is the eventfd of this channel, which no
    /// other thread reads. For callers that have no other transfer in flight.
    pub fn read_at(
        &mut self,
        bell: BorrowedFd<'_>,
        offset: u64,
        bytes: &mut [u8],
    ) -> Result<(), IoError> {
        let piece = IoVec {
            ptr: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        // SAFETY: the completion is awaited before the memory is given back.
        let queued = unsafe { self.start(Direction::Read, 0, offset, &[piece]) };
        queued.map_err(|_| IoError::from_errno(Errno::INVAL))?;
        self.flush();
        let mut ended = Vec::with_capacity(1);
        while ended.is_empty() {
            let mut fds = [
                PollFd::from_borrowed_fd(bell, PollFlags::IN),
                PollFd::new(&self.life, PollFlags::IN),
            ];
            let _ = poll(&mut fds, Some(&PATIENCE));
            let mut count = [0; 8];
            let _ = rustix::io::read(bell, &mut count);
            self.reap(&mut ended);
            if ended.is_empty() {
                self.look(&mut ended);
            }
        }
        ended[0].result
    }

    /// The descriptor that shows the relay's end.
    pub fn life_fd(&self) -> i32 {
        self.life.as_raw_fd()
    }
}
