//! stutter, the other workload of seed 001: the wait of a program for memory while a large file is copied.
//!
//! A probe repeatedly sleeps, maps a region, touches each of its pages and unmaps it. Beside it, one program holds a
//! large part of memory, touched once, and another repeatedly copies a file that is larger than memory.

use foreswap_core::units::Nanos;

use crate::sim::node::program::{FileId, Op, Program};

/// A task of stutter.
#[derive(Debug)]
pub enum Stutter {
    /// The probe.
    Probe(Probe),
    /// The copying program.
    Copy(Copy),
    /// The program that holds this many pages.
    Hog(u64),
    /// It holds them, and rests.
    Resting,
}

/// The probe.
#[derive(Debug)]
pub struct Probe {
    region: u64,
    rest: Nanos,
    at: u32,
    began: Nanos,
    took: Nanos,
    /// The start and the time of each.
    pub latencies: Vec<(Nanos, Nanos)>,
}

/// The copying program: copies a file to another, one record at a time, waits until all of it is on the disk, removes
/// the copy and begins anew.
#[derive(Debug)]
pub struct Copy {
    from: FileId,
    to: FileId,
    pages: u32,
    record: u32,
    place: u32,
    at: u32,
    /// Pages copied in all.
    pub copied: u64,
}

impl Stutter {
    /// A probe of regions of this many pages, with rests in between.
    pub fn probe(region: u64, rest: Nanos) -> Self {
        Stutter::Probe(Probe {
            region,
            rest,
            at: 0,
            began: 0,
            took: 0,
            latencies: Vec::new(),
        })
    }

    /// Copies file 0 to file 1, of this many pages, in records of `record`.
    pub fn copy(pages: u32, record: u32) -> Self {
        Stutter::Copy(Copy {
            from: 0,
            to: 1,
            pages,
            record,
            place: 0,
            at: 0,
            copied: 0,
        })
    }
}

impl Copy {
    fn next(&mut self) -> Op {
        let pages = self.record.min(self.pages - self.place);
        let first = self.place;
        self.at += 1;
        match self.at {
            1 => Op::Read {
                file: self.from,
                first,
                pages,
                limit: self.pages,
            },
            2 => {
                self.place += pages;
                self.copied += u64::from(pages);
                self.at = if self.place == self.pages { 2 } else { 0 };
                Op::Write {
                    file: self.to,
                    first,
                    pages,
                }
            }
            3 => Op::Sync(self.to),
            _ => {
                (self.at, self.place) = (0, 0);
                Op::Remove(self.to)
            }
        }
    }
}

impl Program for Stutter {
    fn next(&mut self, now: Nanos) -> Op {
        match self {
            Stutter::Probe(probe) => {
                probe.at = probe.at % 3 + 1;
                match probe.at {
                    1 => Op::Sleep(probe.rest),
                    2 => {
                        probe.began = now;
                        Op::Map {
                            pages: probe.region,
                            huge: true,
                        }
                    }
                    _ => Op::Unmap,
                }
            }
            Stutter::Copy(copy) => copy.next(),
            Stutter::Hog(pages) => {
                let pages = *pages;
                *self = Stutter::Resting;
                Op::Map { pages, huge: true }
            }
            Stutter::Resting => Op::End,
        }
    }

    fn done(&mut self, op: &Op, took: Nanos) {
        let Stutter::Probe(probe) = self else { return };
        match op {
            Op::Map { .. } => probe.took = took,
            Op::Unmap => probe.latencies.push((probe.began, probe.took + took)),
            _ => {}
        }
    }
}
