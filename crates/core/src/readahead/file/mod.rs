//! File readahead: which pages are read in addition when a program reads a file, and when.
//!
//! A policy is called at two moments: a read *misses* a page, or it *meets a mark*, which an earlier window left so
//! that the next one starts before the program gets there. It answers with a [`Plan`]: pages to read, and the place of
//! the next mark. It decides on the cached pages, the limit of the file and its state of this open file. It reads
//! nothing itself and knows no time.
//!
//! [`OpenFile`] is one open file under one [`Policy`]. [`Reading`] is one read through the cache, page by page; it is
//! the same for all policies. The policies, one file each:
//!
//! - `ondemand`: readahead on demand (seed 004), as in the seed (`ondemand`) and as in Linux 6.18 (`linux`)
//! - `legacy`: the two windows of Linux 2.6.20 with which the seed compares
//! - `streams`: foreswap's own, a state for each of several streams and strides
//! - `mapped`: faults on mapped files, on top of any of them

mod legacy;
mod limits;
mod mapped;
mod ondemand;
mod plan;
mod reading;
mod streams;
#[cfg(test)]
mod tests;

pub use limits::{Limits, Pattern};
pub use mapped::MISSES_TO_GIVE_UP;
pub use ondemand::OnDemand;
pub use plan::{MAX_RUNS, Plan, Run, Window};
pub use reading::{Event, Reading};

use alloc::boxed::Box;

use crate::units::PAGE_SHIFT;

/// A page of a file, counted from 0.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FilePage(pub u64);

impl FilePage {
    /// The page that holds a byte of the file.
    pub const fn of(byte: u64) -> Self {
        FilePage(byte >> PAGE_SHIFT)
    }

    /// The page `n` further on.
    pub const fn plus(self, n: u64) -> Self {
        FilePage(self.0.saturating_add(n))
    }
}

/// A policy's questions about a file's pages.
pub trait Cached {
    /// Size of the file in pages, including a last page that is not full.
    fn file_pages(&self) -> u64;

    /// The page is in memory, or a read of it is in flight.
    fn has(&self, page: FilePage) -> bool;

    /// How many pages right before `page` are cached without a gap; at most `most`.
    fn run_before(&self, page: FilePage, most: u64) -> u64 {
        let before = (0..page.0)
            .rev()
            .take(most.try_into().unwrap_or(usize::MAX));
        before.take_while(|&at| self.has(FilePage(at))).count() as u64
    }

    /// The first page that is not cached among the `most` from `from` on. The end of the file is not cached.
    fn first_absent(&self, from: FilePage, most: u64) -> Option<FilePage> {
        let end = from.0.saturating_add(most);
        (from.0..end).map(FilePage).find(|&page| !self.has(page))
    }
}

/// A file's pages in memory, as a read uses them.
pub trait PageCache: Cached {
    /// Removes the mark of a cached page; returns whether there was one.
    fn take_mark(&mut self, page: FilePage) -> bool;

    /// Starts one read of the run's absent pages and puts the mark on the page that the run names, if that page was
    /// absent.
    fn read(&mut self, run: &Run);
}

/// A page that a read wants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// The page.
    pub page: FilePage,
    /// Pages from it to the end of the program's request, itself included. May reach past the end of the file. At least
    /// 1.
    pub want: u64,
}

/// A readahead policy. Its state of one open file is the implementing type itself.
pub trait FileReadahead {
    /// A read reaches a page at which the policy asked to be called, before the page is looked up. The first page of
    /// each read is one. Returns the plan and the page of the next call.
    fn on_approach(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> (Plan, FilePage) {
        let _ = (cache, limits);
        (
            Plan::default(),
            FilePage(ask.page.0.saturating_add(ask.want)),
        )
    }

    /// The page is not cached. The page itself is read whatever the plan is.
    fn on_miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan;

    /// The page is cached and had a mark, which has been removed.
    fn on_mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan;

    /// A fault on a mapping of the file, and not a read; a miss or a mark may follow. A fault has no beginning or end
    /// that later reads could be compared with.
    fn on_fault(&mut self) {}

    /// A read that began in the page `first` ended at the byte before `end`.
    fn on_end(&mut self, first: FilePage, end: u64);
}

/// The policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Policy {
    /// The two windows of Linux 2.6.20 (the base of seed 004).
    Legacy,
    /// Readahead on demand as seed 004 introduced it.
    OnDemand,
    /// Readahead on demand as Linux 6.18 has it.
    Linux,
    /// Foreswap's own: a state for each of several streams, and strides.
    Streams,
}

impl Policy {
    /// All of them, base first.
    pub const ALL: [Policy; 4] = [
        Policy::Legacy,
        Policy::OnDemand,
        Policy::Linux,
        Policy::Streams,
    ];

    /// The name that a user gives.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Legacy => "legacy",
            Policy::OnDemand => "ondemand",
            Policy::Linux => "linux",
            Policy::Streams => "streams",
        }
    }
}

#[derive(Clone, Debug)]
enum State {
    Legacy(legacy::Legacy),
    OnDemand(OnDemand),
    /// Many times the size of the others.
    Streams(Box<streams::Streams>),
}

/// One open file: its policy with its state, its limits and the program's hint.
#[derive(Clone, Debug)]
pub struct OpenFile {
    state: State,
    limits: Limits,
    pattern: Pattern,
    mapped: mapped::Mapped,
}

/// Calls a method of the file's policy.
macro_rules! policy {
    ($state:expr, $policy:ident => $call:expr) => {
        match $state {
            State::Legacy($policy) => $call,
            State::OnDemand($policy) => $call,
            State::Streams($policy) => $call,
        }
    };
}

impl OpenFile {
    /// A file just opened.
    pub fn new(policy: Policy, limits: Limits) -> Self {
        OpenFile {
            state: match policy {
                Policy::Legacy => State::Legacy(legacy::Legacy::default()),
                Policy::OnDemand => State::OnDemand(OnDemand::of_the_seed()),
                Policy::Linux => State::OnDemand(OnDemand::of_linux()),
                Policy::Streams => State::Streams(Box::default()),
            },
            limits,
            pattern: Pattern::Normal,
            mapped: mapped::Mapped::default(),
        }
    }

    /// The program's hint (posix_fadvise).
    pub fn advise(&mut self, pattern: Pattern) {
        self.pattern = pattern;
    }

    /// New limits, from the user or because the store's speed was measured again.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The limits in force: those set, with the program's hint.
    pub fn limits(&self) -> Limits {
        let limits = self.limits.advised(self.pattern);
        match (&self.state, self.pattern) {
            // In 2.6.20 this hint switches readahead off, and with it all reads of more than a page.
            (State::Legacy(_), Pattern::Random) => Limits { max: 0, ..limits },
            _ => limits,
        }
    }

    /// A read of `bytes` bytes from `offset` on begins, in a file of `file_bytes` bytes.
    pub fn begin(&self, offset: u64, bytes: u64, file_bytes: u64) -> Reading {
        Reading::new(offset, bytes, file_bytes)
    }

    /// Decides on an event of a read.
    pub fn decide(&mut self, reading: &mut Reading, cache: &impl Cached, event: Event) -> Plan {
        let limits = self.limits();
        match event {
            Event::Approach(ask) => {
                let (plan, next) =
                    policy!(&mut self.state, policy => policy.on_approach(cache, ask, &limits));
                reading.approach_at(next);
                plan
            }
            Event::Miss(ask) if limits.max == 0 => Plan::asked(cache, ask.page, 1),
            Event::Miss(ask) if self.pattern == Pattern::Random => {
                Plan::forced(cache, ask.page, ask.want, &limits)
            }
            Event::Miss(ask) => self.miss(cache, ask, &limits),
            Event::Mark(_) if limits.max == 0 => Plan::default(),
            Event::Mark(ask) => self.mark(cache, ask, &limits),
            Event::Use(_) => Plan::default(),
            Event::End { first, end } => {
                policy!(&mut self.state, policy => policy.on_end(first, end));
                Plan::default()
            }
        }
    }

    fn fault(&mut self) {
        policy!(&mut self.state, policy => policy.on_fault());
    }

    fn miss(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        policy!(&mut self.state, policy => policy.on_miss(cache, ask, limits))
    }

    fn mark(&mut self, cache: &impl Cached, ask: Ask, limits: &Limits) -> Plan {
        policy!(&mut self.state, policy => policy.on_mark(cache, ask, limits))
    }

    /// Continues a read up to the next page that the program can have as soon as it is read; starts the reads that the
    /// policy decides on. `None` at the end.
    pub fn read(&mut self, reading: &mut Reading, cache: &mut impl PageCache) -> Option<FilePage> {
        loop {
            let event = reading.next(cache)?;
            let plan = self.decide(reading, cache, event);
            for run in plan.runs() {
                cache.read(run);
            }
            match event {
                Event::Miss(ask) if !cache.has(ask.page) => {
                    cache.read(&Run::plain(ask.page, 1));
                }
                Event::Use(page) => return Some(page),
                _ => {}
            }
        }
    }

    /// The state that an observer may compare: the window of readahead on demand.
    pub fn window(&self) -> Option<Window> {
        match &self.state {
            State::OnDemand(policy) => Some(policy.window()),
            _ => None,
        }
    }

    /// Sets the window of readahead on demand, so that a replay continues from recorded decisions. Other policies are
    /// left alone.
    pub fn set_window(&mut self, window: Window) {
        if let State::OnDemand(policy) = &mut self.state {
            policy.set_window(window);
        }
    }
}
