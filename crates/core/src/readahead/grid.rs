//! The pages that a stream takes: all, every seventh, or the first four of every eight.
//!
//! Rows of pages at a fixed stride are what a matrix is by blocks of its columns, an image by tiles, or one array of many
//! in records. The positions of a stream count its pages only.

use crate::units::Vpn;

/// The largest stride of single pages for which huge pages are read whole. Rows need fewer reads than single pages, and must
/// take half of the pages.
const DENSE: u64 = 4;

/// Rows of pages, one `stride` after the other. Positions count their pages from `origin` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grid {
    /// Position 0.
    pub origin: Vpn,
    /// Distance from row to row, in pages; below 0 if the pages are taken in falling order.
    pub stride: i64,
    /// Pages of a row: fewer than the stride, or 1.
    pub row: u64,
}

impl Grid {
    /// Rows of one page.
    pub fn new(origin: Vpn, stride: i64) -> Self {
        Grid {
            origin,
            stride,
            row: 1,
        }
    }

    /// The stride, whatever the order.
    pub fn step(&self) -> u64 {
        self.stride.unsigned_abs()
    }

    /// Whether it takes every page in rising order.
    pub fn is_plain(&self) -> bool {
        self.stride == 1
    }

    /// Whether it leaves out so few pages that huge pages are worth reading, whatever the disk.
    pub fn is_dense(&self) -> bool {
        match self.row {
            1 => self.step() <= DENSE,
            row => self.step() <= 2 * row,
        }
    }

    /// Whether the pages are taken in falling order.
    pub fn falls(&self) -> bool {
        self.stride < 0
    }

    /// Pages from the origin to `position`.
    pub fn distance(&self, position: u64) -> u64 {
        match self.row {
            1 => position * self.step(),
            row => position / row * self.step() + position % row,
        }
    }

    /// The page at `position`.
    pub fn page(&self, position: u64) -> Vpn {
        let distance = self.distance(position) as i64;
        let offset = if self.falls() { -distance } else { distance };
        Vpn(self.origin.0.wrapping_add_signed(offset))
    }

    /// Pages from the origin to `page`, in the order of the grid.
    pub fn forward(&self, page: Vpn) -> i64 {
        let distance = page.0.wrapping_sub(self.origin.0) as i64;
        if self.falls() { -distance } else { distance }
    }

    /// The position of `page`; `None` if it is left out, or before the origin.
    pub fn position(&self, page: Vpn) -> Option<u64> {
        let distance = u64::try_from(self.forward(page)).ok()?;
        let place = distance % self.step();
        (place < self.row).then(|| distance / self.step() * self.row + place)
    }

    /// The positions of pages that are nearer than `distance` to the origin: their number.
    pub fn within(&self, distance: u64) -> u64 {
        distance / self.step() * self.row + (distance % self.step()).min(self.row)
    }

    /// The grid with the rows of `before` in front of its own, as far as both touch; `None` if they do not. If rows then
    /// have no gap, it takes every page.
    pub fn joined(&self, before: &Grid) -> Option<Grid> {
        let gap = self.forward(before.origin).rem_euclid(self.stride.abs()) as u64;
        let row = self.row + before.row;
        if self.stride != before.stride || gap + before.row != self.step() || row > self.step() {
            return None;
        }
        let back = before.row as i64 * -self.stride.signum();
        Some(Grid {
            origin: Vpn(self.origin.0.wrapping_add_signed(back)),
            row,
            ..*self
        })
    }

    /// Every page from the origin on, in the same order.
    pub fn whole(&self) -> Grid {
        Grid::new(self.origin, self.stride.signum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: Grid = Grid {
        origin: Vpn(1000),
        stride: 8,
        row: 3,
    };

    #[test]
    fn positions_count_the_pages_of_rows() {
        let pages = |grid: Grid| [0, 1, 2, 3, 4, 6].map(|at| grid.page(at).0);
        assert_eq!(pages(ROWS), [1000, 1001, 1002, 1008, 1009, 1016]);
        let falling = Grid { stride: -8, ..ROWS };
        assert_eq!(pages(falling), [1000, 999, 998, 992, 991, 984]);
        for grid in [
            ROWS,
            falling,
            Grid::new(Vpn(1000), 1),
            Grid::new(Vpn(1000), -7),
        ] {
            for at in 0..100 {
                assert_eq!(grid.position(grid.page(at)), Some(at));
                assert_eq!(grid.within(grid.distance(at)), at);
            }
        }
        assert_eq!(ROWS.position(Vpn(1003)), None, "left out");
        assert_eq!(ROWS.position(Vpn(999)), None, "before");
        assert_eq!(ROWS.within(8), ROWS.within(3));
    }

    #[test]
    fn grids_that_touch_are_one() {
        for stride in [8, -8] {
            let way = i64::signum(stride);
            let at = |page: i64| Grid::new(Vpn(1000u64.wrapping_add_signed(page * way)), stride);
            let two = at(1).joined(&at(16)).expect("they touch");
            assert_eq!((two.origin, two.row), (at(0).origin, 2));
            let three = at(10).joined(&two).expect("they touch");
            assert_eq!((three.origin, three.row), (at(8).origin, 3));
            assert_eq!(at(2).joined(&at(0)), None, "a page is between");
            assert_eq!(at(0).joined(&at(1)), None, "it comes after");
            let rest = Grid { row: 5, ..at(3) };
            let all = rest.joined(&three).expect("they touch");
            assert_eq!(all.row, all.step());
            assert_eq!(at(1).joined(&all), None, "nothing is left");
        }
        assert_eq!(Grid::new(Vpn(1), 8).joined(&Grid::new(Vpn(0), 7)), None);
    }
}
