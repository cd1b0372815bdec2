//! The chunks: taken by one process, filled, closed, emptied by any process, and free again.
//!
//! A chunk's state is one word with a version, and every step is one compare-and-exchange. *Open*: its owner appends
//! to it. *Closed*: no process writes to it, it only loses live pages; a process that finds none in it frees it.
//! *Spare*: free, with its memory kept for reuse. *Bare*: free and without memory. Two bitmaps list the free chunks.
//! A set bit of a chunk that is not free is ignored; a missing bit (its process was killed) is set when that process
//! is buried.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

use super::layout::{CHUNK_BYTES, Chunk};
use super::word::Word;
use super::{Ram, subtract};

/// Free chunks whose memory is kept for reuse (4 MiB).
const SPARES: u32 = 32;
/// Chunks examined to find the emptiest one.
const LOOK: usize = 1024;
/// Bytes of an entry of a chunk's index.
const ENTRY: u64 = 4;
/// The owner of chunks whose memory is being freed. A process that is killed at that moment costs the run this one
/// chunk.
const PUNCHING: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Bare,
    Spare,
    Open,
    Closed,
}

/// A chunk's state word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct State(u64);

impl State {
    pub(super) fn kind(self) -> Kind {
        match self.0 & 3 {
            0 => Kind::Bare,
            1 => Kind::Spare,
            2 => Kind::Open,
            _ => Kind::Closed,
        }
    }

    fn owner(self) -> u16 {
        (self.0 >> 2) as u16
    }

    fn next(self, kind: Kind, owner: u16) -> Self {
        let kind = match kind {
            Kind::Bare => 0,
            Kind::Spare => 1,
            Kind::Open => 2,
            Kind::Closed => 3,
        };
        let version = (self.0 >> 32).wrapping_add(1);
        State(version << 32 | u64::from(owner) << 2 | kind)
    }
}

/// Whether pages and their index entries (4 bytes each, from the end) fit in a chunk.
pub(super) fn fits(at: u64, entries: u32, bytes: u64) -> bool {
    at + bytes + (u64::from(entries) + 1) * ENTRY <= CHUNK_BYTES
}

impl Ram {
    pub(super) fn state_of(chunk: &Chunk) -> State {
        State(chunk.state.load(SeqCst))
    }

    fn advance(chunk: &Chunk, from: State, to: State) -> bool {
        chunk
            .state
            .compare_exchange(from.0, to.0, SeqCst, SeqCst)
            .is_ok()
    }

    /// Free chunks according to the maps.
    pub(super) fn free_chunks(&self) -> u32 {
        self.spares() + self.bares()
    }

    fn spares(&self) -> u32 {
        self.ones(self.layout.spare)
    }

    pub(super) fn bares(&self) -> u32 {
        self.layout
            .chunks
            .saturating_sub(self.ones(self.layout.bare))
    }

    fn ones(&self, map: u64) -> u32 {
        let words = self.map(map).iter();
        words.map(|word| word.load(Relaxed).count_ones()).sum()
    }

    fn map(&self, at: u64) -> &[AtomicU64] {
        self.atomics(at, self.layout.map_words() as usize)
    }

    /// Marks a chunk as a free one of a kind, or not.
    fn mark(&self, kind: Kind, chunk: u32, free: bool) {
        let bit = 1 << (chunk % 64);
        let (map, set) = match kind {
            Kind::Spare => (self.layout.spare, free),
            _ => (self.layout.bare, !free),
        };
        let word = &self.map(map)[chunk as usize / 64];
        if set {
            word.fetch_or(bit, SeqCst);
        } else {
            word.fetch_and(!bit, SeqCst);
        }
    }

    /// Takes a free chunk for `owner`, preferably one with memory; `None` if there are no more than `kept`.
    pub(super) fn take_chunk(&self, owner: u16, kept: u32) -> Option<u32> {
        if self.free_chunks() <= kept {
            return None;
        }
        for (map, kind, unset) in [
            (self.layout.spare, Kind::Spare, 0),
            (self.layout.bare, Kind::Bare, u64::MAX),
        ] {
            for (group, word) in self.map(map).iter().enumerate() {
                let mut bits = word.load(SeqCst) ^ unset;
                while bits != 0 {
                    let number = group as u32 * 64 + bits.trailing_zeros();
                    bits &= bits - 1;
                    let Some(chunk) = self.chunk(number) else {
                        continue;
                    };
                    let state = Self::state_of(chunk);
                    if state.kind() != kind
                        || !Self::advance(chunk, state, state.next(Kind::Open, owner))
                    {
                        continue;
                    }
                    self.mark(kind, number, false);
                    chunk.live.store(0, SeqCst);
                    chunk.entries.store(0, SeqCst);
                    if kind == Kind::Bare {
                        let at = self.layout.data + u64::from(number) * CHUNK_BYTES;
                        self.memory.populate(at, CHUNK_BYTES);
                    }
                    // A reader of the former contents finds its word changed.
                    fence(SeqCst);
                    return Some(number);
                }
            }
        }
        None
    }

    /// The owner of an open chunk is done with it.
    pub(super) fn close(&self, number: u32) {
        let Some(chunk) = self.chunk(number) else {
            return;
        };
        let state = Self::state_of(chunk);
        if state.kind() == Kind::Open
            && Self::advance(chunk, state, state.next(Kind::Closed, 0))
            && chunk.live.load(SeqCst) == 0
        {
            self.free_if_empty(number);
        }
    }

    /// Closes the chunk that a dead process was filling, and finds free chunks that it did not mark.
    pub(super) fn close_chunks_of(&self, owner: u16) {
        for number in 0..self.layout.chunks {
            let Some(chunk) = self.chunk(number) else {
                return;
            };
            let state = Self::state_of(chunk);
            match state.kind() {
                Kind::Open if state.owner() == owner => self.close(number),
                kind @ (Kind::Spare | Kind::Bare) => self.mark(kind, number, true),
                _ => {}
            }
        }
    }

    /// The slot in entry `entry` of a chunk's index.
    pub(super) fn slot_in(&self, number: u32, entry: u32) -> u32 {
        let at = Self::entry_at(number, entry);
        let word = self.atomics(self.layout.data + at / 8 * 8, 1)[0].load(Relaxed);
        (word >> (at % 8 * 8)) as u32
    }

    pub(super) fn set_slot_in(&self, number: u32, entry: u32, slot: u32) {
        let at = Self::entry_at(number, entry);
        let place = &self.atomics(self.layout.data + at / 8 * 8, 1)[0];
        // Only the chunk's owner writes here. The lower half follows the upper one.
        let word = place.load(Relaxed);
        let shift = at % 8 * 8;
        let word = word & !(0xffff_ffff << shift) | u64::from(slot) << shift;
        place.store(word, Relaxed);
    }

    fn entry_at(number: u32, entry: u32) -> u64 {
        (u64::from(number) + 1) * CHUNK_BYTES - (u64::from(entry) + 1) * ENTRY
    }

    /// The word of the slot in an entry, if its page is in this chunk.
    pub(super) fn live_in(&self, number: u32, entry: u32) -> Option<(u32, Word)> {
        let slot = self.slot_in(number, entry);
        let word = Word(self.word(slot)?.load(SeqCst));
        (!word.is_empty() && word.chunk() == number).then_some((slot, word))
    }

    /// The bytes of `old` belong to no slot any more.
    pub(super) fn let_go(&self, old: Word) {
        let units = old.units();
        subtract(&self.header().live, units.into());
        let Some(chunk) = self.chunk(old.chunk()) else {
            return;
        };
        let less = |now: u32| Some(now.saturating_sub(units));
        let before = chunk.live.fetch_update(SeqCst, SeqCst, less).unwrap_or(0);
        if before <= units && Self::state_of(chunk).kind() == Kind::Closed {
            self.free_if_empty(old.chunk());
        }
    }

    /// Pages in the index of a chunk.
    pub(super) fn entries_of(&self, number: u32) -> u32 {
        let entries = self
            .chunk(number)
            .map_or(0, |chunk| chunk.entries.load(SeqCst));
        entries.min((CHUNK_BYTES / ENTRY) as u32)
    }

    /// Of the next chunks, the closed one with the fewest live units, at most `most`.
    pub(super) fn emptiest(&self, most: u32) -> Option<u32> {
        let chunks = self.layout.chunks;
        let start = self.header().hand.load(Relaxed) % chunks;
        let mut best = None;
        for number in (start..chunks).chain(0..start).take(LOOK) {
            let Some(chunk) = self.chunk(number) else {
                continue;
            };
            let live = chunk.live.load(Relaxed);
            if live <= most
                && best.is_none_or(|(least, _)| live < least)
                && Self::state_of(chunk).kind() == Kind::Closed
            {
                best = Some((live, number));
            }
        }
        let next = start + LOOK as u32 / 2;
        self.header().hand.store(next % chunks, Relaxed);
        best.map(|(_, number)| number)
    }

    /// Frees a closed chunk without live pages.
    pub(super) fn free_if_empty(&self, number: u32) {
        let Some(chunk) = self.chunk(number) else {
            return;
        };
        let state = Self::state_of(chunk);
        if state.kind() != Kind::Closed
            || (0..self.entries_of(number)).any(|entry| self.live_in(number, entry).is_some())
        {
            return;
        }
        // No page can have become live: closed chunks only lose pages, and the version reveals any other change.
        if self.spares() < SPARES {
            if Self::advance(chunk, state, state.next(Kind::Spare, 0)) {
                self.mark(Kind::Spare, number, true);
            }
            return;
        }
        // No other process takes it while its memory is freed.
        let ours = state.next(Kind::Open, PUNCHING);
        if !Self::advance(chunk, state, ours) {
            return;
        }
        let at = self.layout.data + u64::from(number) * CHUNK_BYTES;
        self.memory.punch(at, CHUNK_BYTES);
        if Self::advance(chunk, ours, ours.next(Kind::Bare, 0)) {
            self.mark(Kind::Bare, number, true);
        }
    }
}
