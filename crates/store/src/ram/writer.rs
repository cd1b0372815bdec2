//! Writes pages to an area: compresses, appends, and makes room.
//!
//! Each process has a writer, which appends to the chunk that it took. Compaction moves the live pages of the
//! emptiest chunk together with new ones: before the held memory greatly exceeds the live bytes, or when no chunk is
//! free. Some chunks are reserved for it, because a page must be at its new place before the old one is free.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::fence;

use super::chunks::fits;
use super::codec::Squeezer;
use super::layout::{CHUNK_BYTES, UNIT};
use super::word::{Form, Word, units};
use super::{Method, PAGE, Ram};

/// A compressed page larger than this (7/8) does not save enough memory.
const WORTH: usize = PAGE / 8 * 7;
/// A chunk fuller than this many sixteenths is not compacted: if no chunk is free, and if the purpose is only to save
/// memory.
const FULLEST: u64 = 15;
const FULLEST_SPARED: u64 = 12;
/// Chunks emptied in one step: the moved pages fill one chunk, unless there were none.
const MOST_EMPTIED: u32 = 64;
/// Chunks that may be held beyond 4/3 of the live bytes.
const LOOSE: u64 = 16;

/// Why a page was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It is incompressible, and was not to be stored as it is.
    #[error("the page does not compress")]
    Incompressible,
    /// The area is full.
    #[error("the area is full")]
    Full,
    /// There is no such slot.
    #[error("there is no such slot")]
    NoSuchSlot,
}

/// The chunk being filled.
#[derive(Clone, Copy)]
struct Current {
    chunk: u32,
    /// Bytes taken from its front.
    at: u64,
    entries: u32,
}

/// The writer of one process.
pub struct Writer {
    owner: u16,
    squeezer: Squeezer,
    current: Option<Current>,
    /// The bytes being written.
    bytes: Box<[u8; PAGE]>,
    /// The bytes being moved.
    moved: Box<[u8; PAGE]>,
}

impl Writer {
    /// For process number `owner` of the run.
    pub fn new(owner: u16, method: Method) -> Self {
        Writer {
            owner,
            squeezer: Squeezer::new(method),
            current: None,
            bytes: Box::new([0; PAGE]),
            moved: Box::new([0; PAGE]),
        }
    }

    /// Writes `page` to `slot`, in place of its old page. The caller holds the only reference to the slot; `is_used`
    /// tells whether other slots are in use. `as_it_is`: whatever its size.
    pub fn write(
        &mut self,
        ram: &Ram,
        slot: u32,
        page: &[u8; PAGE],
        as_it_is: bool,
        is_used: &dyn Fn(u32) -> bool,
    ) -> Result<(), Refused> {
        let place = ram.word(slot).ok_or(Refused::NoSuchSlot)?;
        let (form, length) = match self.squeezer.compress(page, WORTH) {
            Some(bytes) => {
                self.bytes[..bytes.len()].copy_from_slice(bytes);
                (Form::Compressed, bytes.len())
            }
            None if as_it_is => {
                self.bytes.copy_from_slice(page);
                (Form::Whole, PAGE)
            }
            None => {
                ram.free(slot, || false);
                return Err(Refused::Incompressible);
            }
        };
        // The old page is void, whether or not there is room for the new one.
        ram.free(slot, || false);
        self.make_room(ram, length, is_used);
        let current = self.current.as_mut().ok_or(Refused::Full)?;
        let offset = append(ram, current, slot, &self.bytes[..length]);
        loop {
            let old = Word(place.load(SeqCst));
            if ram.replace(place, old, old.next(form, offset, length)) {
                return Ok(());
            }
        }
    }

    /// Ensures that the current chunk has room for `length` more bytes; fails if the area is full.
    fn make_room(&mut self, ram: &Ram, length: usize, is_used: &dyn Fn(u32) -> bool) {
        let bytes = u64::from(units(length)) * UNIT;
        let has_room = |current: &Current| fits(current.at, current.entries, bytes);
        if !self.current.as_ref().is_some_and(has_room) {
            self.give_back(ram);
            let kept = kept_back(ram);
            let sparse = is_sparse(ram);
            if sparse {
                self.compact(ram, FULLEST_SPARED, bytes, is_used);
            }
            if self.current.is_none() && !self.take(ram, kept) {
                self.compact(ram, FULLEST, bytes, is_used);
            }
        }
    }

    fn take(&mut self, ram: &Ram, kept: u32) -> bool {
        self.current = ram.take_chunk(self.owner, kept).map(|chunk| Current {
            chunk,
            at: 0,
            entries: 0,
        });
        self.current.is_some()
    }

    /// Closes the current chunk: others may find room in it.
    pub fn give_back(&mut self, ram: &Ram) {
        if let Some(current) = self.current.take() {
            ram.close(current.chunk);
        }
    }

    /// Like a process that is killed before it publishes its bytes.
    #[cfg(test)]
    pub(super) fn write_in_vain(&mut self, ram: &Ram, slot: u32, bytes: &[u8]) {
        self.make_room(ram, bytes.len(), &|_| true);
        if let Some(current) = &mut self.current {
            append(ram, current, slot, bytes);
        }
    }

    /// Moves the live pages of the emptiest chunks into a reserved chunk, until that has no room left beside `bytes`.
    /// It then is the current one. No chunk is taken if none would become free.
    fn compact(&mut self, ram: &Ram, fullest: u64, bytes: u64, is_used: &dyn Fn(u32) -> bool) {
        let most = (CHUNK_BYTES / UNIT * fullest / 16) as u32;
        let mut freed = false;
        for _ in 0..MOST_EMPTIED {
            let Some(victim) = ram.emptiest(most) else {
                break;
            };
            if self.current.is_none() && !self.take(ram, 0) {
                return;
            }
            if !self.empty(ram, victim, bytes, is_used) {
                break;
            }
            freed = true;
        }
        if !freed {
            self.give_back(ram);
        }
    }

    /// Moves the live pages of `victim` to the current chunk. False if it had no room for all.
    fn empty(&mut self, ram: &Ram, victim: u32, bytes: u64, is_used: &dyn Fn(u32) -> bool) -> bool {
        for entry in 0..ram.entries_of(victim) {
            let Some((slot, word)) = ram.live_in(victim, entry) else {
                continue;
            };
            let Some(place) = ram.word(slot) else {
                continue;
            };
            if !is_used(slot) {
                // Its last user was killed before it could free it.
                ram.free(slot, || is_used(slot));
                continue;
            }
            let taken = u64::from(word.units()) * UNIT;
            let room =
                |current: &&mut Current| fits(current.at + taken, current.entries + 1, bytes);
            let Some(current) = self.current.as_mut().filter(room) else {
                return false;
            };
            let copied = ram.copy_out(word, &mut self.moved);
            fence(Acquire);
            if !copied || Word(place.load(Relaxed)) != word {
                continue;
            }
            let offset = append(ram, current, slot, &self.moved[..word.length()]);
            let moved = word.next(word.form(), offset, word.length());
            if !ram.replace(place, word, moved) {
                // It was freed or rewritten meanwhile: the copy is void.
                ram.let_go(moved);
            }
        }
        // If it was not freed with its last page.
        ram.free_if_empty(victim);
        true
    }
}

/// Appends bytes, not referenced yet. Returns their place.
fn append(ram: &Ram, current: &mut Current, slot: u32, bytes: &[u8]) -> u64 {
    let offset = u64::from(current.chunk) * CHUNK_BYTES + current.at;
    let taken = units(bytes.len());
    ram.copy_in(offset, bytes);
    ram.set_slot_in(current.chunk, current.entries, slot);
    current.at += u64::from(taken) * UNIT;
    current.entries += 1;
    if let Some(chunk) = ram.chunk(current.chunk) {
        chunk.entries.store(current.entries, Release);
        chunk.live.fetch_add(taken, SeqCst);
    }
    ram.header().live.fetch_add(taken.into(), Relaxed);
    offset
}

/// Free chunks reserved for compaction.
fn kept_back(ram: &Ram) -> u32 {
    (ram.layout.chunks / 64).clamp(2, 64)
}

/// Whether the held memory greatly exceeds the live bytes.
fn is_sparse(ram: &Ram) -> bool {
    let usage = ram.usage();
    usage.held * 3 > usage.live * 4 + LOOSE * CHUNK_BYTES
}
