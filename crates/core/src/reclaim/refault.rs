//! How soon a page comes back after its eviction, in pages that were evicted since (the refault distance).

use super::Reclaim;
use crate::space::page_table::EVICTED_BITS;

const fn low_bits(evictions: u32) -> u32 {
    evictions & ((1 << EVICTED_BITS) - 1)
}

impl Reclaim {
    /// The number of the last evicted page, as a page table entry stores it.
    pub fn eviction_number(&self) -> u32 {
        low_bits(self.evictions as u32)
    }

    /// Pages that were evicted after the one with this number.
    pub fn evicted_since(&self, number: u32) -> u32 {
        low_bits((self.evictions as u32).wrapping_sub(number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reclaim::chosen::Policy;

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
