//! `iozone -c -t1 -s SIZE -r RECORD`: one process, one file, one test after the other. Each test finds the page cache
//! as the last one left it.

use foreswap_core::units::Nanos;

use crate::sim::file_machine::{FileOp, FileWork, Part};
use crate::sim::page_cache::FileId;
use crate::sim::rng::Rng;

/// The distance between records in the stride test (iozone's default).
const STRIDE: u64 = 17;

/// One test.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Write,
    Read,
    Reverse,
    Stride,
    RandomRead,
    RandomWrite,
}

/// The tests in their order. The mixed workload of a single process is a random read. Every random test starts from
/// the same number, and visits the same records.
const TESTS: [(&str, Kind); 11] = [
    ("initial_write", Kind::Write),
    ("rewrite", Kind::Write),
    ("read", Kind::Read),
    ("re_read", Kind::Read),
    ("reverse_read", Kind::Reverse),
    ("stride_read", Kind::Stride),
    ("random_read", Kind::RandomRead),
    ("mixed_workload", Kind::RandomRead),
    ("random_write", Kind::RandomWrite),
    ("pwrite", Kind::Write),
    ("pread", Kind::Read),
];

/// The process.
#[derive(Debug)]
pub struct Iozone {
    file: FileId,
    /// Bytes of a record, and the number of records.
    record: u64,
    records: u64,
    seed: u64,
    rng: Rng,
    test: usize,
    /// Records begun in this test.
    done: u64,
    began: Option<Nanos>,
    /// In the stride test: the position, and the start of its round.
    at: u64,
    round: u64,
    /// The time of each test.
    pub took: Vec<(&'static str, Nanos)>,
}

impl Iozone {
    /// A process with a file of so many records of so many bytes.
    pub fn new(file: FileId, record: u64, records: u64, seed: u64) -> Self {
        Iozone {
            file,
            record,
            records,
            seed,
            rng: Rng::new(seed),
            test: 0,
            done: 0,
            began: None,
            at: 0,
            round: 0,
            took: Vec::new(),
        }
    }

    fn next_record(&mut self, kind: Kind) -> u64 {
        match kind {
            Kind::Write | Kind::Read => self.done,
            Kind::Reverse => self.records - 1 - self.done,
            Kind::RandomRead | Kind::RandomWrite => self.rng.below(self.records),
            Kind::Stride => {
                let at = self.at;
                self.at += STRIDE;
                if self.at >= self.records {
                    self.round += 1;
                    self.at = self.round % self.records;
                }
                at
            }
        }
    }
}

impl FileWork for Iozone {
    fn next(&mut self, _: usize, now: Nanos) -> FileOp {
        let Some(&(name, kind)) = TESTS.get(self.test) else {
            return FileOp::End;
        };
        let Some(began) = self.began else {
            self.began = Some(now);
            self.rng = Rng::new(self.seed);
            return FileOp::Reopen(self.file);
        };
        if self.done == self.records {
            self.took.push((name, now - began));
            self.test += 1;
            self.done = 0;
            self.began = None;
            return FileOp::Compute(1);
        }
        let part = Part {
            file: self.file,
            offset: self.next_record(kind) * self.record,
            bytes: self.record,
        };
        self.done += 1;
        match kind {
            Kind::Write | Kind::RandomWrite => FileOp::Write(part),
            _ => FileOp::Read(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_test_comes_to_its_records() {
        let mut work = Iozone::new(FileId(0), 64, 40, 1);
        let mut parts: Vec<(usize, bool, u64)> = Vec::new();
        loop {
            let test = work.test;
            match work.next(0, 7) {
                FileOp::Read(part) => parts.push((test, false, part.offset / 64)),
                FileOp::Write(part) => parts.push((test, true, part.offset / 64)),
                FileOp::End => break,
                _ => {}
            }
        }
        let of = |n| -> Vec<u64> {
            let test = parts.iter().filter(|(test, ..)| *test == n);
            test.map(|&(_, _, record)| record).collect()
        };
        assert_eq!(parts.len(), 40 * TESTS.len());
        assert_eq!(of(0), (0..40).collect::<Vec<_>>());
        assert_eq!(of(4), (0..40).rev().collect::<Vec<_>>());
        assert_eq!(of(5)[..6], [0, 17, 34, 1, 18, 35]);
        let mut stride = of(5);
        stride.sort_unstable();
        assert_eq!(stride, of(0), "each record once");
        assert_eq!(of(6), of(7));
        assert!(
            parts
                .iter()
                .all(|&(n, write, _)| write == [0, 1, 8, 9].contains(&n))
        );
    }
}
