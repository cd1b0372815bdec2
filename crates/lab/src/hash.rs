//! Hashing of numbers without adversaries: a malicious trace can at most slow down its own analysis.

use std::hash::{BuildHasherDefault, Hasher};

/// For maps whose keys are a few numbers.
pub type Spread = BuildHasherDefault<NumberHasher>;

/// A multiplicative hash for a few numbers.
#[derive(Default)]
pub struct NumberHasher(u64);

/// Spreads the bits of `value` over all of the result (the finisher of SplitMix64).
pub const fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        let product = u128::from(self.0) * 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
        (product >> 64) as u64 ^ product as u64
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(byte.into());
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(32) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
