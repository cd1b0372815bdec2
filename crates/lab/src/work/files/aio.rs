//! `aio-stress`: one thread reads as many bytes as a file has, in order or at random places. The file is not opened
//! for direct I/O: each request completes at submission and none overlap.

use foreswap_core::units::{Nanos, PAGE_SIZE};

use crate::sim::file_machine::{FileOp, FileWork, Part};
use crate::sim::page_cache::FileId;
use crate::sim::rng::Rng;

/// The thread.
#[derive(Debug)]
pub struct Aio {
    file: FileId,
    bytes: u64,
    record: u64,
    /// Random places, if the reads are not in order.
    random: Option<Rng>,
    read: u64,
}

impl Aio {
    /// A thread that reads a file of `bytes` in records of `record`; in order without `random`.
    pub fn new(file: FileId, bytes: u64, record: u64, random: Option<Rng>) -> Self {
        Aio {
            file,
            bytes,
            record,
            random,
            read: 0,
        }
    }
}

impl FileWork for Aio {
    fn next(&mut self, _: usize, _: Nanos) -> FileOp {
        if self.read >= self.bytes {
            return FileOp::End;
        }
        let page = PAGE_SIZE as u64;
        let places = self.bytes.saturating_sub(self.record) / page + 1;
        let offset = match &mut self.random {
            None => self.read,
            Some(rng) => rng.below(places) * page,
        };
        self.read += self.record;
        FileOp::Read(Part {
            file: self.file,
            offset,
            bytes: self.record,
        })
    }
}
