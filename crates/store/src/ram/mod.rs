//! A swap area in memory: evicted pages, compressed, where all processes of a run find them.
//!
//! The bytes lie in *chunks* of shared memory. A chunk is filled by the one process that took it,
//! from front to back, and then never written again. The *word* of a slot (see `word`) says where
//! its page's bytes are; it is published after they are there. What is live is defined by the words
//! alone: a page is live where its slot's word points. So freeing a page, writing it anew or moving
//! it is one compare-and-exchange of a word, and a process that is killed between any two
//! instructions leaves bytes that nothing points to, and no lock.
//!
//! A chunk that is full is nobody's: it only loses live pages, so whoever finds none in it may take
//! it, and whoever needs room may move its last pages elsewhere (`writer`). A reader copies the
//! bytes first and then looks whether the word is still the same: if not, they may be another
//! page's, and it reads again.
//!
//! Counts (of live bytes by chunk and overall) are kept beside, for decisions; a killed process may
//! leave them wrong by a page, and nothing that matters rests on them.
//!
//! A page that does not compress is refused, so that the caller can put it on the next area; asked
//! to, it is kept as it is.

mod chunks;
mod codec;
mod layout;
mod word;
mod writer;

#[cfg(test)]
pub(crate) mod tests;

use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicU64, fence};

pub use codec::Method;
pub use layout::{CHUNK_BYTES, MAX_CAPACITY, MIN_CAPACITY, SLOTS_PER_PAGE};
pub use writer::{Refused, Writer};

use codec::Opener;
use layout::{Chunk, Header, Layout, UNIT};
use word::{Form, Word};

/// Bytes of a page.
const PAGE: usize = 4096;
/// How often a page that moves while it is read is read again; each time it was moved by somebody,
/// which takes longer than the reading.
const READ_TRIES: u32 = 1000;

/// Why there is no RAM area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RamError {
    /// Too small or too large.
    #[error(
        "a RAM area of {0} bytes is out of bounds: the least is {MIN_CAPACITY}, the most {MAX_CAPACITY}"
    )]
    Capacity(u64),
    /// Something else is in the memory.
    #[error("the memory holds no RAM area of this version")]
    Mismatch,
}

/// Why a page could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Nothing was written to the slot, or there is no such slot.
    #[error("the slot holds nothing")]
    Nothing,
    /// The bytes are not those of a page: somebody has written over them.
    #[error("the compressed bytes are damaged")]
    Damaged,
}

/// The shared memory of an area, as a process has mapped it.
///
/// # Safety
/// `base` is the start of `bytes` readable and writable bytes, aligned to a page, that stay mapped as
/// long as the value lives, and that nobody changes but through [`Ram`].
pub unsafe trait Backing: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// How many.
    fn bytes(&self) -> usize;
    /// Gives the memory of a range of whole pages back; it reads as zeros afterwards. May do nothing.
    fn punch(&self, offset: u64, bytes: u64);
    /// Gives a range of whole pages memory, in one go. May do nothing.
    fn populate(&self, offset: u64, bytes: u64);
}

/// How full an area is. Exact but for pages that killed processes were just about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// What the user gave, in bytes.
    pub capacity: u64,
    /// Bytes of chunks that are in use.
    pub held: u64,
    /// Bytes of compressed pages.
    pub live: u64,
    /// Pages.
    pub pages: u64,
}

/// Bytes that a page takes, as long as nothing is known of it.
const GUESS: u64 = PAGE as u64 / 2;
/// Pages from which on it is known.
const KNOWN: u64 = 256;

impl Usage {
    /// Bytes that pages can take: the rest is kept back to move them about.
    fn usable(&self) -> u64 {
        self.capacity / 16 * 15
    }

    /// About how many more pages like those that are there have room.
    pub fn room(&self) -> u64 {
        let each = match self.pages {
            0..KNOWN => GUESS,
            pages => (self.live / pages).max(UNIT),
        };
        self.usable().saturating_sub(self.live) / each
    }
}

/// A RAM area, shared by all processes that have mapped it.
pub struct Ram {
    memory: Box<dyn Backing>,
    layout: Layout,
    method: Method,
}

impl std::fmt::Debug for Ram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let usage = self.usage();
        f.debug_struct("Ram")
            .field("method", &self.method)
            .field("usage", &usage)
            .finish()
    }
}

/// Bytes of the shared memory that an area of `capacity` bytes needs, the tables included; most of
/// it is never touched.
pub fn memory_bytes(capacity: u64) -> Result<u64, RamError> {
    Ok(Layout::new(capacity)?.total)
}

/// Slots of an area of `capacity` bytes: [`SLOTS_PER_PAGE`] for each page of it.
pub fn slots(capacity: u64) -> Result<u32, RamError> {
    Ok(Layout::new(capacity)?.slots)
}

/// What the first page of a new area holds; the rest is zeros.
pub fn first_bytes(capacity: u64, method: Method) -> Result<[u8; 24], RamError> {
    let words = [
        layout::MAGIC,
        Layout::new(capacity)?.capacity,
        method.to_word(),
    ];
    let mut bytes = [0; 24];
    for (at, word) in bytes.chunks_exact_mut(8).zip(words) {
        at.copy_from_slice(&word.to_ne_bytes());
    }
    Ok(bytes)
}

impl Ram {
    /// The area in `memory`, made with [`memory_bytes`] and [`first_bytes`].
    pub fn over(memory: Box<dyn Backing>) -> Result<Self, RamError> {
        if memory.bytes() < size_of::<Header>() {
            return Err(RamError::Mismatch);
        }
        // SAFETY: as long as a header, aligned to a page, and it consists of atomics.
        let header = unsafe { memory.base().cast::<Header>().as_ref() };
        let method = Method::from_word(header.method.load(Relaxed));
        let layout = Layout::new(header.capacity.load(Relaxed));
        match (method, layout) {
            (Some(method), Ok(layout))
                if header.magic.load(Relaxed) == layout::MAGIC
                    && layout.total == memory.bytes() as u64 =>
            {
                Ok(Ram {
                    memory,
                    layout,
                    method,
                })
            }
            _ => Err(RamError::Mismatch),
        }
    }

    /// How pages are compressed.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.layout.slots
    }

    /// How full it is.
    pub fn usage(&self) -> Usage {
        let header = self.header();
        let free = self.free_chunks();
        Usage {
            capacity: self.layout.capacity,
            held: u64::from(self.layout.chunks.saturating_sub(free)) * CHUNK_BYTES,
            live: header.live.load(Relaxed) * UNIT,
            pages: header.pages.load(Relaxed),
        }
    }

    /// How full it is, as a share of its slots: as many of them as its memory is taken.
    pub fn filled_slots(&self) -> u32 {
        let usage = Usage {
            capacity: self.layout.capacity,
            live: self.header().live.load(Relaxed) * UNIT,
            ..Usage::default()
        };
        let slots = u64::from(self.layout.slots);
        // 2^36 bytes and 2^27 slots at the most.
        (usage.live * slots / usage.usable()).min(slots) as u32
    }

    /// Nobody uses the slot any more: its bytes are given up. `is_used` says whether somebody has
    /// taken the slot again by now.
    pub fn free(&self, slot: u32, is_used: impl FnOnce() -> bool) {
        let Some(place) = self.word(slot) else {
            return;
        };
        let word = Word(place.load(SeqCst));
        // Looked at after the word: who has taken the slot since will replace the word, and then it
        // is not ours to free.
        if !word.is_empty() && !is_used() {
            self.replace(place, word, word.emptied());
        }
    }

    /// Supervisor: the process `owner` is dead. What it was filling is closed.
    pub fn bury(&self, owner: u16) {
        self.close_chunks_of(owner);
    }

    /// Whether the slot holds a page.
    pub fn holds(&self, slot: u32) -> bool {
        self.word(slot)
            .is_some_and(|place| !Word(place.load(SeqCst)).is_empty())
    }

    /// Replaces the word of a slot, and lets the bytes go that it meant before. False where it has
    /// changed meanwhile.
    fn replace(&self, place: &AtomicU64, old: Word, new: Word) -> bool {
        if place
            .compare_exchange(old.0, new.0, SeqCst, SeqCst)
            .is_err()
        {
            return false;
        }
        match (old.is_empty(), new.is_empty()) {
            (true, false) => _ = self.header().pages.fetch_add(1, Relaxed),
            (false, true) => subtract(&self.header().pages, 1),
            _ => {}
        }
        if !old.is_empty() {
            self.let_go(old);
        }
        true
    }

    /// Copies the bytes that `word` means; what they are is not known before the word is looked at
    /// again.
    fn copy_out(&self, word: Word, bytes: &mut [u8; PAGE]) -> bool {
        let length = word.length();
        if length > PAGE || word.offset() + length as u64 > self.layout.capacity {
            return false;
        }
        let from = self.atomics(self.layout.data + word.offset(), length.div_ceil(8));
        for (to, from) in bytes.chunks_exact_mut(8).zip(from) {
            to.copy_from_slice(&from.load(Relaxed).to_ne_bytes());
        }
        true
    }

    fn copy_in(&self, offset: u64, bytes: &[u8]) {
        let to = self.atomics(self.layout.data + offset, bytes.len().div_ceil(8));
        for (to, from) in to.iter().zip(bytes.chunks(8)) {
            let mut word = [0; 8];
            word[..from.len()].copy_from_slice(from);
            to.store(u64::from_ne_bytes(word), Relaxed);
        }
    }

    fn word(&self, slot: u32) -> Option<&AtomicU64> {
        let words = self.atomics(self.layout.words, self.layout.slots as usize);
        words.get(slot as usize)
    }

    fn header(&self) -> &Header {
        // SAFETY: checked in `over`.
        unsafe { self.memory.base().cast::<Header>().as_ref() }
    }

    fn chunk(&self, chunk: u32) -> Option<&Chunk> {
        if chunk >= self.layout.chunks {
            return None;
        }
        let at = self.layout.records as usize + chunk as usize * size_of::<Chunk>();
        // SAFETY: inside the records, which are inside the memory and aligned, and consist of atomics.
        Some(unsafe { self.memory.base().add(at).cast::<Chunk>().as_ref() })
    }

    fn atomics(&self, at: u64, count: usize) -> &[AtomicU64] {
        assert!(at + count as u64 * 8 <= self.layout.total && at.is_multiple_of(8));
        // SAFETY: inside the memory (just checked) and aligned; atomics are valid for all bytes.
        unsafe {
            let first = self.memory.base().add(at as usize).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), count)
        }
    }
}

/// What a thread needs to read pages.
pub struct Reader {
    opener: Opener,
    bytes: Box<[u8; PAGE]>,
}

impl Reader {
    /// For pages of this method.
    pub fn new(method: Method) -> Self {
        Reader {
            opener: Opener::new(method),
            bytes: Box::new([0; PAGE]),
        }
    }

    /// Brings the page of `slot` into `page`, which is 4096 bytes long. The caller holds a reference
    /// to the slot, so that it stays what it is, wherever it may be moved.
    pub fn read(&mut self, ram: &Ram, slot: u32, page: &mut [u8]) -> Result<(), ReadError> {
        let place = ram.word(slot).ok_or(ReadError::Nothing)?;
        for _ in 0..READ_TRIES {
            let word = Word(place.load(Acquire));
            if word.is_empty() {
                return Err(ReadError::Nothing);
            }
            let copied = ram.copy_out(word, &mut self.bytes);
            // What follows the copy must not come before it.
            fence(Acquire);
            if Word(place.load(Relaxed)) != word {
                continue;
            }
            if !copied {
                return Err(ReadError::Damaged);
            }
            let bytes = &self.bytes[..word.length()];
            let whole = match word.form() {
                Form::Whole if bytes.len() == page.len() => {
                    page.copy_from_slice(bytes);
                    true
                }
                Form::Compressed => self.opener.decompress(bytes, page),
                Form::Whole | Form::Nothing => false,
            };
            return whole.then_some(()).ok_or(ReadError::Damaged);
        }
        Err(ReadError::Damaged)
    }
}

/// Takes `less` away, but never more than there is: the count may be off by what killed processes
/// were about.
fn subtract(count: &AtomicU64, less: u64) {
    let _ = count.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(less)));
}
