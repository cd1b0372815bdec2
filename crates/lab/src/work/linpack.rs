//! Linpack: LU factorisation of a matrix in column order, blocked and right-looking.
//!
//! One thread fills the matrix. Then, block column by block column: the panel below the diagonal is
//! factored by all threads together, and the rest to its right is updated, each thread on block
//! columns of its own. In the end one thread goes over the matrix once more to check the result.
//! Kept are the pages that each step touches and the time that its arithmetic takes; the numbers
//! themselves are not.

use foreswap_core::units::{Nanos, PageRange, len};

use super::nth;
use crate::sim::program::{Op, Program};

/// The matrix, as threads share it.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Its memory, column after column.
    pub region: PageRange,
    /// Block columns, and as many block rows.
    pub blocks: u64,
    /// Threads.
    pub threads: u64,
    /// To make up a page's elements, by one thread.
    pub generate: Nanos,
    /// To update a page's elements with one block column, by one thread.
    pub update: Nanos,
}

impl Matrix {
    /// Pages of a block column.
    fn width(&self) -> u64 {
        len(&self.region) / self.blocks
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Map,
    Generate,
    Panel(u64),
    Update(u64),
    Check,
}

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    matrix: Matrix,
    id: u64,
    phase: Phase,
    /// Block column and page in it that come next.
    block: u64,
    page: u64,
    gather: bool,
}

impl Thread {
    /// Thread number `id`.
    pub fn new(matrix: Matrix, id: u64) -> Self {
        Thread {
            matrix,
            id,
            phase: Phase::Map,
            block: 0,
            page: 0,
            gather: false,
        }
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        (self.block, self.page) = match phase {
            Phase::Panel(k) => (k, 0),
            // The first block column to the right of the panel that is this thread's.
            Phase::Update(k) => {
                let first = k + 1;
                let threads = self.matrix.threads;
                (first + (self.id + threads - first % threads) % threads, 0)
            }
            Phase::Map | Phase::Generate | Phase::Check => (0, 0),
        };
    }

    /// The next page of this phase and its work; `None` at its end.
    fn step(&mut self) -> Option<(u64, Nanos)> {
        let m = &self.matrix;
        let (width, blocks) = (m.width(), m.blocks);
        match self.phase {
            Phase::Generate | Phase::Check => {
                let n = self.block * width + self.page;
                let mine = self.id == 0 && n < width * blocks;
                self.page += 1;
                mine.then_some((n, m.generate))
            }
            // The threads share a panel's pages; of each column the rows from the diagonal on.
            Phase::Panel(k) => {
                let used = width * (blocks - k) / blocks;
                let n = self.page * m.threads + self.id;
                self.page += 1;
                (n < used).then_some((self.place(k, k, n), m.update))
            }
            Phase::Update(k) => {
                let used = width * (blocks - k) / blocks;
                if self.page >= used {
                    self.page = 0;
                    self.block += m.threads;
                }
                if self.block >= blocks {
                    return None;
                }
                let n = self.page;
                self.page += 1;
                let m = &self.matrix;
                Some((self.place(self.block, k, n), m.update))
            }
            Phase::Map => None,
        }
    }

    /// Page number `n` of those of block column `block` that lie in rows from block row `row` on: of
    /// each column its lower part.
    fn place(&self, block: u64, row: u64, n: u64) -> u64 {
        let m = &self.matrix;
        let width = m.width();
        // A column is so many pages high; shorter ones share a page.
        let column = (width / m.columns_of_block()).max(1);
        let above = column * row / m.blocks;
        let below = column - above;
        let at = n / below * column + above + n % below;
        block * width + at.min(width - 1)
    }
}

impl Matrix {
    /// Columns of a block, so that a block is as high as it is wide.
    fn columns_of_block(&self) -> u64 {
        // The matrix is square: N columns of N / 512 pages make all of its pages.
        let elements = len(&self.region) * 512;
        let side = elements.isqrt();
        (side / self.blocks).max(1)
    }
}

impl Program for Thread {
    fn next(&mut self, _: Nanos) -> Op {
        loop {
            if std::mem::take(&mut self.gather) {
                return Op::Gather;
            }
            if let Some((n, work)) = self.step() {
                return Op::Touch {
                    page: nth(&self.matrix.region, n),
                    write: self.phase != Phase::Check,
                    work,
                };
            }
            let next = match self.phase {
                Phase::Map => {
                    self.enter(Phase::Generate);
                    return Op::Map(self.matrix.region.clone());
                }
                Phase::Generate => Phase::Panel(0),
                Phase::Panel(k) => Phase::Update(k),
                Phase::Update(k) if k + 1 < self.matrix.blocks => Phase::Panel(k + 1),
                Phase::Update(_) => Phase::Check,
                Phase::Check => return Op::End,
            };
            self.enter(next);
            self.gather = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use foreswap_core::units::Vpn;
    use std::collections::BTreeSet;

    fn matrix(pages: u64) -> Matrix {
        Matrix {
            region: Vpn(0)..Vpn(pages),
            blocks: 16,
            threads: 4,
            generate: 1,
            update: 2,
        }
    }

    /// Runs the threads phase by phase; the pages of each phase.
    fn phases(matrix: &Matrix) -> Vec<BTreeSet<u64>> {
        let thread = |id| Thread::new(matrix.clone(), id);
        let mut threads: Vec<Thread> = (0..matrix.threads).map(thread).collect();
        let mut all = vec![BTreeSet::new()];
        let mut going = true;
        while going {
            for thread in &mut threads {
                loop {
                    match thread.next(0) {
                        Op::Touch { page, .. } => all.last_mut().expect("one").insert(page.0),
                        Op::Map(_) => continue,
                        Op::Gather => break,
                        _ => {
                            going = false;
                            break;
                        }
                    };
                }
            }
            all.push(BTreeSet::new());
        }
        all
    }

    #[test]
    fn the_whole_matrix_is_made_shrinks_and_is_checked() {
        let matrix = matrix(4096);
        let all = phases(&matrix);
        assert_eq!(all[0].len(), 4096, "made");
        assert_eq!(all[2 * 16 + 1].len(), 4096, "checked");
        let panel = |k: usize| &all[1 + 2 * k];
        let update = |k: usize| &all[2 + 2 * k];
        assert_eq!(panel(0), &(0..256).collect());
        assert_eq!(update(0), &(256..4096).collect());
        for k in 1..16 {
            assert!(panel(k).len() < panel(k - 1).len() + 16, "{k}");
            assert!(update(k).len() < update(k - 1).len(), "{k}");
            assert!(update(k).iter().all(|page| page / 256 > k as u64), "{k}");
        }
        assert_eq!(update(8).len(), 7 * 128);
    }
}
