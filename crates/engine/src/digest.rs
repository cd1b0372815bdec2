//! The digest of a page: by it a page that comes back is compared with what went out, and a page
//! that goes out again with what its slot holds.

use foreswap_core::units::PAGE_SIZE;
use foreswap_core::world::Digest;
use twox_hash::XxHash3_64;

/// Bytes that are looked at before the rest: most pages differ from zero there.
const HEAD: usize = 64;
/// Bytes that are folded into one before they are compared with zero.
const PART: usize = 256;

/// The digest of `page`: [`Digest::Zero`] where every byte is zero, else its 64-bit XXH3. It is
/// compared only with digests of the same build.
pub fn digest_of(page: &[u8; PAGE_SIZE]) -> Digest {
    if is_zero(page) {
        return Digest::Zero;
    }
    Digest::Hash(XxHash3_64::oneshot(page))
}

fn is_zero(page: &[u8; PAGE_SIZE]) -> bool {
    let (head, rest) = page.split_at(HEAD);
    let all_zero = |part: &[u8]| part.iter().fold(0, |all, byte| all | byte) == 0;
    all_zero(head) && rest.chunks(PART).all(all_zero)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bit_anywhere_is_seen() {
        let mut page = [0; PAGE_SIZE];
        assert_eq!(digest_of(&page), Digest::Zero);
        let mut seen = std::collections::HashSet::new();
        for byte in 0..PAGE_SIZE {
            page[byte] = 1 << (byte % 8);
            let Digest::Hash(hash) = digest_of(&page) else {
                panic!("byte {byte} is not zero");
            };
            assert!(seen.insert(hash), "byte {byte} gives a hash seen before");
            page[byte] = 0;
        }
    }
}
