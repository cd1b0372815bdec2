//! How far a bare process may grow before its engine must be asked.
//!
//! The engine reads the map of the memory, grants what it finds and some more, and allows the difference. Threads grow
//! meanwhile: what was noted since before the map was read counts against the new allowance, whether the map showed it or
//! not.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Bytes noted, and the number up to which the engine need not be asked.
#[derive(Debug)]
pub struct Allowance {
    noted: AtomicU64,
    bound: AtomicU64,
}

/// The bytes noted before a look at the map.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Look(u64);

impl Allowance {
    /// Of nothing.
    pub const fn new() -> Self {
        Allowance {
            noted: AtomicU64::new(0),
            bound: AtomicU64::new(0),
        }
    }

    /// The process grew by `bytes`, which are mapped. Whether the engine need not be asked.
    pub(super) fn takes(&self, bytes: u64) -> bool {
        let noted = self.noted.fetch_add(bytes, SeqCst) + bytes;
        noted <= self.bound.load(SeqCst)
    }

    /// The map of the memory is about to be read.
    pub(crate) fn look(&self) -> Look {
        Look(self.noted.load(SeqCst))
    }

    /// `bytes` may appear beyond what the map showed.
    pub(crate) fn allow(&self, look: Look, bytes: u64) {
        self.bound.store(look.0 + bytes, SeqCst);
    }

    /// The engine is asked of any growth from now on. What was not asked of is in a map that is read after this.
    pub(crate) fn end(&self) {
        self.bound.store(0, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_grows_during_a_look_counts_against_the_new_allowance() {
        let allowance = Allowance::new();
        allowance.allow(allowance.look(), 100);
        let look = allowance.look();
        assert!(allowance.takes(60), "100 are allowed");
        allowance.allow(look, 80);
        assert!(allowance.takes(20), "60 of 80 are taken");
        assert!(!allowance.takes(1), "80 of 80 are taken");
    }

    #[test]
    fn a_refused_growth_is_taken_by_the_look_that_follows() {
        let allowance = Allowance::new();
        assert!(!allowance.takes(1000));
        allowance.allow(allowance.look(), 10);
        assert!(allowance.takes(10));
        allowance.end();
        assert!(!allowance.takes(1));
    }
}
