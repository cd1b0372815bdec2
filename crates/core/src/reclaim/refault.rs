//! How soon a page comes back after its eviction, in pages that were evicted since (the refault distance).

use super::Reclaim;
use crate::space::page_table::EVICTED_BITS;

const fn low_bits(evictions: u32) -> u32 {
    evictions & ((1 << EVICTED_BITS) - 1)
}

/// The unit in which costs are counted: parts of a miss.
pub(crate) const MISS: u32 = 64;
/// The most that a page costs.
const MOST: u64 = 8 * MISS as u64;
/// Refaults at distances within this part of the memory in use count.
const NEAR_PART: u64 = 4;

/// The worth of a little more memory. The refaults at small distances are the misses that it would have saved: their
/// density, over distance and evictions, times the evictions during which a page of memory is taken, is the cost of that
/// page.
#[derive(Default)]
pub(super) struct Marginal {
    /// Refaults at small distances.
    near: u64,
    /// The eviction from which on they are counted. Both fade.
    since: u64,
}

impl Marginal {
    fn on_return(&mut self, evictions: u64, distance: u32, resident: u64) {
        let memory = resident / NEAR_PART;
        self.near += u64::from(u64::from(distance) <= memory);
        let span = evictions - self.since;
        if span > 2 * memory.max(64) {
            self.near /= 2;
            self.since += span / 2;
        }
    }

    fn cost(&self, evictions: u64, wait: u32, resident: u64) -> u32 {
        let span = (evictions - self.since).max(1);
        let memory = (resident / NEAR_PART).max(1);
        let cost = u64::from(wait) * self.near * u64::from(MISS) / memory / span;
        cost.min(MOST) as u32
    }
}

impl Reclaim {
    /// A page that a thread touches comes back after `distance`, while `resident` pages are in use.
    pub fn on_return(&mut self, distance: Option<u32>, resident: u64) {
        if let Some(distance) = distance {
            self.marginal.on_return(self.evictions, distance, resident);
        }
    }

    /// The misses, in parts of one ([`MISS`]), that the memory of a page could have saved since it was read, at eviction
    /// number `arrived`.
    pub fn cost_since(&self, arrived: u32, resident: u64) -> u32 {
        self.marginal
            .cost(self.evictions, self.evicted_since(arrived), resident)
    }

    /// The number of the last evicted page, as a page table entry stores it.
    pub fn eviction_number(&self) -> u32 {
        low_bits(self.evictions as u32)
    }

    /// The number of a page that was not evicted, as of a file: as far away as numbers can be.
    pub fn long_ago(&self) -> u32 {
        low_bits((self.evictions as u32).wrapping_sub(1 << (EVICTED_BITS - 1)))
    }

    /// Pages that were evicted after the one with this number.
    pub fn evicted_since(&self, number: u32) -> u32 {
        low_bits((self.evictions as u32).wrapping_sub(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::any_policy::Policy;

    #[test]
    fn memory_costs_what_it_would_have_saved() {
        let mut reclaim = Reclaim::new(Policy::Clock, 1000, 1000);
        let arrived = reclaim.eviction_number();
        let cost = |reclaim: &mut Reclaim, evictions, distance| {
            for _ in 0..evictions {
                reclaim.on_evicted(1);
                reclaim.on_return(Some(distance), 1000);
            }
            reclaim.cost_since(arrived, 1000)
        };
        assert_eq!(cost(&mut reclaim, 250, 900), 0, "nothing comes back soon");
        let most_do = cost(&mut reclaim, 500, 100);
        assert!((MISS..4 * MISS).contains(&most_do), "{most_do}");
        let few_do = cost(&mut reclaim, 250, 900);
        assert!(few_do < most_do, "{few_do} after {most_do}");
        assert_eq!(reclaim.cost_since(reclaim.eviction_number(), 1000), 0);
    }

    #[test]
    fn the_distance_is_that_of_the_counter_also_when_its_bits_wrap() {
        let mut reclaim = Reclaim::new(Policy::Clock, 1000, 1000);
        reclaim.evictions = (1 << EVICTED_BITS) - 10;
        let number = reclaim.eviction_number();
        reclaim.on_evicted(799);
        assert_eq!(reclaim.evicted_since(number), 799);
        reclaim.on_evicted(1);
        assert_eq!(reclaim.evicted_since(number), 800);
    }
}
