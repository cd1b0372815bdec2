//! Compression and decompression of pages.
//!
//! Both methods use preallocated memory: nothing is allocated per page. The decoder stays within its bounds whatever
//! the bytes are; the caller's digest verifies the page.

use lz4_flex::block::{CompressTable, compress_into_with_table, get_maximum_output_size};

use super::PAGE;

/// Level of zstd: higher levels take longer and save little on 4 KiB.
const ZSTD_LEVEL: i32 = 1;

/// The compression method.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Fast: about 2 us to compress a page and 1 us to decompress it.
    #[default]
    Lz4,
    /// Smaller, at about three times the time.
    Zstd,
}

impl Method {
    /// The method of a user's name.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "lz4" => Some(Self::Lz4),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    /// The user's name of the method.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    pub(super) fn to_word(self) -> u64 {
        match self {
            Self::Lz4 => 1,
            Self::Zstd => 2,
        }
    }

    pub(super) fn from_word(word: u64) -> Option<Self> {
        match word {
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// The compression state of one thread.
pub(super) struct Squeezer {
    method: Method,
    table: CompressTable,
    zstd: Option<zstd_safe::CCtx<'static>>,
    out: Box<[u8]>,
}

impl Squeezer {
    pub(super) fn new(method: Method) -> Self {
        let zstd = (method == Method::Zstd).then(zstd_safe::CCtx::create);
        let bound = get_maximum_output_size(PAGE).max(zstd_safe::compress_bound(PAGE));
        Squeezer {
            method,
            table: CompressTable::small(),
            zstd,
            out: vec![0; bound].into(),
        }
    }

    /// The compressed bytes; `None` if they would be more than `most`.
    pub(super) fn compress(&mut self, page: &[u8; PAGE], most: usize) -> Option<&[u8]> {
        let length = match (&mut self.zstd, self.method) {
            (Some(zstd), Method::Zstd) => {
                zstd.compress(&mut self.out[..], page, ZSTD_LEVEL).ok()?
            }
            _ => compress_into_with_table(page, &mut self.out, &mut self.table).ok()?,
        };
        (length <= most).then(|| &self.out[..length])
    }
}

/// The decompression state of one thread.
pub(super) struct Opener {
    zstd: Option<zstd_safe::DCtx<'static>>,
}

impl Opener {
    pub(super) fn new(method: Method) -> Self {
        Opener {
            zstd: (method == Method::Zstd).then(zstd_safe::DCtx::create),
        }
    }

    /// Fills `page`. False if the bytes are not those of a whole page.
    pub(super) fn decompress(&mut self, bytes: &[u8], page: &mut [u8]) -> bool {
        let length = match &mut self.zstd {
            Some(zstd) => zstd.decompress(page, bytes).ok(),
            None => lz4_flex::block::decompress_into(bytes, page).ok(),
        };
        length == Some(PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ram::tests::page_of;

    #[test]
    fn compressed_pages_come_back() {
        for method in [Method::Lz4, Method::Zstd] {
            let (mut squeezer, mut opener) = (Squeezer::new(method), Opener::new(method));
            for seed in 0..200 {
                let page = page_of(seed, (seed % 9) as u32);
                let Some(bytes) = squeezer.compress(&page, PAGE) else {
                    continue;
                };
                let mut back = [1; PAGE];
                assert!(opener.decompress(bytes, &mut back), "{method:?} {seed}");
                assert_eq!(back, page, "{method:?} {seed}");
            }
        }
    }

    #[test]
    fn incompressible_pages_are_reported() {
        for method in [Method::Lz4, Method::Zstd] {
            let mut squeezer = Squeezer::new(method);
            assert!(squeezer.compress(&page_of(1, 8), 3500).is_none());
            let length = squeezer.compress(&page_of(1, 1), 3500).map(<[u8]>::len);
            assert!(length.is_some_and(|length| length < 2000), "{length:?}");
        }
    }

    /// Overwritten memory must not lead the decoder out of bounds.
    #[test]
    fn any_bytes_are_refused_or_give_a_page() {
        for method in [Method::Lz4, Method::Zstd] {
            let (mut squeezer, mut opener) = (Squeezer::new(method), Opener::new(method));
            for seed in 0..2000 {
                let page = page_of(seed, 3);
                let bytes = squeezer.compress(&page, PAGE).expect("it compresses");
                let mut bytes = bytes.to_vec();
                let at = super::super::tests::mix(seed) as usize % bytes.len();
                bytes[at] ^= 1 << (seed % 8);
                if seed % 3 == 0 {
                    bytes.truncate(at);
                }
                opener.decompress(&bytes, &mut [0; PAGE]);
            }
        }
    }
}
