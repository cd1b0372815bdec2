//! Where in its address space a process was paged, and when: a picture of bounded size that is drawn while records come.
//!
//! A row is a block of addresses, a column a stretch of time. Rows exist only for blocks in which something happened. When
//! there are too many, blocks become twice as large; when the time is over, columns become twice as long. So a run of a
//! second and one of a week take the same memory, and neither needs a second pass.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The most columns. The last half is used only until columns become longer.
pub const COLUMNS: usize = 256;
/// The most rows of a process.
const ROWS: usize = 256;
/// Pages of the first blocks, as a power of two: 64 KiB.
const FIRST_SHIFT: u32 = 4;
/// Pages of a [`Unit`].
const UNIT: u64 = 512;
/// Pages of a word of a [`Unit`].
const WORD: u64 = 64;

/// A block of addresses in a stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Pages that came back from an area or a file.
    pub back: u32,
    /// Pages that were evicted.
    pub out: u32,
    /// Pages in memory at its end.
    pub held: u32,
}

/// A block of addresses.
#[derive(Clone, Debug)]
pub struct Row {
    /// Its pages in memory now.
    held: u32,
    /// The column that `held` was written to last.
    at: usize,
    /// Its past.
    pub cells: Vec<Cell>,
}

impl Row {
    fn new(column: usize) -> Self {
        Self {
            held: 0,
            at: column,
            cells: vec![Cell::default(); COLUMNS],
        }
    }

    /// What is in memory has been so up to `column`.
    fn hold_until(&mut self, column: usize) {
        if column >= self.at {
            for cell in &mut self.cells[self.at..=column] {
                cell.held = self.held;
            }
            self.at = column;
        }
    }

    fn add(&mut self, other: &Self) {
        self.held += other.held;
        for (cell, more) in self.cells.iter_mut().zip(&other.cells) {
            cell.back = cell.back.saturating_add(more.back);
            cell.out = cell.out.saturating_add(more.out);
            cell.held += more.held;
        }
    }

    fn halve(&mut self) {
        for column in 0..COLUMNS / 2 {
            let [first, second] = [self.cells[2 * column], self.cells[2 * column + 1]];
            self.cells[column] = Cell {
                back: first.back.saturating_add(second.back),
                out: first.out.saturating_add(second.out),
                held: second.held,
            };
        }
        self.cells[COLUMNS / 2..].fill(Cell::default());
        // The second of the pair may lie ahead, and is written by the next event.
        self.at /= 2;
    }
}

/// 2 MiB of pages: which are in memory, and which were evicted.
#[derive(Clone, Copy, Debug, Default)]
struct Unit {
    here: [u64; 8],
    out: [u64; 8],
}

/// The unit of a page, the word in it, and the bit in that.
fn place(page: u64) -> (u64, usize, u64) {
    let word = (page % UNIT / WORD) as usize;
    (page / UNIT, word, 1 << (page % WORD))
}

/// What happened to pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// They came, from an area or a file if they had been evicted.
    Came,
    /// They came from an area or a file.
    CameBack,
    /// They came from a frame that they had not left.
    Stayed,
    /// They were evicted.
    Evicted,
    /// Their content is gone.
    Gone,
}

/// The pages of one process.
#[derive(Clone, Debug)]
pub struct Grid {
    shift: u32,
    rows: BTreeMap<u64, Row>,
    units: HashMap<u64, Unit>,
    held: u64,
    moves: u64,
}

impl Default for Grid {
    fn default() -> Self {
        Self {
            shift: FIRST_SHIFT,
            rows: BTreeMap::new(),
            units: HashMap::new(),
            held: 0,
            moves: 0,
        }
    }
}

impl Grid {
    /// Something happened to `pages` in `column`. Returns the number of those that had been
    /// evicted.
    pub fn on_change(&mut self, column: usize, pages: Range<u64>, change: Change) -> u64 {
        if change == Change::Gone {
            for part in self.known(&pages) {
                let number = part.start / UNIT;
                self.on_range(column, part, change);
                let is_empty = |unit: &Unit| (unit.here, unit.out) == ([0; 8], [0; 8]);
                if self.units.get(&number).is_some_and(is_empty) {
                    self.units.remove(&number);
                }
            }
            return 0;
        }
        self.on_range(column, pages, change)
    }

    /// Pages move with their content; the first is then at `to`.
    pub fn on_move(&mut self, column: usize, from: Range<u64>, to: u64) {
        let (mut here, mut out) = (Vec::new(), Vec::new());
        for page in self.known(&from).into_iter().flatten() {
            let (unit, word, bit) = place(page);
            let unit = self.units.get(&unit).copied().unwrap_or_default();
            let moved = page - from.start + to;
            if unit.here[word] & bit != 0 {
                here.push(moved);
            } else if unit.out[word] & bit != 0 {
                out.push(moved);
            }
        }
        self.on_change(column, to..to + (from.end - from.start), Change::Gone);
        self.on_change(column, from, Change::Gone);
        for page in here {
            self.on_range(column, page..page + 1, Change::Came);
        }
        for page in out {
            let (unit, word, bit) = place(page);
            self.units.entry(unit).or_default().out[word] |= bit;
        }
    }

    /// The parts of a range of which anything is known. The range may be as large as an address space.
    fn known(&self, pages: &Range<u64>) -> Vec<Range<u64>> {
        let units: Vec<u64> = match (pages.end - pages.start) / UNIT < self.units.len() as u64 {
            true => (pages.start / UNIT..pages.end.div_ceil(UNIT)).collect(),
            false => self.units.keys().copied().collect(),
        };
        let part = |unit: u64| pages.start.max(unit * UNIT)..pages.end.min(unit * UNIT + UNIT);
        let units = units
            .into_iter()
            .filter(|unit| self.units.contains_key(unit));
        units.map(part).filter(|part| !part.is_empty()).collect()
    }

    fn on_range(&mut self, column: usize, pages: Range<u64>, change: Change) -> u64 {
        let (mut evicted, mut page) = (0, pages.start);
        while page < pages.end {
            // In one word of bits and in one block at a time.
            let step = WORD.min(self.block_pages());
            let end = pages.end.min((page / step + 1) * step);
            evicted += u64::from(self.on_part(column, page..end, change));
            page = end;
        }
        evicted
    }

    fn on_part(&mut self, column: usize, pages: Range<u64>, change: Change) -> u32 {
        let number = (pages.end - pages.start) as u32;
        let unit = self.units.entry(pages.start / UNIT).or_default();
        let word = (pages.start % UNIT / WORD) as usize;
        let mask = (u64::MAX >> (64 - number)) << (pages.start % WORD);
        let (here, out) = (unit.here[word] & mask, unit.out[word] & mask);
        let (mut back, mut left) = (0, 0);
        unit.here[word] &= !mask;
        unit.out[word] &= !mask;
        match change {
            Change::Came | Change::CameBack | Change::Stayed => {
                unit.here[word] |= mask;
                back = match change {
                    Change::CameBack => number,
                    Change::Came => out.count_ones(),
                    _ => 0,
                };
            }
            Change::Evicted => {
                unit.out[word] |= mask;
                left = number;
            }
            Change::Gone if here == 0 => return 0,
            Change::Gone => {}
        }
        let (was, is) = (here.count_ones(), (unit.here[word] & mask).count_ones());
        self.held = self.held + u64::from(is) - u64::from(was);
        let row = self.row(pages.start, column);
        row.hold_until(column);
        row.held = row.held + is - was;
        let cell = &mut row.cells[column];
        cell.held = row.held;
        cell.back = cell.back.saturating_add(back);
        cell.out = cell.out.saturating_add(left);
        self.moves += u64::from(back) + u64::from(left);
        out.count_ones()
    }

    fn row(&mut self, page: u64, column: usize) -> &mut Row {
        while self.rows.len() >= ROWS && !self.rows.contains_key(&(page >> self.shift)) {
            self.enlarge(column);
        }
        let row = self.rows.entry(page >> self.shift);
        row.or_insert_with(|| Row::new(column))
    }

    fn enlarge(&mut self, column: usize) {
        self.shift += 1;
        for (block, mut row) in std::mem::take(&mut self.rows) {
            row.hold_until(column);
            match self.rows.entry(block / 2) {
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(row);
                }
                std::collections::btree_map::Entry::Occupied(mut other) => {
                    other.get_mut().add(&row);
                }
            }
        }
    }

    /// Columns become twice as long.
    pub fn halve(&mut self) {
        self.rows.values_mut().for_each(Row::halve);
    }

    /// Pages in memory now.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// The number of pages that came back or went.
    pub fn moves(&self) -> u64 {
        self.moves
    }

    /// Pages of a block.
    pub fn block_pages(&self) -> u64 {
        1 << self.shift
    }

    /// The blocks in which something happened, by number, as they were up to `column`.
    pub fn rows(&self, column: usize) -> impl Iterator<Item = (u64, Row)> {
        self.rows.iter().map(move |(&block, row)| {
            let mut row = row.clone();
            row.hold_until(column);
            (block, row)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(grid: &Grid, column: usize) -> Vec<(u64, Row)> {
        grid.rows(column).collect()
    }

    #[test]
    fn a_page_that_was_evicted_comes_back() {
        let mut grid = Grid::default();
        assert_eq!(grid.on_change(0, 0..20, Change::Came), 0);
        assert_eq!(grid.held(), 20);
        grid.on_change(1, 0..5, Change::Evicted);
        // Five of them had gone; a sixth is known to have, whoever saw it go.
        assert_eq!(grid.on_change(3, 0..6, Change::Came), 5);
        assert_eq!(grid.on_change(3, 100..101, Change::CameBack), 0);
        let rows = rows(&grid, 4);
        assert_eq!(
            rows.iter().map(|(block, _)| *block).collect::<Vec<_>>(),
            [0, 1, 6]
        );
        let held = |column: usize| rows[0].1.cells[column].held;
        assert_eq!([0, 1, 2, 3, 4].map(held), [16, 11, 11, 16, 16]);
        assert_eq!((rows[0].1.cells[1].out, rows[0].1.cells[3].back), (5, 5));
        assert_eq!(grid.moves(), 11);
    }

    #[test]
    fn what_is_discarded_comes_anew() {
        let mut grid = Grid::default();
        grid.on_change(0, 0..600, Change::Came);
        grid.on_change(0, 0..10, Change::Evicted);
        grid.on_change(1, 5..u64::MAX, Change::Gone);
        assert_eq!(grid.held(), 0);
        grid.on_change(1, 0..5, Change::Gone);
        assert_eq!(grid.on_change(2, 0..600, Change::Came), 0);
        assert_eq!(grid.held(), 600);
    }

    #[test]
    fn pages_move_with_their_past() {
        let mut grid = Grid::default();
        grid.on_change(0, 10..20, Change::Came);
        grid.on_change(0, 10..14, Change::Evicted);
        grid.on_change(0, 5000..5010, Change::Came);
        grid.on_move(1, 0..2000, 4998);
        // What was at the new place is gone.
        assert_eq!((grid.held(), grid.moves()), (6, 4));
        assert_eq!(grid.on_change(2, 10..20, Change::Came), 0);
        assert_eq!(grid.on_change(2, 5008..5018, Change::Came), 4);
        assert_eq!(grid.held(), 20);
    }

    #[test]
    fn any_number_of_blocks_fits() {
        let mut grid = Grid::default();
        for page in 0..20_000 {
            grid.on_change((page / 200) as usize, page * 7..page * 7 + 1, Change::Came);
        }
        let rows = rows(&grid, 99);
        assert!(
            (ROWS / 2..=ROWS).contains(&rows.len()),
            "{} rows",
            rows.len()
        );
        let held: u64 = rows
            .iter()
            .map(|(_, row)| u64::from(row.cells[99].held))
            .sum();
        assert_eq!((held, grid.held()), (20_000, 20_000));
        // Half of them were there at half time.
        let held: u64 = rows
            .iter()
            .map(|(_, row)| u64::from(row.cells[49].held))
            .sum();
        assert_eq!(held, 10_000);
    }

    #[test]
    fn longer_columns_keep_the_sums_and_the_last_state() {
        let mut grid = Grid::default();
        grid.on_change(6, 0..4, Change::CameBack);
        grid.on_change(7, 0..3, Change::Evicted);
        grid.on_change(9, 0..1, Change::CameBack);
        grid.halve();
        grid.on_change(5, 0..1, Change::Evicted);
        let rows = rows(&grid, 6);
        let cells = &rows[0].1.cells;
        let cell = |back, out, held| Cell { back, out, held };
        assert_eq!(
            cells[3..7],
            [cell(4, 3, 1), cell(1, 0, 2), cell(0, 1, 1), cell(0, 0, 1)]
        );
    }
}
