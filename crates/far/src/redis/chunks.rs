//! Which pages of which chunks are on the servers.

use std::cell::RefCell;

use super::{CHUNK, CHUNK_PAGES};
use crate::transfer::Part;

const PAGE: u64 = foreswap_store::area::PAGE_BYTES;
const _: () = assert!(CHUNK_PAGES == 64);

/// The place of a part in its chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The chunk's number.
    pub chunk: u64,
    /// The first byte in it.
    pub from: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Place {
    /// Of a part, which does not cross the end of a chunk: see [`crate::transfer::Transfer::parts`].
    pub fn of(part: &Part) -> Self {
        // The first page of an area is reserved, and has no chunk.
        let at = part.offset().saturating_sub(PAGE);
        Self {
            chunk: at / CHUNK,
            from: at % CHUNK,
            bytes: u64::from(part.bytes),
        }
    }

    /// All of a chunk.
    pub fn is_whole(&self) -> bool {
        self.from == 0 && self.bytes == CHUNK
    }

    /// Its pages, as bits.
    pub fn mask(&self) -> u64 {
        let pages = self.bytes / PAGE;
        let low = u64::MAX >> (CHUNK_PAGES - pages.clamp(1, CHUNK_PAGES));
        low << (self.from / PAGE)
    }
}

#[derive(Clone, Copy, Default)]
struct Chunk {
    /// Pages that were written.
    there: u64,
    /// Pages that were written, and are gone.
    lost: u64,
    /// Something was sent.
    is_used: bool,
}

/// All of an area.
#[derive(Default)]
pub struct Chunks(RefCell<Vec<Chunk>>);

impl Chunks {
    fn with<T>(&self, chunk: u64, then: impl FnOnce(&mut Chunk) -> T) -> T {
        let mut all = self.0.borrow_mut();
        let at = chunk as usize;
        if all.len() <= at {
            all.resize(at + 1, Chunk::default());
        }
        then(&mut all[at])
    }

    /// A write is about to be sent. Returns the pages that its chunk must have.
    pub fn on_write(&self, place: Place) -> u64 {
        self.with(place.chunk, |chunk| {
            chunk.is_used = true;
            chunk.there
        })
    }

    /// The write was acknowledged.
    pub fn on_written(&self, place: Place) {
        self.with(place.chunk, |chunk| {
            chunk.there |= place.mask();
            chunk.lost &= !place.mask();
        });
    }

    /// The chunk, which had pages `had`, was not there. Returns whether any page is lost by that.
    pub fn on_missing(&self, chunk: u64, had: u64) -> bool {
        self.with(chunk, |chunk| {
            let gone = chunk.there & had;
            chunk.lost |= gone;
            chunk.there &= !gone;
            gone != 0
        })
    }

    /// Whether the pages of a chunk were written, all those in `mask` that are there or lost.
    pub fn written(&self, chunk: u64) -> (u64, u64) {
        self.with(chunk, |chunk| (chunk.there, chunk.lost))
    }

    /// Nothing is there any more.
    pub fn on_all_lost(&self) {
        for chunk in self.0.borrow_mut().iter_mut() {
            chunk.lost |= std::mem::take(&mut chunk.there);
        }
    }

    /// The chunks to which something was sent.
    pub fn used(&self) -> Vec<u64> {
        let all = self.0.borrow();
        let numbered = (0..).zip(all.iter());
        numbered
            .filter(|(_, chunk)| chunk.is_used)
            .map(|(number, _)| number)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_were_written_before_a_chunk_was_lost_are_lost() {
        let chunks = Chunks::default();
        let place = |from: u64, pages: u64| Place {
            chunk: 2,
            from: from * PAGE,
            bytes: pages * PAGE,
        };
        assert_eq!(place(0, 64).mask(), u64::MAX);
        assert_eq!(place(4, 2).mask(), 0b11_0000);
        assert_eq!(chunks.on_write(place(0, 4)), 0);
        // The first write finds no chunk, and loses nothing by that.
        assert!(!chunks.on_missing(2, 0));
        chunks.on_written(place(0, 4));
        let had = chunks.on_write(place(2, 4));
        assert_eq!(had, 0b1111);
        assert!(chunks.on_missing(2, had));
        chunks.on_written(place(2, 4));
        assert_eq!(chunks.written(2), (0b11_1100, 0b11));
        chunks.on_all_lost();
        assert_eq!(chunks.written(2), (0, 0b11_1111));
        assert_eq!((chunks.used(), chunks.written(9)), (vec![2], (0, 0)));
    }
}
