//! `sysbench --test=fileio --file-test-mode=rndrw`: threads read and write blocks at random places of many files, and
//! all files are synced from time to time.

use foreswap_core::units::Nanos;

use crate::sim::file_machine::{FileOp, FileWork, Part};
use crate::sim::page_cache::FileId;
use crate::sim::rng::Rng;

/// Files that the total is divided into (sysbench's default).
pub const FILES: u64 = 128;
/// Reads to writes, in tenths (`--file-rw-ratio`, its default).
const READS: u64 = 15;
/// Requests after which all files are synced (`--file-fsync-freq`, its default).
const SYNC: u64 = 100;

/// All threads.
#[derive(Debug)]
pub struct FileIo {
    /// Bytes of each file and of a block.
    file: u64,
    block: u64,
    rng: Rng,
    requests: u64,
    reads: u64,
    writes: u64,
    /// The due sync for the requests so far was done.
    synced: bool,
}

impl FileIo {
    /// This many requests for blocks of `block` bytes, in [`FILES`] files of `file` bytes each.
    pub fn new(file: u64, block: u64, requests: u64, rng: Rng) -> Self {
        FileIo {
            file,
            block,
            rng,
            requests,
            reads: 0,
            writes: 0,
            synced: true,
        }
    }
}

impl FileWork for FileIo {
    fn next(&mut self, _: usize, _: Nanos) -> FileOp {
        let done = self.reads + self.writes;
        let last = done >= self.requests;
        if (done.is_multiple_of(SYNC) || last) && !std::mem::replace(&mut self.synced, true) {
            return FileOp::Sync;
        }
        if last {
            return FileOp::End;
        }
        self.synced = false;
        let blocks = self.file / self.block;
        let at = self.rng.below(FILES * blocks);
        let part = Part {
            file: FileId((at / blocks) as u32),
            offset: at % blocks * self.block,
            bytes: self.block,
        };
        if 10 * (self.reads + 1) < READS * (self.writes + 1) {
            self.reads += 1;
            FileOp::Read(part)
        } else {
            self.writes += 1;
            FileOp::Write(part)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_writes_and_writing_out_come_in_their_shares() {
        let mut work = FileIo::new(1 << 20, 1 << 16, 1_000, Rng::new(1));
        let (mut reads, mut writes, mut syncs) = (0, 0, 0);
        loop {
            match work.next(0, 0) {
                FileOp::Read(_) => reads += 1,
                FileOp::Write(_) => writes += 1,
                FileOp::Sync => syncs += 1,
                _ => break,
            }
        }
        assert_eq!((reads + writes, syncs), (1_000, 10));
        assert!((595..=605).contains(&reads), "{reads}");
    }
}
