//! Inputs of tests: their sizes, and numbers that are equal in every run.

use std::path::{Path, PathBuf};

use crate::full_size;

/// `scaled` in `make test`, `full` in `make test-full`.
pub fn size(scaled: u64, full: u64) -> u64 {
    if full_size() { full } else { scaled }
}

/// A source or input of the tests, in `programs`.
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("programs")
        .join(name)
}

/// A generator with a fixed seed (SplitMix64).
#[derive(Debug)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// The next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}
