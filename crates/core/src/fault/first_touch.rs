//! How many pages a first touch maps.
//!
//! A fault costs several times as much as the page that it maps. A program that fills memory in order therefore gets
//! more pages each time: 1, 4, 16, 64, ... up to the largest batch. A touch that continues no run gets one page, which
//! keeps sparse use sparse. Several runs are tracked per region, one for each thread that fills its own part.

use crate::units::Vpn;

/// The largest batch, in pages.
pub const MAX_BATCH: u32 = 256;
const RUNS: usize = 4;

/// A run of consecutive first touches.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    /// The page that continues it.
    next: Option<Vpn>,
    /// Pages of its last batch.
    last: u32,
}

/// Recent runs of first touches in one region.
#[derive(Clone, Copy, Debug, Default)]
pub struct Streams {
    runs: [Run; RUNS],
    oldest: usize,
}

impl Streams {
    /// Pages to map for a first touch of `page`, this one included.
    pub fn batch(&self, page: Vpn) -> u32 {
        match self.runs.iter().find(|run| run.next == Some(page)) {
            Some(run) => run.last.saturating_mul(4).min(MAX_BATCH),
            None => 1,
        }
    }

    /// `pages` pages from `page` on were mapped.
    pub fn mapped(&mut self, page: Vpn, pages: u32) {
        self.mapped_of(page, pages, pages);
    }

    /// As [`Streams::mapped`], when memory was available for only `pages` of `wanted`: the run goes on after
    /// `pages`, and its next batch still grows from `wanted`.
    pub fn mapped_of(&mut self, page: Vpn, pages: u32, wanted: u32) {
        let known = self.runs.iter().position(|run| run.next == Some(page));
        let n = known.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % RUNS;
            self.oldest
        });
        let run = &mut self.runs[n];
        let end = page.plus(u64::from(pages));
        (run.next, run.last) = (Some(end), wanted);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_grows_and_a_lone_touch_does_not() {
        let mut streams = Streams::default();
        let mut page = Vpn(100);
        for expected in [1, 4, 16, 64, 256, 256] {
            let batch = streams.batch(page);
            assert_eq!(batch, expected);
            streams.mapped(page, batch);
            page = page.plus(u64::from(batch));
        }
        assert_eq!(streams.batch(Vpn(7)), 1);
    }

    #[test]
    fn interleaved_runs_are_told_apart() {
        let mut streams = Streams::default();
        let mut at = [Vpn(0), Vpn(10_000), Vpn(20_000)];
        for expected in [1, 4, 16, 64] {
            for page in &mut at {
                assert_eq!(streams.batch(*page), expected);
                streams.mapped(*page, expected);
                *page = page.plus(u64::from(expected));
            }
        }
    }
}
