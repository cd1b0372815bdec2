//! One task: it fills its region, walks it in measured passes (after unmeasured ones, with `--warm-up`), and checks its
//! writes at the end. No task checks before all have ended their passes.
//!
//! A read pass compares every word that it reads with the fill. A write pass compares before it overwrites, and its
//! first access to a page is one exchange (see `Region::replace`). For writes a counter per page is kept beside the
//! region (4 bytes per page, 0.1 %). Word 0 of a page is written at every touch and must equal the counter exactly, so
//! a stale page is found even when a single word of it was drawn.

use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, compiler_fence};

use serde::{Deserialize, Serialize};

use super::clock::Clock;
use super::histogram::Histogram;
use super::launch::{Barrier, Left};
use super::marks::{self, MarkError, Moment};
use super::order::Order;
use super::region::Region;
use super::words::{Draw, GENERATION, WORDS, Words};
use crate::args::{Op, Pattern, UsememArgs};

/// Touches between two looks at the time, when a task runs for `--seconds`.
const LOOK_AT_TIME: u64 = 64;

/// Why a task ended early.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// Memory did not hold the value that was written to it.
    #[error(
        "wrong data: the word at {address:#x} (page {page}, word {word} of it) \
         should be {expected:#018x}, found {found:#018x}"
    )]
    WrongWord {
        /// Its address in the task.
        address: usize,
        /// Its page within the region.
        page: u64,
        /// Its place within the page.
        word: usize,
        /// The value that was written last.
        expected: u64,
        /// The value that was read.
        found: u64,
    },
    /// The region could not be mapped.
    #[error("no memory for the region: {0}")]
    Map(#[source] io::Error),
    /// `--thp` was asked for.
    #[error("huge pages refused: {0}")]
    HugePages(#[source] io::Error),
    /// A mark got no answer.
    #[error(transparent)]
    Mark(MarkError),
    /// Another task failed; its own error says why.
    #[error(transparent)]
    Left(#[from] Left),
}

impl From<MarkError> for TaskError {
    fn from(error: MarkError) -> Self {
        match error {
            MarkError::Left(left) => Self::Left(left),
            alone => Self::Mark(alone),
        }
    }
}

/// The measurements of a task, in nanoseconds and pages.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Measured {
    /// Anonymous memory of its process that is not its region, in bytes.
    pub other_bytes: u64,
    /// Time to fill the region.
    pub fill_ns: u64,
    /// The part of it with more than `--full` in use.
    pub over_ns: u64,
    /// First touches of the fill, by bucket.
    pub fill_buckets: Vec<(u64, u64)>,
    /// Sum and maximum of these.
    pub fill_sum_max: (u64, u64),
    /// Time of the measured passes.
    pub pass_ns: u64,
    /// Pages touched in them.
    pub pages: u64,
    /// First touches of the passes, by bucket.
    pub touch_buckets: Vec<(u64, u64)>,
    /// Sum and maximum of these.
    pub touch_sum_max: (u64, u64),
    /// Time of the check at the end (0: nothing was written).
    pub check_ns: u64,
    /// The kernel's count of minor faults in the passes.
    pub minor_faults: u64,
    /// The kernel's count of major faults in the passes.
    pub major_faults: u64,
}

/// A task in its region.
pub struct Task<'a> {
    args: &'a UsememArgs,
    number: u32,
    clock: Clock,
    words: Words,
    region: Region,
    /// How often each page was touched by a write pass; empty when only reading.
    writes: Vec<u32>,
    touches: Histogram,
    /// The generator of random touches; passes continue from each other.
    draw: Draw,
}

impl<'a> Task<'a> {
    /// Maps the region of task `number`; touches none of it.
    pub fn new(args: &'a UsememArgs, number: u32, clock: Clock) -> Result<Self, TaskError> {
        let region = Region::map(args.region_bytes()).map_err(TaskError::Map)?;
        if args.thp {
            region.ask_for_huge_pages().map_err(TaskError::HugePages)?;
        }
        let writes = match args.op {
            Op::Write => in_memory(region.pages() as usize),
            Op::Read => Vec::new(),
        };
        Ok(Self {
            args,
            number,
            clock,
            words: Words::new(args.fill, args.seed, number),
            region,
            writes,
            touches: Histogram::new(),
            draw: Draw::new(args.seed, u64::from(number)),
        })
    }

    /// Does everything; meets the other tasks at `barrier` before and after the fill, and before and after the measured
    /// passes.
    pub fn run(mut self, barrier: &Barrier) -> Result<Measured, TaskError> {
        // Before the fill: no page of any region is there yet.
        let other_bytes = crate::hold::resident().unwrap_or(0);
        self.meet(barrier, Moment::Start)?;
        let pages = self.region.pages();
        let full = self.args.full_pages().min(pages);
        let mut fill_ns = self.fill(0..full);
        let mut over_ns = 0;
        if full < pages {
            self.meet(barrier, Moment::Full)?;
            over_ns = self.fill(full..pages);
            fill_ns += over_ns;
        }
        let fill = self.touches.clone();
        if let (Some(word), 0) = (self.args.corrupt_word, self.number) {
            self.corrupt(word);
        }
        self.meet(barrier, Moment::Filled)?;
        if self.args.warm_up > 0 {
            self.passes(self.args.warm_up, None)?;
        }
        // Not a new histogram, whose memory would fault in the passes.
        self.touches.clear();

        self.meet(barrier, Moment::Begin)?;
        let (minor, major) = kernel_faults();
        let start = self.clock.now();
        let pages = match self.args.seconds {
            Some(seconds) => self.passes(u32::MAX, Some((start, seconds)))?,
            None => self.passes(self.args.repeat, None)?,
        };
        let pass_ns = self.clock.between(start, self.clock.now());
        let (minor_after, major_after) = kernel_faults();
        self.meet(barrier, Moment::End)?;

        let mut check_ns = 0;
        if self.args.op == Op::Write {
            let start = self.clock.now();
            self.check()?;
            check_ns = self.clock.between(start, self.clock.now());
        }
        let (fill_latency, latency) = (fill.latency(), self.touches.latency());
        // Mapped to the end of the process: the report includes the statistics of this region at the end of the
        // process.
        std::mem::forget(self.region);
        Ok(Measured {
            other_bytes,
            fill_ns,
            over_ns,
            fill_buckets: fill.buckets(),
            fill_sum_max: (fill.sum(), fill_latency.max),
            pass_ns,
            pages,
            touch_buckets: self.touches.buckets(),
            touch_sum_max: (self.touches.sum(), latency.max),
            check_ns,
            minor_faults: minor_after - minor,
            major_faults: major_after - major,
        })
    }

    /// Waits for the other tasks, and for an observer, if there is one.
    fn meet(&self, barrier: &Barrier, moment: Moment) -> Result<(), TaskError> {
        match self.args.marks {
            true => Ok(marks::stand_still(barrier, moment, self.number == 0)?),
            false => Ok(barrier.wait()?),
        }
    }

    /// Fills these pages; returns how long it took.
    fn fill(&mut self, pages: Range<u64>) -> u64 {
        let start = self.clock.now();
        for page in pages {
            let values = self.words.page(page, 0);
            let before = self.clock.now();
            self.region.write(page, 0, values.at(0));
            let after = self.clock.now();
            self.touches.record(self.clock.between(before, after));
            for (i, word) in self.region.page_mut(page).iter_mut().enumerate() {
                *word = values.at(i);
            }
        }
        compiler_fence(Ordering::SeqCst);
        self.clock.between(start, self.clock.now())
    }

    fn corrupt(&mut self, word: u64) {
        let (page, word) = (word / WORDS as u64, word as usize % WORDS);
        if page < self.region.pages() {
            let found = self.region.read(page, word);
            self.region.write(page, word, found ^ (1 << 13));
        }
    }

    /// Runs `count` passes, or until so many seconds after a reading of the clock, and returns how many pages they
    /// touched.
    fn passes(&mut self, count: u32, until: Option<(u64, f64)>) -> Result<u64, TaskError> {
        let until = until.map(|(start, seconds)| (start, (seconds.max(0.0) * 1e9) as u64));
        let late = |clock: &Clock, touched: u64| {
            until.is_some_and(|(start, ns)| {
                touched.is_multiple_of(LOOK_AT_TIME) && clock.between(start, clock.now()) >= ns
            })
        };
        let pages = self.region.pages();
        let mut touched = 0;
        for _ in 0..count {
            if self.args.pattern == Pattern::Rand {
                for _ in 0..pages {
                    if late(&self.clock, touched) {
                        return Ok(touched);
                    }
                    let drawn = self.draw.below(pages * WORDS as u64);
                    self.touch_word(drawn / WORDS as u64, drawn as usize % WORDS)?;
                    touched += 1;
                }
            } else {
                for page in Order::new(self.args, pages) {
                    if late(&self.clock, touched) {
                        return Ok(touched);
                    }
                    match self.args.op {
                        Op::Read => self.read_page(page)?,
                        Op::Write => self.write_page(page)?,
                    }
                    touched += 1;
                }
            }
        }
        Ok(touched)
    }

    #[inline]
    fn timed_read(&mut self, page: u64, word: usize) -> u64 {
        let before = self.clock.now();
        let found = self.region.read(page, word);
        let after = self.clock.now();
        self.touches.record(self.clock.between(before, after));
        found
    }

    #[inline]
    fn timed_replace(&mut self, page: u64, word: usize, value: u64) -> u64 {
        let before = self.clock.now();
        let found = self.region.replace(page, word, value);
        let after = self.clock.now();
        self.touches.record(self.clock.between(before, after));
        found
    }

    fn read_page(&mut self, page: u64) -> Result<(), TaskError> {
        let first = self.timed_read(page, 0);
        let values = self.words.page(page, 0);
        if first != values.at(0) {
            return Err(self.wrong(page, 0, values.at(0), first));
        }
        let step = self.words_apart();
        let words = self.region.page(page);
        let mut differences = 0;
        if step == 1 {
            for (i, word) in words.iter().enumerate() {
                differences |= *word ^ values.at(i);
            }
        } else {
            for i in (0..WORDS).step_by(step) {
                differences |= words[i] ^ values.at(i);
            }
        }
        if differences == 0 {
            return Ok(());
        }
        Err(self.first_wrong(page, |_| 0))
    }

    fn write_page(&mut self, page: u64) -> Result<(), TaskError> {
        let written = self.writes[page as usize];
        let (old, new) = (
            self.words.page(page, written),
            self.words.page(page, written + 1),
        );
        let (expected, value) = (old.at(0), new.at(0));
        let first = self.timed_replace(page, 0, value);
        if first != expected {
            return Err(self.wrong(page, 0, expected, first));
        }
        let step = self.words_apart();
        let (old, new) = (
            self.words.page(page, written),
            self.words.page(page, written + 1),
        );
        // Word 0 was compared above, and is new already.
        let words = self.region.page_mut(page);
        let wrong = |words: &[u64; WORDS]| {
            let mut differences = 0;
            if step == 1 {
                for (i, word) in words.iter().enumerate().skip(1) {
                    differences |= *word ^ old.at(i);
                }
            } else {
                for i in (step..WORDS).step_by(step) {
                    differences |= words[i] ^ old.at(i);
                }
            }
            differences != 0
        };
        if wrong(words) {
            let differs = |i: &usize| words[*i] != old.at(*i);
            let word = (step..WORDS).step_by(step).find(differs).unwrap_or(step);
            let (expected, found) = (old.at(word), words[word]);
            return Err(self.wrong(page, word, expected, found));
        }
        if step == 1 {
            for (i, word) in words.iter_mut().enumerate() {
                *word = new.at(i);
            }
        } else {
            for i in (0..WORDS).step_by(step) {
                words[i] = new.at(i);
            }
        }
        self.writes[page as usize] = written + 1;
        Ok(())
    }

    /// A touch of one drawn word; the module's opening explains the counters.
    fn touch_word(&mut self, page: u64, word: usize) -> Result<(), TaskError> {
        if self.args.op == Op::Read {
            let expected = self.words.page(page, 0).at(word);
            let found = self.timed_read(page, word);
            return if found == expected {
                Ok(())
            } else {
                Err(self.wrong(page, word, expected, found))
            };
        }
        let written = self.writes[page as usize];
        let value = self.words.page(page, written + 1).at(word);
        let found = self.timed_replace(page, word, value);
        self.plausible(page, word, found)?;
        if word != 0 {
            let value = self.words.page(page, written + 1).at(0);
            let found = self.region.replace(page, 0, value);
            self.plausible(page, 0, found)?;
        }
        self.writes[page as usize] = written + 1;
        Ok(())
    }

    /// Word 0 must be of the page's present generation, others of this or an earlier one.
    fn plausible(&self, page: u64, word: usize, found: u64) -> Result<(), TaskError> {
        let written = self.writes[page as usize];
        let age = found.wrapping_sub(self.words.page(page, 0).at(word));
        let whole = age & ((1 << GENERATION) - 1) == 0;
        let generation = age >> GENERATION;
        let right = match word {
            0 => generation == u64::from(written),
            _ => generation <= u64::from(written),
        };
        if whole && right {
            return Ok(());
        }
        Err(self.wrong(page, word, self.words.page(page, written).at(word), found))
    }

    /// Verifies every word of the region after writes.
    fn check(&mut self) -> Result<(), TaskError> {
        let step = self.words_apart();
        for page in 0..self.region.pages() {
            let written = self.writes[page as usize];
            if self.args.pattern == Pattern::Rand {
                for word in 0..WORDS {
                    self.plausible(page, word, self.region.read(page, word))?;
                }
                continue;
            }
            let generation = |word: usize| {
                if word.is_multiple_of(step) {
                    written
                } else {
                    0
                }
            };
            let (last, first) = (self.words.page(page, written), self.words.page(page, 0));
            let words = self.region.page(page);
            let mut differences = 0;
            for (i, word) in words.iter().enumerate() {
                let expected = if step == 1 || i.is_multiple_of(step) {
                    last.at(i)
                } else {
                    first.at(i)
                };
                differences |= *word ^ expected;
            }
            if differences != 0 {
                return Err(self.first_wrong(page, generation));
            }
        }
        Ok(())
    }

    /// Names the first wrong word of a page that is known to have one.
    fn first_wrong(&self, page: u64, generation: impl Fn(usize) -> u32) -> TaskError {
        let expected = |word| self.words.page(page, generation(word)).at(word);
        let words = self.region.page(page);
        let wrong = (0..WORDS)
            .step_by(self.check_step())
            .find(|i| words[*i] != expected(*i));
        // A word that was wrong a moment ago and is right now was changed meanwhile.
        let word = wrong.unwrap_or(0);
        self.wrong(page, word, expected(word), words[word])
    }

    fn check_step(&self) -> usize {
        match self.args.op {
            Op::Read => self.words_apart(),
            Op::Write => 1,
        }
    }

    fn words_apart(&self) -> usize {
        (self.args.step as usize / 8).clamp(1, WORDS)
    }

    fn wrong(&self, page: u64, word: usize, expected: u64, found: u64) -> TaskError {
        TaskError::WrongWord {
            address: self.region.address(page, word),
            page,
            word,
            expected,
            found,
        }
    }
}

/// Counters at zero, locked in memory if that is allowed: they are ours and not the workload's, and must not cause its
/// faults.
fn in_memory(count: usize) -> Vec<u32> {
    let counters = vec![0; count];
    // SAFETY: asks for memory of our own to stay; it does until it is unmapped.
    unsafe { libc::mlock(counters.as_ptr().cast(), size_of_val(&counters[..])) };
    counters
}

/// Minor and major faults of this thread so far.
fn kernel_faults() -> (u64, u64) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel fills in the structure that it is given.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init()
    };
    (usage.ru_minflt as u64, usage.ru_majflt as u64)
}
