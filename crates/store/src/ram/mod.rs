//! A swap area in memory: evicted pages, compressed, shared by all processes of a run.
//!
//! The bytes lie in *chunks* of shared memory. The process that took a chunk fills it from front to back; after that
//! it is never written again. The *word* of a slot (see `word`) locates its page's bytes and is published after them.
//! Only the words define which pages are live. Freeing, rewriting or moving a page is one compare-and-exchange of a
//! word. A process that is killed between any two instructions leaves only unreferenced bytes, and no lock.
//!
//! A full chunk has no owner and only loses live pages. A process that finds no live page in it may take it, and a
//! process that needs room may move its last pages elsewhere (`writer`). A reader copies the bytes first and then
//! checks the word: if it has changed, the bytes may be another page's, and it reads again.
//!
//! Counts (of live bytes per chunk and overall) are kept for decisions; a killed process may leave them wrong by a
//! page, and correctness does not depend on them.
//!
//! An incompressible page is refused, and the caller can put it on the next area; on request it is stored as it is.

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
/// How often a page that moves during a read is read again; each move takes longer than the read.
const READ_TRIES: u32 = 1000;

/// Why there is no RAM area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RamError {
    /// Too small or too large.
    #[error(
        "a RAM area of {0} bytes is out of bounds: the least is {MIN_CAPACITY}, the most {MAX_CAPACITY}"
    )]
    Capacity(u64),
    /// The memory has other contents.
    #[error("the memory holds no RAM area of this version")]
    Mismatch,
}

/// Why a page could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The slot was never written, or does not exist.
    #[error("the slot holds nothing")]
    Nothing,
    /// The bytes are not those of a page: they were overwritten.
    #[error("the compressed bytes are damaged")]
    Damaged,
}

/// The shared memory of an area, as mapped by a process.
///
/// # Safety
///
/// `base` is the start of `bytes` readable and writable bytes, aligned to a page. They stay mapped as long as the
/// value lives, and change only through [`Ram`].
pub unsafe trait Backing: Send + Sync {
    /// The first byte.
    fn base(&self) -> NonNull<u8>;
    /// Its length.
    fn bytes(&self) -> usize;
    /// Frees the memory of a range of whole pages; it reads as zeros afterwards. May do nothing.
    fn punch(&self, offset: u64, bytes: u64);
    /// Allocates the memory of a range of whole pages in one step. May do nothing.
    fn populate(&self, offset: u64, bytes: u64);
}

/// The fill of an area. Exact except for pages in progress of killed processes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The user's capacity, in bytes.
    pub capacity: u64,
    /// Bytes of chunks that are in use.
    pub held: u64,
    /// Bytes of compressed pages.
    pub live: u64,
    /// Pages.
    pub pages: u64,
}

/// The assumed bytes per page while unknown.
const GUESS: u64 = PAGE as u64 / 2;
/// Pages from which on the average is used.
const KNOWN: u64 = 256;

impl Usage {
    /// Bytes available to pages: the rest is reserved for compaction.
    fn usable(&self) -> u64 {
        self.capacity / 16 * 15
    }

    /// The estimated number of further pages of the present average size.
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

/// Bytes of shared memory for an area of `capacity` bytes, with the tables; most of it is never touched.
pub fn memory_bytes(capacity: u64) -> Result<u64, RamError> {
    Ok(Layout::new(capacity)?.total)
}

/// Slots of an area of `capacity` bytes: [`SLOTS_PER_PAGE`] per page.
pub fn slots(capacity: u64) -> Result<u32, RamError> {
    Ok(Layout::new(capacity)?.slots)
}

/// The start of the first page of a new area; the rest is zeros.
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
    /// The area in `memory`, created with [`memory_bytes`] and [`first_bytes`].
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

    /// The compression method.
    pub fn method(&self) -> Method {
        self.method
    }

    /// Slots.
    pub fn slots(&self) -> u32 {
        self.layout.slots
    }

    /// Its fill.
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

    /// Its fill as a number of slots: the same share of them as of its memory.
    pub fn filled_slots(&self) -> u32 {
        let usage = Usage {
            capacity: self.layout.capacity,
            live: self.header().live.load(Relaxed) * UNIT,
            ..Usage::default()
        };
        let slots = u64::from(self.layout.slots);
        // 2^36 bytes and 2^27 slots at most.
        (usage.live * slots / usage.usable()).min(slots) as u32
    }

    /// The slot is unused: its bytes are freed. `is_used` tells whether some process has taken the slot again by now.
    pub fn free(&self, slot: u32, is_used: impl FnOnce() -> bool) {
        let Some(place) = self.word(slot) else {
            return;
        };
        let word = Word(place.load(SeqCst));
        // Checked after the word: a process that has taken the slot since will replace the word, and the bytes are
        // then its own to free.
        if !word.is_empty() && !is_used() {
            self.replace(place, word, word.emptied());
        }
    }

    /// Supervisor: the process `owner` is dead. Closes its open chunk.
    pub fn bury(&self, owner: u16) {
        self.close_chunks_of(owner);
    }

    /// Whether the slot holds a page.
    pub fn holds(&self, slot: u32) -> bool {
        self.word(slot)
            .is_some_and(|place| !Word(place.load(SeqCst)).is_empty())
    }

    /// Replaces the word of a slot, and frees the bytes of the old one. False if it has changed meanwhile.
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

    /// Copies the bytes of `word`; they are valid only if the word is unchanged afterwards.
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

/// The state of one thread for reading pages.
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

    /// Reads the page of `slot` into `page`, which is 4096 bytes long. The caller holds a reference to the slot: its
    /// content stays, although it may be moved.
    pub fn read(&mut self, ram: &Ram, slot: u32, page: &mut [u8]) -> Result<(), ReadError> {
        let place = ram.word(slot).ok_or(ReadError::Nothing)?;
        for _ in 0..READ_TRIES {
            let word = Word(place.load(Acquire));
            if word.is_empty() {
                return Err(ReadError::Nothing);
            }
            let copied = ram.copy_out(word, &mut self.bytes);
            // The check must not precede the copy.
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

/// Subtracts `less`, at most to zero: killed processes may have left the count wrong.
fn subtract(count: &AtomicU64, less: u64) {
    let _ = count.fetch_update(Relaxed, Relaxed, |now| Some(now.saturating_sub(less)));
}
