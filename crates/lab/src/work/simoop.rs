//! simoop, the workload of seed 001: similar to a node of a Hadoop cluster.
//!
//! A few workers, each with its own working set, repeat the same round: start some threads, each of which writes a
//! block and reads one, both at random places of a large set of files (the seed: "random blocks from a simulated
//! database"); meanwhile map a region, touch each of its pages and unmap it; when all threads are done, compute over
//! the working set. The region has small pages: huge ones are rarely available where files come and go for long.

use foreswap_core::units::Nanos;

use crate::sim::node::program::{FileId, GateId, Op, Program};
use crate::sim::rng::Rng;

/// The parameters of a round.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Files of the database, and the pages of each.
    pub files: u32,
    /// As above.
    pub file: u32,
    /// Pages of a block that is read or written.
    pub block: u32,
    /// Pages of the mapped region.
    pub region: u64,
    /// Pages of a worker's working set, and the time to compute over it.
    pub set: u64,
    /// As above.
    pub compute: Nanos,
    /// Threads of a worker.
    pub threads: u64,
}

/// The start of an operation, and its latency.
pub type Sample = (Nanos, Nanos);

/// A task of simoop.
#[derive(Debug)]
pub enum Simoop {
    /// A worker.
    Worker(Worker),
    /// One of its threads.
    Thread(Thread),
}

/// A worker: the gates by which its threads start and end.
#[derive(Debug)]
pub struct Worker {
    shape: Shape,
    start: GateId,
    end: GateId,
    round: u64,
    at: u32,
    began: Nanos,
    /// Latencies of the regions.
    pub allocations: Vec<Sample>,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    shape: Shape,
    start: GateId,
    end: GateId,
    rng: Rng,
    round: u64,
    at: u32,
    began: Nanos,
    /// Latencies of the blocks read, and written.
    pub reads: Vec<Sample>,
    /// As above.
    pub writes: Vec<Sample>,
}

impl Simoop {
    /// All tasks of worker number `number`, each with its node: a new thread starts on the least loaded node (Linux
    /// balances at each fork), and the threads of a worker are spread over all nodes.
    pub fn tasks(shape: Shape, number: u32, seed: u64) -> impl Iterator<Item = (usize, Simoop)> {
        let (start, end) = (2 * number, 2 * number + 1);
        let worker = Simoop::Worker(Worker {
            shape,
            start,
            end,
            round: 0,
            at: 0,
            began: 0,
            allocations: Vec::new(),
        });
        let thread = move |n: u64| {
            let own = u64::from(number) * shape.threads + n;
            Simoop::Thread(Thread {
                shape,
                start,
                end,
                rng: Rng::new(seed ^ (own << 32)),
                round: 0,
                at: 0,
                began: 0,
                reads: Vec::new(),
                writes: Vec::new(),
            })
        };
        let threads = (0..shape.threads).map(thread);
        std::iter::once(worker)
            .chain(threads)
            .enumerate()
            .map(move |(n, task)| (number as usize + n, task))
    }

    /// Pages of each file.
    pub fn files(shape: Shape) -> Vec<u32> {
        vec![shape.file; shape.files as usize]
    }
}

impl Worker {
    fn next(&mut self) -> Op {
        self.at += 1;
        match self.at {
            1 => Op::Map {
                pages: self.shape.set,
                huge: true,
            },
            2 => Op::Raise(self.start, 1),
            3 => Op::Map {
                pages: self.shape.region,
                huge: false,
            },
            4 => Op::Unmap,
            5 => {
                self.round += 1;
                Op::Pass(self.end, self.round * self.shape.threads)
            }
            _ => {
                self.at = 1;
                Op::Compute(self.shape.compute)
            }
        }
    }
}

impl Thread {
    /// A block of the database: its file and its first page.
    fn block(&mut self) -> (FileId, u32) {
        let Shape {
            files, file, block, ..
        } = self.shape;
        let which = self.rng.below(files.into()) as u32;
        (which, self.rng.below((file / block).into()) as u32 * block)
    }

    fn next(&mut self) -> Op {
        let pages = self.shape.block;
        self.at = self.at % 4 + 1;
        match self.at {
            1 => {
                self.round += 1;
                Op::Pass(self.start, self.round)
            }
            2 => {
                let (file, first) = self.block();
                Op::Write { file, first, pages }
            }
            3 => {
                let (file, first) = self.block();
                Op::Read {
                    file,
                    first,
                    pages,
                    limit: first + pages,
                }
            }
            _ => Op::Raise(self.end, 1),
        }
    }
}

impl Program for Simoop {
    fn next(&mut self, now: Nanos) -> Op {
        match self {
            Simoop::Worker(worker) => {
                worker.began = now;
                worker.next()
            }
            Simoop::Thread(thread) => {
                thread.began = now;
                thread.next()
            }
        }
    }

    fn done(&mut self, op: &Op, took: Nanos) {
        match (self, op) {
            (Simoop::Worker(worker), Op::Map { .. }) if worker.at == 3 => {
                worker.allocations.push((worker.began, took));
            }
            (Simoop::Thread(thread), Op::Read { .. }) => thread.reads.push((thread.began, took)),
            (Simoop::Thread(thread), Op::Write { .. }) => thread.writes.push((thread.began, took)),
            _ => {}
        }
    }
}
