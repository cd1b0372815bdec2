//! The channel between an engine and the relay, for areas that are not on this machine.
//!
//! Engines do not speak with servers: a process that is killed in the middle of a request would leave a connection of which
//! nobody knows how much the server still carries out. A process of the run's own, the relay, has the connections, and
//! lives longer than any engine. An engine hands it transfers through memory that both map: a ring of requests, a ring of
//! their ends, and pages for the bytes. Each side notifies the other only when it puts something in an empty ring: the
//! engine through a socket, whose end also tells each of the end of the other, the relay through the engine's eventfd.
//!
//! Neither side trusts the words of the other: a wrong number is dropped or fails the transfer, and never leads outside
//! the memory.

mod client;
mod runs;

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed, Ordering::SeqCst};

pub use client::Client;
pub(crate) use runs::Runs;

use crate::ram::Backing;
use crate::ring::{Direction, MAX_DEPTH};

/// The version of this layout; the first word of the memory and of a registration.
pub const VERSION: u64 = u64::from_le_bytes(*b"fs-far 1");
/// Pages for the bytes of transfers: as many as a server with a latency of 20 ms needs in flight for 1.5 GB/s.
pub const BUFFER_PAGES: u32 = 8192;
/// Bytes of the memory.
pub const BYTES: u64 = HEAD + BUFFER_PAGES as u64 * PAGE;
/// The most bytes of one transfer.
pub const MOST_BYTES: u32 = 2 << 20;

const PAGE: u64 = 4096;
const DEPTH: u64 = MAX_DEPTH as u64;
/// Bytes before the pages.
const HEAD: u64 = 16 << 10;
/// Positions in the words of the head, each on cache lines of its own.
const REQUESTED: usize = 16;
const TAKEN: usize = 32;
const ENDED: usize = 48;
const REAPED: usize = 64;
const REQUESTS: usize = 128;
const REQUEST_WORDS: usize = 3;
const ENDS: usize = REQUESTS + MAX_DEPTH as usize * REQUEST_WORDS;
const _: () = assert!((ENDS + MAX_DEPTH as usize) * 8 <= HEAD as usize);

/// A transfer, as the rings carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Its number, below [`MAX_DEPTH`]: one transfer in flight has it.
    pub index: u32,
    /// From or to the area.
    pub direction: Direction,
    /// The first byte in the area, a multiple of 4 KiB.
    pub offset: u64,
    /// The first page of the buffer.
    pub page: u32,
    /// Bytes, a multiple of 4 KiB, at most [`MOST_BYTES`].
    pub bytes: u32,
}

/// The end of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// The number of the request.
    pub index: u32,
    /// 0 or the error.
    pub errno: i32,
}

/// The memory, mapped.
pub struct Channel {
    memory: Box<dyn Backing>,
}

impl std::fmt::Debug for Channel {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Channel").finish_non_exhaustive()
    }
}

impl Channel {
    /// Engine: a channel in fresh memory, all zeros. `None`: it is too small.
    pub fn create(memory: Box<dyn Backing>) -> Option<Self> {
        let channel = Self::over(memory)?;
        channel.words()[0].store(VERSION, SeqCst);
        Some(channel)
    }

    /// Relay: the channel in memory that was received. `None`: it is none of this version.
    pub fn attach(memory: Box<dyn Backing>) -> Option<Self> {
        let channel = Self::over(memory)?;
        (channel.words()[0].load(SeqCst) == VERSION).then_some(channel)
    }

    fn over(memory: Box<dyn Backing>) -> Option<Self> {
        (memory.bytes() as u64 >= BYTES).then_some(Self { memory })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: the memory is that long, starts at a page, stays mapped as long as `self`, and its head consists of
        // such words.
        unsafe { std::slice::from_raw_parts(self.memory.base().as_ptr().cast(), HEAD as usize / 8) }
    }

    /// The first byte of page number `page` of the buffer.
    pub fn page(&self, page: u32) -> NonNull<u8> {
        assert!(page < BUFFER_PAGES);
        // SAFETY: inside the memory.
        unsafe {
            self.memory
                .base()
                .add((HEAD + u64::from(page) * PAGE) as usize)
        }
    }

    /// Frees the memory of the first `pages` pages of the buffer, which nobody uses.
    pub fn discard(&self, pages: u32) {
        self.memory
            .punch(HEAD, u64::from(pages.min(BUFFER_PAGES)) * PAGE);
    }

    /// Engine: adds `requests`. True: notify the relay. The numbers of transfers in flight are different, so there is
    /// always room.
    pub fn request(&self, requests: &[Request]) -> bool {
        let words = self.words();
        let before = words[REQUESTED].load(Relaxed);
        for (at, request) in (before..).zip(requests) {
            let at = REQUESTS + (at % DEPTH) as usize * REQUEST_WORDS;
            let is_write = u64::from(request.direction == Direction::Write);
            words[at].store(u64::from(request.index) << 1 | is_write, Relaxed);
            words[at + 1].store(request.offset, Relaxed);
            let place = u64::from(request.page) << 32 | u64::from(request.bytes);
            words[at + 2].store(place, Relaxed);
        }
        let after = before + requests.len() as u64;
        words[REQUESTED].store(after, SeqCst);
        after > before && words[TAKEN].load(SeqCst) == before
    }

    /// Relay: the next request. Those that are not valid are dropped.
    pub fn take(&self) -> Option<Request> {
        let words = self.words();
        loop {
            let at = words[TAKEN].load(Relaxed);
            // A count that makes no sense is that of a program that overwrites its memory.
            let waiting = words[REQUESTED].load(SeqCst).wrapping_sub(at);
            if waiting == 0 || waiting > DEPTH {
                return None;
            }
            let place = REQUESTS + (at % DEPTH) as usize * REQUEST_WORDS;
            let [first, offset, last] = [0, 1, 2].map(|word| words[place + word].load(Relaxed));
            words[TAKEN].store(at + 1, SeqCst);
            let request = Request {
                index: u32::try_from(first >> 1).unwrap_or(u32::MAX),
                direction: match first & 1 {
                    0 => Direction::Read,
                    _ => Direction::Write,
                },
                offset,
                page: (last >> 32) as u32,
                bytes: last as u32,
            };
            if request.is_valid() {
                return Some(request);
            }
        }
    }

    /// Relay: a request has ended. True: notify the engine.
    pub fn end(&self, end: End) -> bool {
        let words = self.words();
        let before = words[ENDED].load(Relaxed);
        let word = u64::from(end.index) << 32 | u64::from(end.errno.cast_unsigned());
        words[ENDS + (before % DEPTH) as usize].store(word, Relaxed);
        words[ENDED].store(before + 1, SeqCst);
        words[REAPED].load(SeqCst) == before
    }

    /// Engine: whether a transfer has ended.
    pub fn has_ended(&self) -> bool {
        let words = self.words();
        words[ENDED].load(SeqCst) != words[REAPED].load(Relaxed)
    }

    /// Engine: the next transfer that has ended.
    pub fn reap(&self) -> Option<End> {
        let words = self.words();
        let at = words[REAPED].load(Relaxed);
        if words[ENDED].load(SeqCst) == at {
            return None;
        }
        let word = words[ENDS + (at % DEPTH) as usize].load(Relaxed);
        words[REAPED].store(at + 1, SeqCst);
        Some(End {
            index: (word >> 32) as u32,
            errno: (word as u32).cast_signed(),
        })
    }
}

impl Request {
    fn is_valid(&self) -> bool {
        let pages = u64::from(self.bytes) / PAGE;
        self.index < MAX_DEPTH
            && self.bytes > 0
            && self.bytes <= MOST_BYTES
            && u64::from(self.bytes).is_multiple_of(PAGE)
            && self.offset.is_multiple_of(PAGE)
            && self.offset.checked_add(self.bytes.into()).is_some()
            && u64::from(self.page) + pages <= BUFFER_PAGES.into()
    }
}

#[cfg(test)]
mod tests;
