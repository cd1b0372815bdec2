//! The content of file pages, by digest: is a page that was read from a file still as it was read?
//!
//! A private mapping of a file may be written to. At its eviction a page whose digest is that of its last read is
//! dropped; any other has become anonymous and gets a slot on a swap area. A digest is recorded at each read, as the file
//! may have changed since the last one.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;

use crate::units::{LEAF_PAGES, Slot};

/// In place of the digest of a page that was not read. Zeros have this digest too.
const UNKNOWN: u64 = 0;

/// The digests of the file pages that were read: 8 bytes for each, in chunks of 512 that exist once one page was read.
#[derive(Default)]
pub struct FileDigests {
    chunks: BTreeMap<u32, Box<[u64; LEAF_PAGES]>>,
}

impl FileDigests {
    /// A page of a file was read, and its content has this digest.
    pub fn note(&mut self, slot: Slot, digest: u64) {
        let chunk = self.chunks.entry(slot.cluster());
        let chunk = chunk.or_insert_with(|| Box::new([UNKNOWN; LEAF_PAGES]));
        chunk[slot.index as usize % LEAF_PAGES] = digest;
    }

    /// Whether a page with this digest is as it was when it was last read. Pages of zeros are not known: they need no
    /// slot.
    pub fn is(&self, slot: Slot, digest: u64) -> bool {
        let chunk = self.chunks.get(&slot.cluster());
        let known = chunk.map_or(UNKNOWN, |chunk| chunk[slot.index as usize % LEAF_PAGES]);
        known != UNKNOWN && known == digest
    }

    /// The pages of a mapping that is gone are not needed any more; other mappings may have the same pages, and read
    /// them again. `first`: the first one of `n`.
    pub fn forget(&mut self, first: Slot, n: u64) {
        let whole = |index: u64| index.div_ceil(LEAF_PAGES as u64) as u32;
        let end = (u64::from(first.index) + n) / LEAF_PAGES as u64;
        for cluster in whole(first.index.into())..end as u32 {
            self.chunks.remove(&cluster);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_as_it_was_read_last() {
        let mut files = FileDigests::default();
        let slot = Slot::of_file(1000);
        assert!(!files.is(slot, 7));
        files.note(slot, 7);
        assert!(files.is(slot, 7) && !files.is(slot, 8) && !files.is(slot.plus(1), 7));
        files.note(slot, 8);
        assert!(files.is(slot, 8) && !files.is(slot, 7));
    }

    #[test]
    fn only_whole_chunks_are_forgotten() {
        let mut files = FileDigests::default();
        for index in [511, 512, 1023, 1024] {
            files.note(Slot::of_file(index), 7);
        }
        files.forget(Slot::of_file(511), 513 + 100);
        let known = [511, 512, 1023, 1024].map(|index| files.is(Slot::of_file(index), 7));
        assert_eq!(known, [true, false, false, true]);
    }
}
