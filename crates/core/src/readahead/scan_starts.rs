//! Places where a program began to scan its memory: it is likely to begin there again.

use alloc::vec::Vec;

use crate::units::{LEAF_PAGES, Vpn};

/// Pages that the scan must have passed.
pub const FAR: u64 = 2 * LEAF_PAGES as u64;
/// The number of places that are remembered.
const PLACES: usize = 64;

/// First pages and strides; the latest at the end.
#[derive(Debug, Default)]
pub struct ScanStarts(Vec<(Vpn, i64)>);

impl ScanStarts {
    /// A run in steps of `stride` pages began with `page` and went far.
    pub fn add(&mut self, page: Vpn, stride: i64) {
        self.0.retain(|known| *known != (page, stride));
        if self.0.len() == PLACES {
            self.0.remove(0);
        }
        self.0.push((page, stride));
    }

    /// The stride of the run that began with `page`, which is then forgotten.
    pub fn take(&mut self, page: Vpn) -> Option<i64> {
        let n = self.0.iter().rposition(|(begin, _)| *begin == page)?;
        Some(self.0.remove(n).1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_places_are_known() {
        let mut begins = ScanStarts::default();
        for n in 0..PLACES as u64 + 1 {
            begins.add(Vpn(n), 1);
            begins.add(Vpn(0), -1);
        }
        assert_eq!(begins.take(Vpn(1)), None);
        assert_eq!(begins.take(Vpn(2)), Some(1));
        assert_eq!(begins.take(Vpn(2)), None);
        assert_eq!(begins.take(Vpn(0)), Some(-1), "added again and again");
        assert_eq!(begins.take(Vpn(0)), None);
    }
}
