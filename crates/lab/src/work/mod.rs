//! The workloads of the seeds, as programs of simulated tasks.

pub mod files;
pub mod linpack;
pub mod patterns;
pub mod simoop;
pub mod stutter;
pub mod usemem;

use foreswap_core::units::{LEAF_PAGES, PageRange, Vpn};

use crate::sim::machine::BASE;

/// Regions of the tasks, each on leaves of its own.
#[derive(Default, Debug)]
pub struct Layout {
    regions: Vec<PageRange>,
}

impl Layout {
    /// A region of this many pages that touches no other.
    pub fn region(&mut self, pages: u64) -> PageRange {
        let start = BASE.plus(self.pages());
        let region = start..start.plus(pages);
        self.regions.push(region.clone());
        region
    }

    /// All regions.
    pub fn regions(&self) -> &[PageRange] {
        &self.regions
    }

    /// Pages from [`BASE`] to the end of the last region, and a gap.
    pub fn pages(&self) -> u64 {
        let end = self.regions.last().map_or(BASE, |region| region.end);
        let used = (end.0 - BASE.0).next_multiple_of(LEAF_PAGES as u64);
        used + u64::from(!self.regions.is_empty()) * LEAF_PAGES as u64
    }
}

/// Pages of `bytes`, rounded down.
pub const fn pages(bytes: u64) -> u64 {
    bytes / foreswap_core::units::PAGE_SIZE as u64
}

/// The pages of `range` as a number and the first.
pub fn nth(range: &PageRange, n: u64) -> Vpn {
    range.start.plus(n % foreswap_core::units::len(range))
}
