//! `sysbench --test=oltp --oltp-read-only` on MySQL with InnoDB: threads look rows up in one table, which lies in one
//! file that all threads read through one descriptor.
//!
//! Modelled are the rows of a transaction, their distribution, their blocks in the table, InnoDB's own small block
//! cache, and its limit of threads. The upper levels of the tree are assumed to be in its cache; the second index is
//! not used.

use std::collections::{BTreeMap, HashMap};

use foreswap_core::units::Nanos;

use crate::sim::file_machine::{FileOp, FileWork, Part};
use crate::sim::page_cache::FileId;
use crate::sim::rng::Rng;

/// Bytes of an InnoDB block.
pub const BLOCK: u64 = 16 << 10;
/// Rows of a block filled in order: 15/16 of it by rows of 208 bytes (4 and 4 of numbers, 120 and 60 of
/// text, 20 of InnoDB's own).
const ROWS: u64 = BLOCK * 15 / 16 / 208;
/// Blocks of InnoDB's buffer pool: its default of 8 MiB.
const POOL: u64 = (8 << 20) / BLOCK;
/// Threads that InnoDB admits (`innodb_thread_concurrency`, the default of MySQL 5.0).
pub const THREADS_INSIDE: usize = 8;
/// Queries of a transaction: those for one row, and those for a range of rows (sysbench's defaults).
const POINTS: u64 = 10;
const RANGES: u64 = 4;
const RANGE: u64 = 100;
/// How sysbench draws rows (`--oltp-dist-type=special`, its default): 75 in 100 from 1 in 100 of the
/// rows, in the middle; the others as the mean of 12 draws from all.
const SPECIAL: (u64, u64) = (75, 100);
const SPECIAL_ROWS: u64 = 100;
const DRAWS: u64 = 12;
/// CPU time of a query, and of each of its blocks: MySQL and the client. AnyPolicy such that two cores of the time do
/// some hundreds of such transactions a second from memory.
const QUERY: Nanos = 150_000;
const BLOCK_WORK: Nanos = 20_000;

/// The state of a thread's query.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Stage {
    /// No query.
    #[default]
    Idle,
    /// Parsed, and waiting for admission.
    Parsed,
    /// It looks its blocks up.
    Inside,
    /// It has all blocks.
    Found,
}

#[derive(Clone, Debug, Default)]
struct Thread {
    stage: Stage,
    rng: Option<Rng>,
    /// Remaining queries of its transaction.
    queries: u64,
    /// Blocks that its query still needs, and their total.
    blocks: std::ops::Range<u64>,
    wants: u64,
}

/// All threads, with the buffer pool.
#[derive(Debug)]
pub struct Oltp {
    rows: u64,
    seed: u64,
    /// Transactions to begin. Each has its own random numbers, and wants the same rows in whatever order the threads
    /// come.
    left: u64,
    threads: Vec<Thread>,
    /// The last use of each block of the pool, counted in uses, and the inverse.
    pool: HashMap<u64, u64>,
    uses: BTreeMap<u64, u64>,
    clock: u64,
}

fn draw_row(rng: &mut Rng, rows: u64) -> u64 {
    let (special, of) = SPECIAL;
    if rng.below(of) < special {
        let few = (rows / SPECIAL_ROWS).max(1);
        return (rows - few) / 2 + rng.below(few);
    }
    (0..DRAWS).map(|_| rng.below(rows)).sum::<u64>() / DRAWS
}

impl Oltp {
    /// This many threads do this many transactions on a table of `rows` rows.
    pub fn new(rows: u64, threads: usize, transactions: u64, seed: u64) -> Self {
        Oltp {
            rows,
            seed,
            left: transactions,
            threads: vec![Thread::default(); threads],
            pool: HashMap::new(),
            uses: BTreeMap::new(),
            clock: 0,
        }
    }

    /// Blocks of a table of this many rows.
    pub const fn blocks(rows: u64) -> u64 {
        rows.div_ceil(ROWS)
    }

    /// The blocks of a query.
    fn draw_blocks(&self, rng: &mut Rng, range: bool) -> std::ops::Range<u64> {
        let row = draw_row(rng, self.rows);
        let last = if range { row + RANGE - 1 } else { row };
        row / ROWS..last.min(self.rows - 1) / ROWS + 1
    }

    /// A block is used; returns whether it was in the pool.
    fn use_block(&mut self, block: u64) -> bool {
        self.clock += 1;
        let before = self.pool.insert(block, self.clock);
        if let Some(used) = before {
            self.uses.remove(&used);
        }
        self.uses.insert(self.clock, block);
        if self.pool.len() as u64 > POOL
            && let Some((_, block)) = self.uses.pop_first()
        {
            self.pool.remove(&block);
        }
        before.is_some()
    }
}

impl FileWork for Oltp {
    fn next(&mut self, task: usize, _: Nanos) -> FileOp {
        match self.threads[task].stage {
            Stage::Idle => {
                let Thread { queries, rng, .. } = std::mem::take(&mut self.threads[task]);
                let (queries, mut rng) = match rng {
                    Some(rng) if queries > 0 => (queries, rng),
                    _ if self.left == 0 => return FileOp::End,
                    _ => {
                        self.left -= 1;
                        let rng = Rng::new(self.seed << 16 | self.left);
                        (POINTS + RANGES, rng)
                    }
                };
                let blocks = self.draw_blocks(&mut rng, queries <= RANGES);
                self.threads[task] = Thread {
                    stage: Stage::Parsed,
                    rng: Some(rng),
                    queries: queries - 1,
                    wants: blocks.end - blocks.start,
                    blocks,
                };
                FileOp::Compute(QUERY)
            }
            Stage::Parsed => {
                self.threads[task].stage = Stage::Inside;
                FileOp::Enter
            }
            Stage::Inside => {
                while let Some(block) = self.threads[task].blocks.next() {
                    if !self.use_block(block) {
                        return FileOp::Read(Part {
                            file: FileId(0),
                            offset: block * BLOCK,
                            bytes: BLOCK,
                        });
                    }
                }
                self.threads[task].stage = Stage::Found;
                FileOp::Compute(self.threads[task].wants * BLOCK_WORK)
            }
            Stage::Found => {
                self.threads[task].stage = Stage::Idle;
                FileOp::Leave
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_drawn_from_the_middle_mostly() {
        let rows = 1_000_000;
        let mut rng = Rng::new(1);
        let drawn: Vec<u64> = (0..10_000).map(|_| draw_row(&mut rng, rows)).collect();
        let within = |part: u64| {
            let near = |row: &&u64| row.abs_diff(rows / 2) <= rows / part / 2;
            drawn.iter().filter(near).count()
        };
        // One in a hundred of the rows, and those that the bell has there: 1.2 times 25 in 100 % of 5.
        assert!((7_500..8_000).contains(&within(100)), "{}", within(100));
        // Two standard deviations, of a twelfth each.
        assert!((9_800..9_950).contains(&within(3)), "{}", within(3));
    }

    #[test]
    fn a_transaction_enters_and_leaves_for_each_query() {
        let mut work = Oltp::new(100_000, 1, 3, 1);
        let (mut enters, mut leaves, mut reads) = (0, 0, Vec::new());
        loop {
            match work.next(0, 0) {
                FileOp::Enter => enters += 1,
                FileOp::Leave => leaves += 1,
                FileOp::Read(part) => reads.push(part.offset / BLOCK),
                FileOp::End => break,
                _ => {}
            }
        }
        assert_eq!((enters, leaves), (3 * 14, 3 * 14));
        assert!(reads.windows(2).any(|pair| pair[1] == pair[0] + 1));
        let distinct = reads
            .iter()
            .collect::<std::collections::BTreeSet<_>>()
            .len();
        assert_eq!(distinct, reads.len(), "the pool holds so few blocks");
    }

    #[test]
    fn the_pool_keeps_what_was_used_last() {
        let mut work = Oltp::new(100_000, 1, 1, 1);
        for block in 0..POOL {
            assert!(!work.use_block(block));
        }
        assert!(work.use_block(0));
        assert!(!work.use_block(POOL));
        assert!(work.use_block(0) && !work.use_block(1));
        assert_eq!(work.pool.len() as u64, POOL);
    }
}
