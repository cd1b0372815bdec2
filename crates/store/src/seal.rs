//! Encryption of pages on their way to an area that others might read.
//!
//! AES-256 in Galois/Counter mode, with the key of a run. Each written page has a number that no other page of the run
//! has had: it is the nonce. The number and the tag stay in the memory of the run ([`Seals`]), never on the area. A page
//! that was changed there, moved to another slot, or replaced by what the slot held before is therefore seen: it becomes
//! a page of zeros, which is not what its slot is known to hold.
//!
//! The limits of the mode are far: at one page in 100 ns the numbers last 58,000 years, and 2^64 bytes under one key leave
//! less than 2^-8 for telling them from random ones.

use ::ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};

/// Bytes of a page.
const PAGE: usize = 4096;
/// Bytes of the key of a run.
pub const KEY_BYTES: usize = 32;
/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;

/// What opens an encrypted page, beside the key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seal {
    /// The page's number, from 1 on. 0: nothing was written.
    pub number: u64,
    /// Authenticates its bytes.
    pub tag: [u8; TAG_BYTES],
}

/// The seals of one area, which all processes of a run share.
pub trait Seals: Send + Sync {
    /// `pages` consecutive numbers that nobody was given before: the first.
    fn numbers(&self, pages: u64) -> u64;
    /// The seal of the page in a slot.
    fn get(&self, slot: u32) -> Seal;
    /// A page is about to be written to a slot that nobody reads meanwhile.
    fn set(&self, slot: u32, seal: Seal);
}

/// The expanded key of a run. It has no memory beside its own bytes, so that these can be put where nobody reads them.
pub struct Cipher(LessSafeKey);

// It is put at the start of a page of its own.
const _: () = assert!(size_of::<Cipher>() <= PAGE && align_of::<Cipher>() <= PAGE);
const _: () = assert!(!std::mem::needs_drop::<Cipher>());

impl Cipher {
    /// `None` cannot happen: a key of this length is always accepted.
    pub fn new(key: &[u8; KEY_BYTES]) -> Option<Self> {
        let key = UnboundKey::new(&AES_256_GCM, key).ok()?;
        Some(Cipher(LessSafeKey::new(key)))
    }

    /// Encrypts a page under a `number` that is used once.
    pub fn seal(&self, number: u64, page: &mut [u8; PAGE]) -> Seal {
        let sealed = self
            .0
            .seal_in_place_separate_tag(nonce(number), Aad::empty(), page);
        let mut tag = [0; TAG_BYTES];
        match sealed {
            Ok(made) => tag.copy_from_slice(made.as_ref()),
            // Only a page of gigabytes is refused. Nothing plain may leave, and no seal opens it.
            Err(_) => {
                page.fill(0);
                return Seal::default();
            }
        }
        Seal { number, tag }
    }

    /// Decrypts a page. False: it is not what was sealed, and its bytes are zeros now.
    pub fn open(&self, seal: &Seal, page: &mut [u8; PAGE]) -> bool {
        let (nonce, tag) = (nonce(seal.number), Tag::from(seal.tag));
        let opened = self
            .0
            .open_in_place_separate_tag(nonce, Aad::empty(), tag, page, 0..);
        let is_right = opened.is_ok() && seal.number != 0;
        if !is_right {
            page.fill(0);
        }
        is_right
    }
}

fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// An encrypted area, as the threads of one process share it.
pub struct SealedArea {
    cipher: &'static Cipher,
    /// Where slot 0 begins in its file, in bytes.
    first_byte: u64,
    seals: Box<dyn Seals>,
}

impl SealedArea {
    /// An area whose slot 0 is at `first_byte` of its file.
    pub fn new(cipher: &'static Cipher, first_byte: u64, seals: Box<dyn Seals>) -> Self {
        SealedArea {
            cipher,
            first_byte,
            seals,
        }
    }

    /// The slot at this byte of the file, if there is one.
    pub(crate) fn slot_at(&self, offset: u64) -> Option<u32> {
        let bytes = offset.checked_sub(self.first_byte)?;
        let whole = bytes.is_multiple_of(PAGE as u64);
        u32::try_from(bytes / PAGE as u64).ok().filter(|_| whole)
    }

    /// Numbers for `pages` pages: the first.
    pub(crate) fn numbers(&self, pages: usize) -> u64 {
        self.seals.numbers(pages as u64)
    }

    /// Encrypts the page for `slot` into `to`.
    pub(crate) fn seal(&self, slot: u32, number: u64, from: &[u8; PAGE], to: &mut [u8; PAGE]) {
        to.copy_from_slice(from);
        self.seals.set(slot, self.cipher.seal(number, to));
    }

    /// Decrypts the page of `slot`, or makes it one of zeros.
    pub(crate) fn open(&self, slot: u32, page: &mut [u8; PAGE]) -> bool {
        self.cipher.open(&self.seals.get(slot), page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cipher() -> Cipher {
        Cipher::new(&[7; KEY_BYTES]).expect("a key")
    }

    fn page() -> [u8; PAGE] {
        std::array::from_fn(|at| (at * 13) as u8)
    }

    #[test]
    fn a_sealed_page_opens_with_its_seal_alone() {
        let (cipher, plain) = (cipher(), page());
        let mut bytes = plain;
        let seal = cipher.seal(5, &mut bytes);
        assert_eq!(seal.number, 5);
        let same = bytes.iter().zip(&plain).filter(|(a, b)| a == b).count();
        // One byte in 256 is expected to.
        assert!(same < 64, "{same} bytes are as they were");
        let sealed = bytes;
        assert!(cipher.open(&seal, &mut bytes));
        assert_eq!(bytes, plain);
        let mut tag = seal.tag;
        tag[15] ^= 1;
        for other in [Seal { number: 6, ..seal }, Seal { tag, ..seal }] {
            let mut bytes = sealed;
            assert!(!cipher.open(&other, &mut bytes));
            assert_eq!(bytes, [0; PAGE]);
        }
    }

    #[test]
    fn a_changed_bit_anywhere_is_seen() {
        let cipher = cipher();
        let mut sealed = page();
        let seal = cipher.seal(1, &mut sealed);
        for at in (0..PAGE).step_by(97).chain([PAGE - 1]) {
            let mut bytes = sealed;
            bytes[at] ^= 0x10;
            assert!(!cipher.open(&seal, &mut bytes), "byte {at}");
            assert_eq!(bytes, [0; PAGE]);
        }
    }

    #[test]
    fn the_same_page_differs_under_another_number() {
        let cipher = cipher();
        let (mut first, mut second) = (page(), page());
        let seals = [cipher.seal(1, &mut first), cipher.seal(2, &mut second)];
        assert_ne!(first, second);
        assert_ne!(seals[0].tag, seals[1].tag);
    }

    #[test]
    fn without_a_number_nothing_opens() {
        let cipher = cipher();
        let mut bytes = page();
        let mut seal = cipher.seal(0, &mut bytes);
        seal.number = 0;
        assert!(!cipher.open(&seal, &mut bytes));
    }

    /// Test case 14 of the mode's specification (McGrew and Viega), with its one block of zeros continued to a page: the
    /// first block of the ciphertext is published.
    #[test]
    fn the_cipher_is_aes_256_in_galois_counter_mode() {
        let cipher = Cipher::new(&[0; KEY_BYTES]).expect("a key");
        let mut bytes = [0; PAGE];
        cipher.seal(0, &mut bytes);
        let published = 0xcea7_403d_4d60_6b6e_074e_c5d3_baf3_9d18_u128;
        assert_eq!(bytes[..16], published.to_be_bytes());
    }
}
