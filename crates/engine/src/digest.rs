//! The digest of a page: by it a page that comes back is compared with what went out, and a page
//! that goes out again with what its slot holds.
//!
//! A page that has the digest of its slot is dropped without a write. So the hash has a key that each run draws anew: who
//! decides what is in a page, but does not know the key, cannot make two pages that are taken for one.

use foreswap_core::units::PAGE_SIZE;
use foreswap_core::world::{Digest, scrambled};
use std::sync::OnceLock;
use twox_hash::XxHash3_64;

/// Bytes that are looked at before the rest: most pages have other words there than the first.
const HEAD: usize = 64;
/// Bytes of a line of the processor's caches.
const LINE: usize = 64;
/// Bytes that are folded into one before they are looked at.
const PART: usize = 256;

/// Bytes of the hash's secret.
const SECRET: usize = 192;
// XXH3 asks for so much.
const _: () = assert!(SECRET >= 136);

static KEY: OnceLock<[u8; SECRET]> = OnceLock::new();

/// The run's key, the same in all its processes. Before the first digest is taken.
pub fn set_key(key: [u64; 2]) {
    KEY.get_or_init(|| secret(key));
}

/// The secret that belongs to a key: numbers that no two words share and none of the others tells (a counter, mixed with
/// either half of the key).
fn secret(key: [u64; 2]) -> [u8; SECRET] {
    let mut bytes = [0; SECRET];
    let mut counter = key[0];
    for word in bytes.as_chunks_mut::<8>().0 {
        counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        *word = scrambled(scrambled(counter) ^ key[1]).to_ne_bytes();
    }
    bytes
}

/// The digest of `page`: [`Digest::Zero`] where every byte is zero, [`Digest::Filled`] where all its words are the same,
/// else its 64-bit XXH3 with the run's key.
pub fn digest_of(page: &[u8; PAGE_SIZE]) -> Digest {
    if let Some(word) = filled_by(page) {
        return match word {
            0 => Digest::Zero,
            word => Digest::Filled(word),
        };
    }
    let key = KEY.get_or_init(|| secret([0; 2]));
    // The secret is long enough, which is all that could be wrong.
    Digest::Hash(XxHash3_64::oneshot_with_secret(key, page).unwrap_or_default())
}

/// [`digest_of`] as one number, as [`Digest::number`] gives it. The page that follows in memory is the next.
pub fn number_in_order(page: &[u8; PAGE_SIZE]) -> u64 {
    prefetch(page.as_ptr().wrapping_add(PAGE_SIZE));
    digest_of(page).number()
}

/// Have the processor fetch a page that is about to be hashed, while it hashes the one before: it does not look
/// beyond the end of a page by itself. Nothing is read, whatever `page` is.
pub fn prefetch(page: *const u8) {
    use core::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
    for line in (0..PAGE_SIZE).step_by(LINE) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(page.wrapping_add(line).cast()) };
    }
}

/// The word that fills a page.
fn filled_by(page: &[u8; PAGE_SIZE]) -> Option<u64> {
    let words = page.as_chunks::<8>().0;
    let word = u64::from_ne_bytes(words[0]);
    let alike = |part: &[[u8; 8]]| {
        let differs = |all, other: &[u8; 8]| all | (u64::from_ne_bytes(*other) ^ word);
        part.iter().fold(0, differs) == 0
    };
    let (head, rest) = words.split_at(HEAD / 8);
    (alike(head) && rest.chunks(PART / 8).all(alike)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_word_from_end_to_end_is_seen() {
        for word in [1, u64::MAX, 0x3fb9_9999_9999_999a] {
            let mut page = [0; PAGE_SIZE];
            page.as_chunks_mut::<8>().0.fill(word.to_ne_bytes());
            assert_eq!(digest_of(&page), Digest::Filled(word));
            for byte in 0..PAGE_SIZE {
                page[byte] ^= 4;
                assert!(matches!(digest_of(&page), Digest::Hash(_)), "byte {byte}");
                page[byte] ^= 4;
            }
        }
    }

    #[test]
    fn another_key_gives_other_digests() {
        let page = core::array::from_fn::<u8, PAGE_SIZE, _>(|i| (i * 7) as u8);
        let of = |key| XxHash3_64::oneshot_with_secret(&secret(key), &page).ok();
        let digests = [of([1, 2]), of([1, 3]), of([2, 2])];
        assert!(digests.iter().all(Option::is_some));
        assert!(digests[0] != digests[1] && digests[0] != digests[2]);
    }

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
