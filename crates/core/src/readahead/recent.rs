//! Where a stream is found: among the last touches of a region, whatever other touches lie between them.

use crate::units::PAGE_SHIFT;

/// Touches of a region in which a new stream is searched.
const RECENT: usize = 32;
/// The largest stride that is searched, in pages.
const FARTHEST: u64 = 1024;

/// Addresses of the last touches of one region that no stream explains.
#[derive(Clone, Copy, Debug)]
pub struct Recent {
    touches: [u64; RECENT],
    next: usize,
}

impl Default for Recent {
    fn default() -> Self {
        Recent {
            touches: [u64::MAX; RECENT],
            next: 0,
        }
    }
}

impl Recent {
    /// The stride, in pages, that the touch of `address` continues. A neighbour among the last touches is enough; a
    /// longer step must have been made twice, to the byte.
    pub(super) fn stride(&self, address: u64) -> Option<i64> {
        let newest_first = (1..=RECENT).map(|n| self.touches[(self.next + RECENT - n) % RECENT]);
        let mut touches = newest_first.filter(|&touch| touch != u64::MAX);
        touches.find_map(|other| {
            let stride = (address >> PAGE_SHIFT).wrapping_sub(other >> PAGE_SHIFT) as i64;
            let found = match stride.unsigned_abs() {
                1 => true,
                2..=FARTHEST => {
                    let step = stride << PAGE_SHIFT;
                    let goes_on = |steps: i64| address.wrapping_add_signed(-steps * step);
                    other == goes_on(1) && self.touches.contains(&goes_on(2))
                }
                _ => false,
            };
            found.then_some(stride)
        })
    }

    pub(super) fn remember(&mut self, address: u64) {
        self.touches[self.next] = address;
        self.next = (self.next + 1) % RECENT;
    }
}
