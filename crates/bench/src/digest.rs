//! The page hash alone, and memcpy over the same pages: bytes per second.

use std::hint::black_box;
use std::time::{Duration, Instant};

use foreswap::digest::digest_of;
use foreswap_core::world::Digest;

use crate::interrupt;
use crate::usemem::Draw;

const PAGE: usize = 4096;
/// Least time of a measurement.
const LEAST: Duration = Duration::from_millis(100);

#[repr(align(4096))]
#[derive(Clone, Copy)]
struct Page([u8; PAGE]);

/// Pages to hash, and as many destination pages for memcpy.
pub struct Pages {
    pages: Vec<Page>,
    others: Vec<Page>,
}

impl Pages {
    /// `count` pages of pseudo-random bytes. All memory is allocated when this returns.
    pub fn new(count: usize, seed: u64) -> Self {
        let mut draw = Draw::new(seed, 0);
        let mut pages = vec![Page([0; PAGE]); count];
        for word in pages.iter_mut().flat_map(|page| page.0.as_chunks_mut().0) {
            *word = draw.below(u64::MAX).to_le_bytes();
        }
        let others = pages.clone();
        Self { pages, others }
    }

    /// Bytes per second hashed. Fails when a page is taken for one of zeros.
    pub fn hash(&self) -> anyhow::Result<f64> {
        self.digests(&self.pages, |digest| digest != Digest::Zero)
    }

    /// Bytes per second copied.
    pub fn copy(&mut self) -> anyhow::Result<f64> {
        let bytes = self.bytes();
        let (from, to) = (&self.pages, &mut self.others);
        rate(bytes, || {
            black_box(&mut *to).copy_from_slice(black_box(from));
            Ok(())
        })
    }

    /// Bytes per second of pages found to be zero. Fails when one is not.
    pub fn zeros(&mut self) -> anyhow::Result<f64> {
        // Written, not fresh: untouched memory would be one page of zeros again and again.
        self.others.fill(Page([0; PAGE]));
        self.digests(&self.others, |digest| digest == Digest::Zero)
    }

    fn digests(&self, pages: &[Page], is_right: fn(Digest) -> bool) -> anyhow::Result<f64> {
        rate(self.bytes(), || {
            let wrong = pages.iter().filter(|page| !is_right(digest_of(&page.0)));
            match wrong.count() {
                0 => Ok(()),
                n => anyhow::bail!("{n} of {} pages have a wrong digest", pages.len()),
            }
        })
    }

    fn bytes(&self) -> usize {
        self.pages.len() * PAGE
    }
}

/// Bytes per second of `pass`, which handles `bytes`, repeated until it can be timed. The first pass is not timed.
fn rate(bytes: usize, mut pass: impl FnMut() -> anyhow::Result<()>) -> anyhow::Result<f64> {
    pass()?;
    let (mut passes, mut batch) = (0u64, 1u64);
    let start = Instant::now();
    loop {
        interrupt::check()?;
        for _ in 0..batch {
            pass()?;
        }
        passes += batch;
        let elapsed = start.elapsed();
        if elapsed >= LEAST {
            return Ok(bytes as f64 * passes as f64 / elapsed.as_secs_f64());
        }
        batch = passes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_hashed_copied_and_found_zero() {
        let mut pages = Pages::new(3, 1);
        assert!(pages.hash().expect("no page is zero") > 0.0);
        assert!(pages.zeros().expect("all are zero") > 0.0);
        assert!(pages.copy().expect("a copy") > 0.0);
        assert!(
            pages
                .pages
                .iter()
                .zip(&pages.others)
                .all(|(a, b)| a.0 == b.0)
        );
    }

    #[test]
    fn a_page_of_the_other_kind_is_noticed() {
        let mut pages = Pages::new(3, 1);
        pages.pages[1] = Page([0; PAGE]);
        let error = pages.hash().expect_err("one is zero").to_string();
        assert_eq!(error, "1 of 3 pages have a wrong digest");
    }
}
