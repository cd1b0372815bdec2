//! One open file: its policy, its limits, and the events of its reads and faults.

use alloc::boxed::Box;

use super::cache::{Cached, FilePage};
use super::legacy::Legacy;
use super::limits::{Limits, Pattern};
use super::mapped::Mapped;
use super::ondemand::OnDemand;
use super::plan::{Plan, Run, Window};
use super::policy::{Ask, FileReadahead, PageCache};
use super::reading::{Event, Reading};
use super::streams::Streams;

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
    Legacy(Legacy),
    OnDemand(OnDemand),
    /// Many times the size of the others.
    Streams(Box<Streams>),
}

/// One open file: its policy with its state, its limits and the program's hint.
#[derive(Clone, Debug)]
pub struct OpenFile {
    state: State,
    limits: Limits,
    pattern: Pattern,
    mapped: Mapped,
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
                Policy::Legacy => State::Legacy(Legacy::default()),
                Policy::OnDemand => State::OnDemand(OnDemand::of_the_seed()),
                Policy::Linux => State::OnDemand(OnDemand::of_linux()),
                Policy::Streams => State::Streams(Box::default()),
            },
            limits,
            pattern: Pattern::Normal,
            mapped: Mapped::default(),
        }
    }

    /// The program's hint (posix_fadvise).
    pub fn advise(&mut self, pattern: Pattern) {
        self.pattern = pattern;
    }

    /// Sets the limits of the store, for a driver that measures them.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// The streams that are being read, as far as the policy tells them apart; at least 1. They share the memory for
    /// windows.
    pub fn streams(&self) -> u64 {
        match &self.state {
            State::Streams(policy) => policy.active().max(1),
            State::Legacy(_) | State::OnDemand(_) => 1,
        }
    }

    /// The limits in force: those of the store, with the program's hint.
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
                cache.read(&run);
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

    /// A fault on a page that is not cached, in a mapping with the hint `pattern`. The page itself is read whatever the
    /// plan is.
    pub fn on_mapped_miss(
        &mut self,
        cache: &impl Cached,
        page: FilePage,
        pattern: Pattern,
    ) -> Plan {
        let limits = self.limits();
        if limits.max == 0 || pattern == Pattern::Random {
            return Plan::asked(cache, page, 1);
        }
        if pattern == Pattern::Sequential {
            let want = limits.max;
            self.fault();
            return self.miss(cache, Ask { page, want }, &limits);
        }
        let Some(window) = self.mapped.on_miss(page, limits.max) else {
            return Plan::asked(cache, page, 1);
        };
        self.set_window(window);
        Plan::of(cache, window)
    }

    /// A fault on a page that is cached; `marked`: it had a mark, which has been taken off.
    pub fn on_mapped_hit(
        &mut self,
        cache: &impl Cached,
        page: FilePage,
        marked: bool,
        pattern: Pattern,
    ) -> Plan {
        let limits = self.limits();
        if limits.max == 0 || pattern == Pattern::Random {
            return Plan::default();
        }
        self.mapped.on_hit();
        if !marked {
            return Plan::default();
        }
        let want = limits.max;
        self.fault();
        self.mark(cache, Ask { page, want }, &limits)
    }
}
