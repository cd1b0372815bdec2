//! The digest of a page. A page that comes back is compared with its digest at eviction; a page that is evicted again
//! is compared with its slot.
//!
//! A page with the digest of its slot is dropped without a write. The hash therefore has a key that each run draws
//! anew: an attacker who controls the content of pages but does not know the key cannot construct two pages with the
//! same digest.

use foreswap_core::units::PAGE_SIZE;
use foreswap_core::world::{Digest, scrambled};
use std::sync::OnceLock;
use twox_hash::XxHash3_64;

/// Bytes that are checked first: in most pages they already differ from the first word.
const HEAD: usize = 64;
/// Bytes of a line of the processor's caches.
const LINE: usize = 64;
/// Bytes that are folded into one before the comparison.
const PART: usize = 256;

/// Bytes of the hash's secret.
const SECRET: usize = 192;
// The minimum for XXH3.
const _: () = assert!(SECRET >= 136);

static KEY: OnceLock<[u8; SECRET]> = OnceLock::new();

/// Set the key of the run, which is the same in all its processes, before the first digest.
pub fn set_key(key: [u64; 2]) {
    KEY.get_or_init(|| secret(key));
}

/// The secret of a key: words that differ from each other and do not reveal one another (a counter, mixed with either
/// half of the key).
fn secret(key: [u64; 2]) -> [u8; SECRET] {
    let mut bytes = [0; SECRET];
    let mut counter = key[0];
    for word in bytes.as_chunks_mut::<8>().0 {
        counter = counter.wrapping_add(0x9e37_79b9_7f4a_7c15);
        *word = scrambled(scrambled(counter) ^ key[1]).to_ne_bytes();
    }
    bytes
}

/// The digest of `page`: [`Digest::Zero`] if every byte is zero, [`Digest::Filled`] if all its words are equal, else
/// its 64-bit XXH3 with the run's key.
pub fn digest_of(page: &[u8; PAGE_SIZE]) -> Digest {
    if let Some(word) = filled_by(page) {
        return match word {
            0 => Digest::Zero,
            word => Digest::Filled(word),
        };
    }
    let key = KEY.get_or_init(|| secret([0; 2]));
    // The secret is long enough, which is the only possible error.
    let hash = XxHash3_64::oneshot_with_secret(key, page).unwrap_or_default();
    // 0 is the number of a page of zeros alone: an encrypted page that does not open becomes one, and must not pass for
    // the page that was written.
    Digest::Hash(hash.max(1))
}

/// [`digest_of`] as one number, see [`Digest::number`]. The next call is for the page that follows in memory.
pub fn number_in_order(page: &[u8; PAGE_SIZE]) -> u64 {
    prefetch(page.as_ptr().wrapping_add(PAGE_SIZE));
    digest_of(page).number()
}

/// Prefetch a page that is about to be hashed, while the one before is hashed: the processor does not prefetch beyond
/// the end of a page by itself. No memory is read, whatever `page` is.
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
