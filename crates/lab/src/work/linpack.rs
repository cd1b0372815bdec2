//! Linpack: LU factorisation of a matrix in column order, blocked and right-looking.
//!
//! One thread fills the matrix. Then, block column by block column, the panel below the diagonal is factored, and the
//! rest to its right is updated with it. Threads are assigned dynamically, as in MKL: an idle thread updates the next
//! block column, and a thread that has brought the next panel up to date factors it at once, while the others
//! continue (look-ahead). Threads wait for each other only for missing inputs. At the end one thread passes over the
//! matrix once more to check the result. Only the pages touched by each step and the time of its arithmetic are
//! modelled; the numbers themselves are not.

use std::cell::RefCell;
use std::rc::Rc;

use foreswap_core::units::{Nanos, PageRange, len};

use super::nth;
use crate::sim::program::{Op, Program};

/// The interval at which an idle thread looks for work.
const LOOK: Nanos = 500_000;

/// The matrix, shared by the threads.
#[derive(Clone, Debug)]
pub struct Matrix {
    /// Its memory, column after column.
    pub region: PageRange,
    /// Block columns, and as many block rows.
    pub blocks: u64,
    /// Pages of a column.
    pub column: u64,
    /// Threads.
    pub threads: u64,
    /// Time of one thread to generate a page's elements.
    pub generate: Nanos,
    /// Time of one thread to update a page's elements with one block column.
    pub update: Nanos,
}

/// A part of the factorisation for one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Factor the panel.
    Panel(u64),
    /// Update a block column with this panel.
    Update(u64, u64),
}

/// The state of the factorisation.
#[derive(Debug)]
struct Progress {
    /// Factored panels.
    panels: u64,
    /// The next update to begin.
    next: (u64, u64),
    /// The number of panels by which each block column is updated.
    updated: Vec<u64>,
}

impl Progress {
    /// The initial state.
    fn new(blocks: u64) -> Self {
        Progress {
            panels: 0,
            next: (0, 1),
            updated: vec![0; blocks as usize],
        }
    }

    /// The next part for an idle thread, if there is one.
    fn take(&mut self, blocks: u64) -> Option<Part> {
        let (mut panel, mut column) = self.next;
        if column == blocks {
            (panel, column) = (panel + 1, panel + 2);
        }
        let there = panel < self.panels && column < blocks;
        if !there || self.updated[column as usize] != panel {
            return None;
        }
        self.next = (panel, column + 1);
        Some(Part::Update(panel, column))
    }

    /// A part is done. Returns the thread's next part, if it has priority.
    fn done(&mut self, part: Part) -> Option<Part> {
        match part {
            Part::Panel(panel) => {
                self.panels = panel + 1;
                None
            }
            Part::Update(panel, column) => {
                self.updated[column as usize] = panel + 1;
                (column == panel + 1).then_some(Part::Panel(column))
            }
        }
    }
}

impl Matrix {
    /// Pages of a block column.
    fn width(&self) -> u64 {
        len(&self.region) / self.blocks
    }

    /// Pages of each column from block row `row` on.
    fn below(&self, row: u64) -> u64 {
        self.column - self.column * row / self.blocks
    }

    /// Pages of a block column from block row `row` on.
    fn part(&self, row: u64) -> u64 {
        self.width() / self.column * self.below(row)
    }

    /// Page number `n` of block column `block` in rows from block row `row` on: the lower part of each column.
    fn place(&self, block: u64, row: u64, n: u64) -> u64 {
        let below = self.below(row);
        let above = self.column - below;
        block * self.width() + n / below * self.column + above + n % below
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Map,
    Generate,
    Factor,
    Check,
}

/// One thread.
#[derive(Clone, Debug)]
pub struct Thread {
    matrix: Matrix,
    progress: Rc<RefCell<Progress>>,
    id: u64,
    phase: Phase,
    part: Option<Part>,
    /// The next page of the part, or of the matrix.
    page: u64,
}

impl Thread {
    /// All threads.
    pub fn all(matrix: &Matrix) -> Vec<Self> {
        let progress = Rc::new(RefCell::new(Progress::new(matrix.blocks)));
        let thread = |id| Thread {
            matrix: matrix.clone(),
            progress: Rc::clone(&progress),
            id,
            phase: Phase::Map,
            // The first panel has no dependencies.
            part: (id == 0).then_some(Part::Panel(0)),
            page: 0,
        };
        (0..matrix.threads).map(thread).collect()
    }

    /// The first thread passes over the whole matrix. `None` at its end, and for the others.
    fn over_all(&mut self) -> Option<Op> {
        let m = &self.matrix;
        let n = self.page;
        self.page += 1;
        (self.id == 0 && n < m.width() * m.blocks).then(|| self.touch(n, self.matrix.generate))
    }

    fn touch(&self, n: u64, work: Nanos) -> Op {
        Op::Touch {
            page: nth(&self.matrix.region, n),
            write: self.phase != Phase::Check,
            work,
        }
    }

    /// `None` once all panels are factored.
    fn factor(&mut self) -> Option<Op> {
        let blocks = self.matrix.blocks;
        loop {
            let mut progress = self.progress.borrow_mut();
            if progress.panels == blocks {
                return None;
            }
            let Some(part) = self.part.or_else(|| progress.take(blocks)) else {
                return Some(Op::Spin(LOOK));
            };
            let (row, column) = match part {
                Part::Panel(panel) => (panel, panel),
                Part::Update(panel, column) => (panel, column),
            };
            self.part = Some(part);
            if self.page < self.matrix.part(row) {
                drop(progress);
                let n = self.matrix.place(column, row, self.page);
                self.page += 1;
                return Some(self.touch(n, self.matrix.update));
            }
            self.part = progress.done(part);
            self.page = 0;
        }
    }
}

impl Program for Thread {
    fn next(&mut self, _: Nanos) -> Op {
        let op = match self.phase {
            Phase::Map => {
                self.phase = Phase::Generate;
                return Op::Map(self.matrix.region.clone());
            }
            Phase::Generate | Phase::Check => self.over_all(),
            Phase::Factor => self.factor(),
        };
        op.unwrap_or_else(|| {
            self.page = 0;
            self.phase = match self.phase {
                Phase::Map | Phase::Generate => Phase::Factor,
                Phase::Factor => Phase::Check,
                Phase::Check => return Op::End,
            };
            Op::Gather
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::rng::Rng;
    use foreswap_core::units::Vpn;

    fn matrix(pages: u64) -> Matrix {
        Matrix {
            region: Vpn(0)..Vpn(pages),
            blocks: 16,
            column: 32,
            threads: 4,
            generate: 1,
            update: 2,
        }
    }

    /// Runs the threads in turns; returns how often each page is touched between two gatherings.
    fn phases(matrix: &Matrix) -> Vec<Vec<u32>> {
        let mut all = Vec::new();
        let mut threads = Thread::all(matrix);
        while !threads.is_empty() {
            let mut touches = vec![0; len(&matrix.region) as usize];
            let mut going: Vec<Thread> = std::mem::take(&mut threads);
            while !going.is_empty() {
                for mut thread in std::mem::take(&mut going) {
                    match thread.next(0) {
                        Op::Touch { page, .. } => touches[page.0 as usize] += 1,
                        Op::Gather => {
                            threads.push(thread);
                            continue;
                        }
                        Op::End => continue,
                        _ => {}
                    }
                    going.push(thread);
                }
            }
            all.push(touches);
        }
        all
    }

    #[test]
    fn the_whole_matrix_is_made_factored_and_checked() {
        let matrix = matrix(4096);
        let all = phases(&matrix);
        let [made, factored, checked] = &all[..] else {
            panic!("{}", all.len());
        };
        assert!(made.iter().all(|&n| n == 1));
        assert!(checked.iter().all(|&n| n == 1));
        // A block column is touched with each panel up to its own, from that panel's rows on.
        for block in 0..16 {
            let column = &factored[block * 256..][..256];
            assert!(column.iter().all(|&n| n > 0), "{block}");
            let sum: usize = (0..=block).map(|k| 256 * (16 - k) / 16).sum();
            assert_eq!(column.iter().sum::<u32>() as usize, sum, "{block}");
        }
    }

    /// Whatever the time of each part, it begins when its inputs are complete, and is done once.
    #[test]
    fn a_part_waits_for_what_it_needs_and_for_nothing_else() {
        const BLOCKS: u64 = 9;
        for seed in 0..50 {
            let mut rng = Rng::new(seed);
            let mut progress = Progress::new(BLOCKS);
            let mut under_way = vec![Part::Panel(0)];
            let mut done = Vec::new();
            let mut ahead = false;
            while progress.panels < BLOCKS {
                while under_way.len() < 4
                    && let Some(part) = progress.take(BLOCKS)
                {
                    under_way.push(part);
                }
                let part = under_way.swap_remove(rng.below(under_way.len() as u64) as usize);
                let panel = |part: &Part| matches!(part, Part::Panel(_));
                ahead |= panel(&part) && !under_way.is_empty();
                let needs = match part {
                    Part::Panel(0) => vec![],
                    Part::Panel(n) => vec![Part::Update(n - 1, n)],
                    Part::Update(0, _) => vec![Part::Panel(0)],
                    Part::Update(n, column) => vec![Part::Panel(n), Part::Update(n - 1, column)],
                };
                assert!(needs.iter().all(|need| done.contains(need)), "{part:?}");
                assert!(!done.contains(&part), "{part:?}");
                done.push(part);
                under_way.extend(progress.done(part));
            }
            assert_eq!(done.len() as u64, BLOCKS * (BLOCKS + 1) / 2);
            assert!(ahead, "a panel was factored while others updated");
        }
    }
}
