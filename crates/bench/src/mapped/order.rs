//! The orders in which the pages of a mapped file are touched.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::usemem::{Draw, mix};

/// Of so many pages, one is touched.
const STRIDE: u64 = 7;

/// The kinds of order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// From the first page to the last: a loader takes tensor after tensor.
    Loader,
    /// Tensors in a shuffled order, the pages of each in order.
    Shuffled,
    /// From the last page to the first.
    Reverse,
    /// Every seventh page.
    Stride,
    /// A sixteenth as many pages as there are, at random.
    Random,
}

/// An order of pages.
#[derive(Debug)]
pub struct Order {
    kind: Kind,
    pages: u64,
    tensor: u64,
    /// The first pages of the tensors, in their order.
    starts: Vec<u64>,
    seed: u64,
}

impl Order {
    /// Of a file of so many pages, with tensors of so many; the last one may be shorter.
    pub fn new(kind: Kind, pages: u64, tensor: u64, seed: u64) -> Self {
        let mut starts: Vec<u64> = (0..pages / tensor).map(|n| n * tensor).collect();
        let mut draw = Draw::new(seed, 1);
        for n in (1..starts.len()).rev() {
            starts.swap(n, draw.below(n as u64 + 1) as usize);
        }
        Order {
            kind,
            pages,
            tensor,
            starts,
            seed,
        }
    }

    /// Touches of a pass.
    pub fn count(&self) -> u64 {
        match self.kind {
            Kind::Loader | Kind::Reverse => self.pages,
            Kind::Shuffled => self.starts.len() as u64 * self.tensor,
            Kind::Stride => self.pages.div_ceil(STRIDE),
            Kind::Random => self.pages.div_ceil(16),
        }
    }

    /// The page of touch `n`.
    pub fn page(&self, n: u64) -> u64 {
        match self.kind {
            Kind::Loader => n,
            Kind::Shuffled => self.starts[(n / self.tensor) as usize] + n % self.tensor,
            Kind::Reverse => self.pages - 1 - n,
            Kind::Stride => n * STRIDE,
            Kind::Random => mix(self.seed << 32 | n) % self.pages,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_page_is_touched_once_but_for_two_orders() {
        for kind in Kind::value_variants() {
            let order = Order::new(*kind, 1024, 64, 1);
            let mut pages: Vec<u64> = (0..order.count()).map(|n| order.page(n)).collect();
            let in_order = pages.is_sorted();
            pages.sort_unstable();
            pages.dedup();
            let expected = match kind {
                Kind::Stride => 147,
                Kind::Random => continue,
                _ => 1024,
            };
            assert_eq!(pages.len(), expected, "{kind:?}");
            assert_eq!(
                in_order,
                matches!(kind, Kind::Loader | Kind::Stride),
                "{kind:?}"
            );
        }
    }

    #[test]
    fn a_tensor_is_touched_in_order() {
        let order = Order::new(Kind::Shuffled, 1000, 64, 1);
        assert_eq!(order.count(), 960, "the last tensor is left out");
        for n in 0..order.count() {
            let first = order.page(n / 64 * 64);
            assert_eq!(order.page(n), first + n % 64);
            assert!(first.is_multiple_of(64));
        }
    }
}
