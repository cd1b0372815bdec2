//! The trace ring of one engine: records on their way to the supervisor, in memory that both map.
//!
//! The engine writes and never waits: if the ring is full, the record is counted as lost. The supervisor reads, also
//! after the engine has died, and a killed process therefore loses no record. Neither side trusts the words of the
//! other.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rustix::fd::{BorrowedFd, OwnedFd};

use super::LedgerError;
use super::tables::Memory;

/// Records that the ring holds (1.25 MiB): about 30 ms of an engine's maximum rate.
const RECORDS: u64 = 1 << 15;
const WORDS: usize = 5;
/// The words of the head, each on a cache line of its own; the records follow.
const HEAD: usize = 0;
const TAIL: usize = 16;
const LOST: usize = 32;
const PAGE: u64 = 4096;
const BYTES: u64 = PAGE + RECORDS * WORDS as u64 * 8;
const _: () = assert!(BYTES.is_multiple_of(PAGE));

/// The kind of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SeenKind {
    /// A range is managed from now on.
    Map = 1,
    /// A range is unmapped.
    Unmap = 2,
    /// The content of a range is discarded.
    Discard = 3,
    /// A range moves to the page `to`.
    Move = 4,
    /// A touch found a page that was never touched.
    New = 5,
    /// A touch found its page in a frame.
    Kept = 6,
    /// A touch found a page that readahead had read, or was reading.
    Ahead = 7,
    /// A touch found its page on an area.
    Away = 8,
    /// Pages were mapped for which no thread waits.
    Prefetched = 9,
    /// Pages were evicted.
    Evicted = 10,
}

impl SeenKind {
    fn from_word(word: u64) -> Option<Self> {
        let all = [
            Self::Map,
            Self::Unmap,
            Self::Discard,
            Self::Move,
            Self::New,
            Self::Kept,
            Self::Ahead,
            Self::Away,
            Self::Prefetched,
            Self::Evicted,
        ];
        all.into_iter().find(|kind| *kind as u64 == word)
    }
}

/// One record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Nanoseconds of CLOCK_MONOTONIC.
    pub time: u64,
    /// The kind.
    pub kind: SeenKind,
    /// The touch is a write.
    pub write: bool,
    /// The thread of a touch; 0 otherwise.
    pub tid: u32,
    /// The first page.
    pub page: u64,
    /// The number of pages.
    pub pages: u64,
    /// The new first page of a move; 0 otherwise.
    pub to: u64,
}

const WRITE: u64 = 1 << 8;

/// The ring. One side calls [`Ring::put`], the other one [`Ring::take`].
#[derive(Debug)]
pub struct Ring {
    memory: Memory,
}

impl Ring {
    /// The most records that it holds.
    pub const CAPACITY: usize = RECORDS as usize;

    /// Supervisor: creates an empty ring.
    pub fn create() -> Result<Self, LedgerError> {
        let memory = Memory::create(BYTES)?;
        Ok(Self { memory })
    }

    /// Engine: maps the ring that it received.
    pub fn attach(fd: OwnedFd) -> Result<Self, LedgerError> {
        let memory = Memory::attach(fd, BYTES)?;
        Ok(Self { memory })
    }

    /// The descriptor, for passing on.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// The mapped range.
    pub fn address_range(&self) -> std::ops::Range<usize> {
        self.memory.address_range()
    }

    fn head(&self, at: usize) -> &AtomicU64 {
        &self.memory.slice::<AtomicU64>(0, at, 1)[0]
    }

    fn record(&self, number: u64) -> &[AtomicU64] {
        let at = (number % RECORDS) as usize * WORDS;
        self.memory.slice(PAGE, at, WORDS)
    }

    /// Adds a record, or counts it as lost if there is no room.
    pub fn put(&self, seen: &Seen) {
        let head = self.head(HEAD).load(Relaxed);
        if head.wrapping_sub(self.head(TAIL).load(Acquire)) >= RECORDS {
            let lost = self.head(LOST);
            lost.store(lost.load(Relaxed) + 1, Relaxed);
            return;
        }
        let write = if seen.write { WRITE } else { 0 };
        let second = u64::from(seen.tid) << 32 | write | seen.kind as u64;
        let words = self.record(head);
        let values = [seen.time, second, seen.page, seen.pages, seen.to];
        for (word, value) in words.iter().zip(values) {
            word.store(value, Relaxed);
        }
        self.head(HEAD).store(head + 1, Release);
    }

    /// Takes the oldest record; `None` if there is none. Invalid records are skipped.
    pub fn take(&self) -> Option<Seen> {
        loop {
            let (head, tail) = (self.head(HEAD).load(Acquire), self.head(TAIL).load(Relaxed));
            let there = head.wrapping_sub(tail);
            if there == 0 {
                return None;
            }
            if there > RECORDS {
                // Not written by a correct engine.
                self.head(TAIL).store(head, Release);
                return None;
            }
            let mut words = [0; WORDS];
            for (value, word) in words.iter_mut().zip(self.record(tail)) {
                *value = word.load(Relaxed);
            }
            self.head(TAIL).store(tail.wrapping_add(1), Release);
            let [time, second, page, pages, to] = words;
            if let Some(kind) = SeenKind::from_word(second & 0xff) {
                let (write, tid) = (second & WRITE != 0, (second >> 32) as u32);
                return Some(Seen {
                    time,
                    kind,
                    write,
                    tid,
                    page,
                    pages,
                    to,
                });
            }
        }
    }

    /// Records lost so far.
    pub fn lost(&self) -> u64 {
        self.head(LOST).load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(n: u64) -> Seen {
        let kinds = [
            SeenKind::Map,
            SeenKind::Move,
            SeenKind::Away,
            SeenKind::Evicted,
        ];
        Seen {
            time: n,
            kind: kinds[n as usize % 4],
            write: n.is_multiple_of(2),
            tid: n as u32 * 7,
            page: u64::MAX - n,
            pages: n << 30,
            to: n * 3,
        }
    }

    #[test]
    fn records_arrive_as_they_were_put() {
        let ours = Ring::create().expect("a ring");
        let theirs = Ring::attach(ours.fd().try_clone_to_owned().expect("dup")).expect("attached");
        assert_eq!(ours.take(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for n in 0..200_000 {
                    while theirs.head(HEAD).load(Relaxed) - theirs.head(TAIL).load(Acquire)
                        == RECORDS
                    {
                        std::thread::yield_now();
                    }
                    theirs.put(&record(n));
                }
            });
            for n in 0..200_000 {
                let seen = loop {
                    match ours.take() {
                        Some(seen) => break seen,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!(seen, record(n));
            }
        });
        assert_eq!((ours.take(), ours.lost()), (None, 0));
    }

    #[test]
    fn a_full_ring_loses_what_comes_and_says_so() {
        let ring = Ring::create().expect("a ring");
        for n in 0..RECORDS + 5 {
            ring.put(&record(n));
        }
        assert_eq!(ring.lost(), 5);
        assert_eq!(ring.take(), Some(record(0)));
        ring.put(&record(9));
        assert_eq!(ring.lost(), 5);
        assert_eq!(std::iter::from_fn(|| ring.take()).count() as u64, RECORDS);
    }

    #[test]
    fn wild_words_are_left_out() {
        let ring = Ring::create().expect("a ring");
        ring.put(&record(1));
        ring.record(0)[1].store(0xff, Relaxed);
        ring.put(&record(2));
        assert_eq!((ring.take(), ring.take()), (Some(record(2)), None));
        ring.head(HEAD).store(u64::MAX, Relaxed);
        assert_eq!((ring.take(), ring.take()), (None, None));
        ring.head(HEAD).store(3, Relaxed);
        // Old records may be taken again, but no more than the claimed number.
        assert!(std::iter::from_fn(|| ring.take()).count() <= 4);
    }
}
