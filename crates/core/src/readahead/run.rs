//! Pages of a stream that are read together.

use crate::units::Vpn;

/// Pages at equal distances, in rising order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// The lowest page.
    pub first: Vpn,
    /// Distance from one page to the next, in pages.
    pub step: u64,
    /// Number of pages.
    pub count: u64,
    /// The stream goes from the last page to the first.
    pub falling: bool,
}

impl Run {
    /// Its pages, in the order of the stream.
    pub fn pages(self) -> impl Iterator<Item = Vpn> {
        (0..self.count).map(move |n| {
            let n = if self.falling { self.count - 1 - n } else { n };
            self.first.plus(n * self.step)
        })
    }

    /// Its pages, from the lowest to the highest.
    pub fn rising(self) -> impl Iterator<Item = Vpn> {
        (0..self.count).map(move |n| self.first.plus(n * self.step))
    }

    /// Its first `count` pages, in the order of the stream.
    pub fn shortened(self, count: u64) -> Self {
        let dropped = self.count - count;
        let first = if self.falling { dropped * self.step } else { 0 };
        Run {
            first: self.first.plus(first),
            count,
            ..self
        }
    }
}
