//! A program whose work changes: scans, random touches, a hot set beside a scan and skewed touches of one region, in the
//! order of its command line.
//!
//! Every touch is timed, and every read is verified. Word 0 of each page counts the writes to it.

mod zipf;

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::args::{Fill, WorksetArgs};
use crate::output::put_json;
use crate::usemem::{Clock, Draw, Histogram, Latency, Region, WORDS, Words};
use zipf::Zipf;

/// Pages of the scan for each touch of the hot set.
const BESIDE: u64 = 4;
/// The hot set is this part of the region; the scan beside it has the rest.
const HOT_PART: u64 = 8;
/// The distance of two pages of a stride.
const STRIDE: u64 = 7;
/// Where the count of writes begins within word 0.
const WRITES: u32 = 40;

/// One step of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Reads all pages in order.
    Scan,
    /// Reads all pages in reverse order.
    Reverse,
    /// Reads every 7th page, then again from one page later.
    Stride,
    /// Two scans, each of a half, a page of each in turn.
    Interleaved,
    /// Reads 40,000 pages drawn uniformly.
    Touch,
    /// Reads pages of an eighth of the region drawn uniformly, beside one scan of the rest: four pages for each.
    Hot,
    /// Reads pages drawn with skew: the r-th of all has a share of 1 / r^0.99.
    ZipfRead,
    /// Writes to pages drawn with the same skew.
    ZipfWrite,
    /// Reads as many pages as there are, drawn uniformly.
    RandRead,
    /// Writes to as many pages as there are, drawn uniformly.
    RandWrite,
    /// Reads as many pages as there are, drawn uniformly from the last three eighths, which were filled last.
    LateRead,
}

/// The result of a step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Step {
    /// Its kind.
    pub kind: Kind,
    /// The mean time of a touch, in nanoseconds; of the hot set alone where there is one.
    pub ns_per_touch: f64,
    /// The time of the whole step, in nanoseconds.
    pub elapsed_ns: u64,
    /// The times of the touches.
    pub latency: Latency,
    /// The part of the hot set's touches whose page was not mapped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub absent: Option<f64>,
}

/// The report of the workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// The steps, in their order.
    pub steps: Vec<Step>,
}

/// `foreswap workload workset`.
pub fn main(args: &WorksetArgs) -> anyhow::Result<ExitCode> {
    let mut program = Program::new(args)?;
    let mut steps = Vec::new();
    for kind in &args.steps {
        steps.push(program.step(*kind)?);
    }
    // Mapped to the end: see the tasks of usemem.
    std::mem::forget(program.region);
    put_json(&Report { steps })
}

struct Program {
    region: Region,
    words: Words,
    /// Writes to each page.
    writes: Vec<u32>,
    draw: Draw,
    zipf: Zipf,
    touches: u64,
    clock: Clock,
}

impl Program {
    fn new(args: &WorksetArgs) -> anyhow::Result<Self> {
        let mut region = Region::map(args.bytes).context("no memory for the region")?;
        if args.thp {
            region.ask_for_huge_pages().context("huge pages refused")?;
        }
        let words = Words::new(Fill::Index, args.seed, 0);
        for page in 0..region.pages() {
            let values = words.page(page, 0);
            for (i, word) in region.page_mut(page).iter_mut().enumerate() {
                *word = values.at(i);
            }
        }
        let pages = region.pages();
        if pages < 8 * HOT_PART {
            bail!(
                "--bytes is {} pages; expected at least {}",
                pages,
                8 * HOT_PART
            );
        }
        Ok(Program {
            writes: vec![0; pages as usize],
            draw: Draw::new(args.seed, 1),
            zipf: Zipf::new(pages),
            touches: args.touches,
            clock: Clock::calibrated(),
            words,
            region,
        })
    }

    fn step(&mut self, kind: Kind) -> anyhow::Result<Step> {
        let pages = self.region.pages();
        let mut times = Histogram::new();
        let mut absent = None;
        let start = Instant::now();
        match kind {
            Kind::Scan => self.all(&mut times, |at| at)?,
            Kind::Reverse => self.all(&mut times, |at| pages - 1 - at)?,
            Kind::Interleaved => {
                let half = pages.div_ceil(2);
                for at in 0..half {
                    self.read_all(at, &mut times)?;
                    if half + at < pages {
                        self.read_all(half + at, &mut times)?;
                    }
                }
            }
            Kind::Stride => {
                for first in 0..STRIDE {
                    for page in (first..pages).step_by(STRIDE as usize) {
                        self.read_all(page, &mut times)?;
                    }
                }
            }
            Kind::Touch => self.random(0, self.touches, &mut times, Self::read_one)?,
            Kind::RandRead => self.random(0, pages, &mut times, Self::read_one)?,
            Kind::RandWrite => self.random(0, pages, &mut times, Self::write_one)?,
            Kind::LateRead => self.random(pages * 5 / 8, pages, &mut times, Self::read_one)?,
            Kind::ZipfRead => self.skewed(&mut times, Self::read_one)?,
            Kind::ZipfWrite => self.skewed(&mut times, Self::write_one)?,
            Kind::Hot => absent = Some(self.hot(&mut times)?),
        }
        let latency = times.latency();
        Ok(Step {
            kind,
            ns_per_touch: latency.average,
            elapsed_ns: start.elapsed().as_nanos() as u64,
            latency,
            absent,
        })
    }

    fn all(&mut self, times: &mut Histogram, page: impl Fn(u64) -> u64) -> anyhow::Result<()> {
        (0..self.region.pages()).try_for_each(|at| self.read_all(page(at), times))
    }

    /// `n` pages from `first` on.
    fn random(
        &mut self,
        first: u64,
        n: u64,
        times: &mut Histogram,
        touch: fn(&mut Self, u64, &mut Histogram) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for _ in 0..n {
            let page = first + self.draw.below(self.region.pages() - first);
            touch(self, page, times)?;
        }
        Ok(())
    }

    fn skewed(
        &mut self,
        times: &mut Histogram,
        touch: fn(&mut Self, u64, &mut Histogram) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        for _ in 0..self.region.pages() {
            let page = self.zipf.page(&mut self.draw);
            touch(self, page, times)?;
        }
        Ok(())
    }

    /// The times are those of the hot set. Returns the part of its touches whose page was not mapped.
    fn hot(&mut self, times: &mut Histogram) -> anyhow::Result<f64> {
        let pages = self.region.pages();
        let hot = pages / HOT_PART;
        let (mut absent, mut touches) = (0, 0);
        let mut scan = Histogram::new();
        for at in hot..pages {
            self.read_all(at, &mut scan)?;
            if at.is_multiple_of(BESIDE) {
                let page = self.draw.below(hot);
                let is_mapped = self.region.is_mapped(page).context("mincore")?;
                absent += u64::from(!is_mapped);
                touches += 1;
                self.read_one(page, times)?;
            }
        }
        Ok(absent as f64 / touches as f64)
    }

    /// Reads all words of a page.
    fn read_all(&mut self, page: u64, times: &mut Histogram) -> anyhow::Result<()> {
        self.read_one(page, times)?;
        let (found, expected) = (self.region.page(page), self.words.page(page, 0));
        match (1..WORDS).find(|&i| found[i] != expected.at(i)) {
            None => Ok(()),
            Some(word) => self.is_wrong(page, word, found[word], expected.at(word)),
        }
    }

    /// Reads the first word of a page: the touch that is timed.
    fn read_one(&mut self, page: u64, times: &mut Histogram) -> anyhow::Result<()> {
        let before = self.clock.now();
        let found = self.region.read(page, 0);
        times.record(self.clock.between(before, self.clock.now()));
        let expected = self.first_word(page);
        if found != expected {
            return self.is_wrong(page, 0, found, expected);
        }
        Ok(())
    }

    fn write_one(&mut self, page: u64, times: &mut Histogram) -> anyhow::Result<()> {
        let expected = self.first_word(page);
        self.writes[page as usize] += 1;
        let value = self.first_word(page);
        let before = self.clock.now();
        let found = self.region.replace(page, 0, value);
        times.record(self.clock.between(before, self.clock.now()));
        if found != expected {
            return self.is_wrong(page, 0, found, expected);
        }
        Ok(())
    }

    fn first_word(&self, page: u64) -> u64 {
        let writes = u64::from(self.writes[page as usize]) << WRITES;
        self.words.page(page, 0).at(0).wrapping_add(writes)
    }

    fn is_wrong(&self, page: u64, word: usize, found: u64, expected: u64) -> anyhow::Result<()> {
        bail!(
            "wrong data: the word at {:#x} (page {page}, word {word} of it) should be {expected:#018x}, found {found:#018x}",
            self.region.address(page, word),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program() -> Program {
        let args: WorksetArgs = crate::args::parse("--bytes 2M --steps scan");
        Program::new(&args).unwrap()
    }

    #[test]
    fn each_step_reads_what_the_others_wrote() {
        let mut program = program();
        let pages = program.region.pages();
        for kind in Kind::value_variants().iter().chain(Kind::value_variants()) {
            let step = program.step(*kind).unwrap();
            let touches = match kind {
                Kind::Touch => 40_000,
                Kind::Hot => (pages - pages / HOT_PART) / BESIDE,
                _ => pages,
            };
            assert_eq!(step.latency.count, touches, "{kind:?}");
            assert_eq!(step.absent.is_some(), *kind == Kind::Hot);
        }
    }

    #[test]
    fn a_wrong_word_ends_it() {
        for (page, word) in [(3, 0), (500, 511)] {
            let mut program = program();
            program.region.write(page, word, 99);
            let error = program.step(Kind::Scan).unwrap_err().to_string();
            assert!(
                error.contains(&format!("page {page}, word {word} of it")),
                "{error}"
            );
        }
    }
}
