//! Pages of a stream that are read together.

use super::grid::Grid;
use crate::units::Vpn;

/// Pages of a grid, one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// What the stream takes.
    pub grid: Grid,
    /// Position of its first page.
    pub from: u64,
    /// Number of pages.
    pub count: u64,
}

impl Run {
    /// Its pages, in the order of the stream.
    pub fn pages(self) -> impl Iterator<Item = Vpn> {
        (self.from..self.from + self.count).map(move |at| self.grid.page(at))
    }

    /// Its pages, from the lowest to the highest.
    pub fn rising(self) -> impl Iterator<Item = Vpn> {
        (0..self.count).map(move |n| {
            let last = self.from + self.count - 1;
            let falls = self.grid.falls();
            self.grid.page(if falls { last - n } else { self.from + n })
        })
    }

    /// The page that the stream takes after `page`, which is one of its pages.
    pub fn after(self, page: Vpn) -> Vpn {
        let at = self.grid.position(page).map_or(self.from, |at| at + 1);
        self.grid.page(at)
    }

    /// Its first `count` pages, in the order of the stream.
    pub fn shortened(self, count: u64) -> Self {
        Run { count, ..self }
    }
}
