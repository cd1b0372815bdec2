//! Programs that each read their own file in order at a fixed rate, started one after the other.

use foreswap_core::units::{Nanos, PAGE_SIZE};

use crate::sim::file_machine::{FileOp, FileWork, Part};
use crate::sim::page_cache::FileId;

const PAGE: u64 = PAGE_SIZE as u64;

#[derive(Clone, Debug)]
struct Stream {
    /// When its next page is due.
    due: Nanos,
    pages: u64,
    reads: bool,
}

/// All programs. A late one does not catch up.
#[derive(Debug)]
pub struct Streams {
    streams: Vec<Stream>,
    /// Time from page to page.
    interval: Nanos,
    /// Pages that were read, all together.
    pub pages: u64,
}

impl Streams {
    /// This many programs, one more after each `apart`, each with a page every `interval`.
    pub fn new(count: u64, apart: Nanos, interval: Nanos) -> Self {
        let stream = |n| Stream {
            due: n * apart,
            pages: 0,
            reads: false,
        };
        Streams {
            streams: (0..count).map(stream).collect(),
            interval,
            pages: 0,
        }
    }
}

impl FileWork for Streams {
    fn next(&mut self, task: usize, now: Nanos) -> FileOp {
        let stream = &mut self.streams[task];
        if std::mem::replace(&mut stream.reads, false) {
            self.pages += 1;
            stream.pages += 1;
            stream.due = now.max(stream.due + self.interval);
        }
        if now < stream.due {
            return FileOp::Sleep(stream.due);
        }
        stream.reads = true;
        FileOp::Read(Part {
            file: FileId(task as u32),
            offset: stream.pages * PAGE,
            bytes: PAGE,
        })
    }
}
