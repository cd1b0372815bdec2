//! Memory behind a block interface: a fixed time per request, and a copy.

use foreswap_core::units::{Nanos, PAGE_SIZE};

use super::super::parameters::Ram;
use super::Transfer;

/// A RAM-backed device at work.
#[derive(Debug)]
pub struct RamDevice {
    p: Ram,
    /// End of each copier's copies so far.
    free: Vec<Nanos>,
}

impl RamDevice {
    /// A device at rest.
    pub fn new(parameters: Ram) -> Self {
        RamDevice {
            free: vec![0; parameters.copies as usize],
            p: parameters,
        }
    }

    /// Pages that it holds.
    pub fn pages(&self) -> u64 {
        self.p.capacity / PAGE_SIZE as u64
    }

    /// A transfer begins at `now`; returns its completion.
    pub fn submit(&mut self, now: Nanos, transfer: Transfer) -> Nanos {
        let bytes = u128::from(transfer.pages) * PAGE_SIZE as u128;
        let copy = (bytes * 1_000_000_000 / u128::from(self.p.copy)) as Nanos;
        let begin = now + self.p.virtual_exit / 2;
        let Some(free) = self.free.iter_mut().min() else {
            return begin;
        };
        *free = begin.max(*free) + copy;
        *free + self.p.access + self.p.virtual_exit.div_ceil(2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_overlap_but_for_their_copies() {
        let mut ram = RamDevice::new(Ram {
            capacity: 1 << 20,
            access: 3_000,
            copy: 4_096_000_000,
            copies: 1,
            virtual_exit: 20_000,
        });
        assert_eq!(ram.pages(), 256);
        let read = |pages| Transfer {
            write: false,
            first: 0,
            pages,
        };
        assert_eq!(ram.submit(0, read(1)), 24_000);
        assert_eq!(ram.submit(0, read(8)), 32_000);
        assert_eq!(ram.submit(100_000, read(1)), 124_000);
    }
}
