//! Where the pages of a file come from and go to.
//!
//! A [`Store`] moves bytes between a file's offsets and memory, at once or later. [`LocalFile`] is a file of this
//! machine; [`SlowStore`] makes another store slower and faulty, for tests and measurements; [`MemoryStore`] is a file
//! that exists only in memory.

mod local;
mod memory;
mod ring;
mod slow;

use std::fmt::Debug;
use std::io;

pub use foreswap_store::ring::{Direction, IoVec};

pub use local::{LocalFile, Options};
pub use memory::MemoryStore;
pub use ring::Ring;
pub use slow::{SlowStore, Slowness};

use crate::arena::copy;

/// A range of a store and the memory for it. The memory belongs to the cache and stays until the transfer has ended.
#[derive(Debug)]
pub struct Span {
    direction: Direction,
    offset: u64,
    bytes: usize,
    pieces: Vec<IoVec>,
    awaited: bool,
}

// SAFETY: the addresses are of the cache's arena, which any thread may access.
unsafe impl Send for Span {}
// SAFETY: as above.
unsafe impl Sync for Span {}

impl Span {
    /// `bytes`: the length of the pieces together.
    pub(crate) fn new(direction: Direction, offset: u64, pieces: Vec<IoVec>) -> Self {
        let bytes = pieces.iter().map(|piece| piece.len).sum();
        Span {
            direction,
            offset,
            bytes,
            pieces,
            awaited: false,
        }
    }

    /// A program waits for it.
    pub(crate) fn awaited(self, awaited: bool) -> Self {
        Span { awaited, ..self }
    }

    /// Whether a program waits for it: it goes before those that were not started.
    pub fn is_awaited(&self) -> bool {
        self.awaited
    }

    /// To the store, or from there.
    pub fn direction(&self) -> Direction {
        self.direction
    }

    /// The first byte in the store. A multiple of 4 KiB.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Bytes to move. A multiple of 4 KiB, except for a write that ends where the file ends.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The memory, in order: for system calls only, since other threads may read it at the same time. Each address is
    /// a multiple of 4 KiB.
    pub fn pieces(&self) -> &[IoVec] {
        &self.pieces
    }

    /// Copies `bytes` to the memory, for a store that reads by itself. Returns how many fitted.
    pub fn scatter(&self, mut bytes: &[u8]) -> u64 {
        assert_eq!(
            self.direction,
            Direction::Read,
            "the memory of a write stays as it is"
        );
        let before = bytes.len();
        for piece in &self.pieces {
            let (part, rest) = bytes.split_at(piece.len.min(bytes.len()));
            // SAFETY: the piece is the cache's memory for this transfer; accesses to it are atomic (arena.rs).
            unsafe { copy(part.as_ptr(), piece.ptr, part.len()) };
            bytes = rest;
        }
        (before - bytes.len()) as u64
    }

    /// Copies the memory to `bytes`, as much as fits, for a store that writes by itself.
    pub fn gather(&self, mut bytes: &mut [u8]) {
        for piece in &self.pieces {
            let (part, rest) = std::mem::take(&mut bytes)
                .split_at_mut_checked(piece.len)
                .unwrap_or_default();
            // SAFETY: as in `scatter`.
            unsafe { copy(piece.ptr, part.as_mut_ptr(), part.len()) };
            bytes = rest;
        }
    }
}

/// What happens at the end of a transfer. If it is dropped unused, the transfer counts as failed.
pub struct Done(Option<Box<dyn FnOnce(io::Result<u64>) + Send>>);

impl Done {
    /// Calls `on_end` once.
    pub fn new(on_end: impl FnOnce(io::Result<u64>) + Send + 'static) -> Self {
        Done(Some(Box::new(on_end)))
    }

    /// The transfer has ended; so many bytes were moved.
    pub fn end(mut self, result: io::Result<u64>) {
        if let Some(on_end) = self.0.take() {
            on_end(result);
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if let Some(on_end) = self.0.take() {
            on_end(Err(io::Error::other("the store gave the transfer up")));
        }
    }
}

impl Debug for Done {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Done")
    }
}

/// A file's bytes. All methods may be called by several threads at once; no two transfers that overlap are in flight
/// together, unless both read.
pub trait Store: Send + Sync + Debug {
    /// Starts a transfer. Fewer bytes are read than asked for only where the file ends. Does not wait for the
    /// transfer, and calls `done` from any thread.
    fn start(&self, span: Span, done: Done);

    /// The same, and waits. Returns the bytes moved.
    fn carry_out(&self, span: &Span) -> io::Result<u64>;

    /// The size of the file now, in bytes.
    fn bytes(&self) -> io::Result<u64>;

    /// Cuts the file or extends it with zeros.
    fn set_bytes(&self, bytes: u64) -> io::Result<()>;

    /// What was written before survives a crash of the machine.
    fn sync(&self) -> io::Result<()>;
}
