//! Faults that wait, and how long.
//!
//! A fault that cannot be served now waits in one of three queues: `retry` until the address space has settled, `turn`
//! until load control lets the process have memory, or `stalled` for memory. The faults of the last are served in the
//! order in which they reached the core. A fault that
//! has to wait a second time keeps its old place, so that no fault is overtaken for ever.

pub(crate) mod first_touch;
pub(crate) mod grace;
pub(crate) mod out_of_memory;
pub(crate) mod stall;

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use grace::{GRACE, RecentFaults};
use out_of_memory::{Config, Ending, Shortage};
use stall::StallTime;

use crate::units::{Nanos, PageRange, Vpn};

/// A fault that has to be tried again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pending {
    pub page: Vpn,
    /// Where in the page, in bytes.
    pub offset: u16,
    pub since: Nanos,
    /// Since when it waits for memory, if it does.
    pub stalled: Option<Nanos>,
}

impl Pending {
    /// A fault of `page` that came at `since`.
    pub fn of(page: Vpn, since: Nanos) -> Self {
        Pending {
            page,
            offset: 0,
            since,
            stalled: None,
        }
    }

    pub fn address(&self) -> u64 {
        self.page.address() + u64::from(self.offset)
    }
}

/// Faults that wait, and when the limit yields to them.
pub(crate) struct Waiters {
    config: Config,
    /// Faults that found the address space changing.
    retry: Vec<Pending>,
    /// Faults that wait for the turn of this process, and since when.
    turn: Vec<(Pending, Nanos)>,
    /// It waits for its turn.
    has_no_turn: bool,
    /// Faults that found no memory, in order.
    stalled: VecDeque<Pending>,
    /// Pages that were mapped for threads a moment ago.
    recent: RecentFaults,
    /// Until then the limit yields at once, as no page could be evicted lately.
    yields_until: Nanos,
    stalls: StallTime,
}

impl Waiters {
    /// No fault waits.
    pub fn new(config: Config) -> Self {
        Waiters {
            config,
            retry: Vec::new(),
            turn: Vec::new(),
            has_no_turn: false,
            stalled: VecDeque::new(),
            recent: RecentFaults::default(),
            yields_until: 0,
            stalls: StallTime::default(),
        }
    }

    /// A thread waited since `since`, and a larger limit would have spared it that.
    pub fn on_stall(&mut self, since: Nanos, now: Nanos) {
        self.stalls.add(since, now);
    }

    /// The time in which at least one thread waited like that.
    pub fn stall_time(&self) -> Nanos {
        self.stalls.total()
    }

    /// A fault waits for the address space to settle.
    pub fn retry_later(&mut self, pending: Pending) {
        self.retry.push(pending);
    }

    /// The faults that wait for the address space to settle.
    pub fn retries(&self) -> &[Pending] {
        &self.retry
    }

    /// The address space has settled: the faults that waited for it.
    pub fn take_retries(&mut self) -> Vec<Pending> {
        core::mem::take(&mut self.retry)
    }

    /// Whether faults that need memory wait for the turn of this process.
    pub fn has_no_turn(&self) -> bool {
        self.has_no_turn
    }

    /// Load control lets this process wait, or not.
    pub fn set_no_turn(&mut self, waits: bool) {
        self.has_no_turn = waits;
    }

    /// A fault waits for the turn of this process. A thread that signals interrupt raises its fault again each time.
    pub fn wait_for_turn(&mut self, pending: Pending, now: Nanos) {
        if self
            .turn
            .iter()
            .all(|(other, _)| other.page != pending.page)
        {
            self.turn.push((pending, now));
        }
    }

    /// The number of faults that do.
    pub fn waiting_for_turn(&self) -> usize {
        self.turn.len()
    }

    /// It is its turn: the faults that waited for it. The time until here is no time of the disk, nor a wait for memory.
    pub fn take_turn(&mut self, now: Nanos) -> Vec<Pending> {
        let waited = core::mem::take(&mut self.turn).into_iter();
        let goes_on = waited.map(|(pending, from)| Pending {
            since: now,
            stalled: pending.stalled.map(|since| since + (now - from)),
            ..pending
        });
        goes_on.collect()
    }

    /// Forget the faults on pages of `range`. `wake` is called for each.
    pub fn forget(&mut self, range: &PageRange, mut wake: impl FnMut(Vpn)) {
        let mut keep = |pending: &Pending| {
            let keep = !range.contains(&pending.page);
            if !keep {
                wake(pending.page);
            }
            keep
        };
        self.retry.retain(&mut keep);
        self.turn.retain(|(pending, _)| keep(pending));
        self.stalled.retain(&mut keep);
    }

    /// Faults wait for memory.
    pub fn are_stalled(&self) -> bool {
        !self.stalled.is_empty()
    }

    /// The number of faults that wait for memory.
    pub fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// A fault found no memory. If it left its place because the address space was changing, it comes back to it.
    pub fn stall(&mut self, mut pending: Pending, now: Nanos) {
        pending.stalled.get_or_insert(now);
        let later = |other: &&Pending| other.since > pending.since;
        let before = self.stalled.iter().rev().take_while(later);
        let at = self.stalled.len() - before.count();
        self.stalled.insert(at, pending);
    }

    /// The fault that is served first when there is memory: it came first.
    pub fn first(&self) -> Option<&Pending> {
        self.stalled.front()
    }

    /// It is tried again.
    pub fn take_first(&mut self) -> Option<Pending> {
        self.stalled.pop_front()
    }

    /// It found no memory again, and stays the first of those that have waited as long.
    pub fn stay_first(&mut self, pending: Pending) {
        let same = |other: &Pending| other.page == pending.page;
        if let Some(at) = self.stalled.iter().position(same) {
            self.stalled.remove(at);
            self.stalled.push_front(pending);
        }
    }

    /// A page was mapped for a thread that waited for it.
    pub fn on_served(&mut self, page: Vpn, now: Nanos) {
        self.recent.note(page, now);
    }

    /// Pages that were mapped for threads a moment ago.
    pub fn recent(&self) -> &RecentFaults {
        &self.recent
    }

    /// Of the pages that are to be evicted, keep those that were mapped for a thread a moment ago, and recently faulted
    /// pages as long as the limit yields.
    pub fn spare(&self, victims: &mut Vec<Vpn>, now: Nanos) {
        if now < self.yields_until {
            victims.retain(|&page| self.recent.all().all(|other| other != page));
        } else if self.recent.untouched(now).next().is_some() {
            victims.retain(|&page| self.recent.untouched(now).all(|other| other != page));
        }
    }

    /// Where the fault is that has waited longest for memory. It need not be the first: others came earlier, and waited for
    /// something else until they waited for memory.
    fn longest(&self) -> Option<usize> {
        let all = self.stalled.iter().enumerate();
        let longest = all.min_by_key(|(_, pending)| pending.stalled);
        longest.map(|(at, _)| at)
    }

    /// The fault that has waited longest for memory waits no longer.
    pub fn take_longest(&mut self) -> Option<Pending> {
        self.stalled.remove(self.longest()?)
    }

    /// The end of the fault that has waited longest for memory.
    pub fn ending(&self, shortage: &Shortage, now: Nanos) -> Ending {
        let longest = self.longest().and_then(|at| self.stalled.get(at));
        let Some(longest) = longest else {
            return Ending::Waits;
        };
        let since = longest.stalled.unwrap_or(now);
        let yields = now < self.yields_until;
        self.config.ending(shortage, since, now, yields)
    }

    /// No page can be evicted: the limit yields at once for a while.
    pub fn yield_limit(&mut self, now: Nanos) {
        self.yields_until = now + self.config.unmovable;
    }

    /// Pages can be evicted again.
    pub fn keep_limit(&mut self) {
        self.yields_until = 0;
    }

    /// Time until waiting faults may get memory without any event: pages that were just mapped for threads may then be
    /// evicted, or the limit yields once more. `None`: no such time is near.
    pub fn moment_left(&self, now: Nanos, enough_recent: impl FnOnce() -> bool) -> Option<Nanos> {
        let longest = self.stalled.get(self.longest()?)?;
        let yields = now < self.yields_until && enough_recent();
        let waited = longest.stalled.filter(|_| yields);
        let left = waited.and_then(|since| (since + GRACE).checked_sub(now));
        let left = left.filter(|&left| left > 0);
        let untouched = self.recent.untouched_for(now);
        untouched.into_iter().chain(left).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(waiters: &Waiters) -> Vec<u64> {
        waiters
            .stalled
            .iter()
            .map(|pending| pending.page.0)
            .collect()
    }

    #[test]
    fn faults_are_served_in_the_order_in_which_they_came() {
        let mut waiters = Waiters::new(Config::new(1_000));
        for (page, since) in [(1, 10), (3, 30), (2, 20), (4, 30)] {
            waiters.stall(Pending::of(Vpn(page), since), 40);
        }
        assert_eq!(pages(&waiters), [1, 2, 3, 4]);
        let first = waiters.take_first().unwrap();
        assert_eq!(first.stalled, Some(40));
        waiters.stall(first, 50);
        waiters.stall(Pending::of(Vpn(5), 10), 50);
        waiters.stay_first(first);
        assert_eq!(pages(&waiters), [1, 5, 2, 3, 4]);
        let mut woken = Vec::new();
        waiters.forget(&(Vpn(2)..Vpn(4)), |page| woken.push(page));
        assert_eq!(
            (pages(&waiters), woken),
            (alloc::vec![1, 5, 4], alloc::vec![Vpn(2), Vpn(3)])
        );
    }

    /// A shortage that ends a wait of 1,000 with the loss of the page.
    const FULL: Shortage = Shortage {
        held: false,
        areas_full: true,
        drains: false,
        in_flight: None,
        enough_recent: false,
    };

    #[test]
    fn a_wait_for_the_turn_is_no_wait_for_memory() {
        let mut waiters = Waiters::new(Config::new(1_000));
        waiters.stall(Pending::of(Vpn(1), 0), 0);
        let pending = waiters.take_first().unwrap();
        waiters.wait_for_turn(pending, 600);
        let turn = waiters.take_turn(5_000);
        turn.into_iter()
            .for_each(|pending| waiters.stall(pending, 5_000));
        assert_eq!(waiters.first().unwrap().since, 5_000);
        assert_eq!(waiters.ending(&FULL, 5_399), Ending::Waits);
        assert_eq!(waiters.ending(&FULL, 5_400), Ending::Lost);
    }

    #[test]
    fn the_wait_for_memory_that_is_longest_ends_first() {
        let mut waiters = Waiters::new(Config::new(1_000));
        // It came earlier, and waited for something else.
        waiters.stall(Pending::of(Vpn(1), 0), 900);
        waiters.stall(Pending::of(Vpn(2), 100), 100);
        assert_eq!(pages(&waiters), [1, 2]);
        assert_eq!(waiters.ending(&FULL, 1_099), Ending::Waits);
        assert_eq!(waiters.ending(&FULL, 1_100), Ending::Lost);
        assert_eq!(waiters.take_longest().unwrap().page, Vpn(2));
        assert_eq!(waiters.ending(&FULL, 1_100), Ending::Waits);
    }

    #[test]
    fn a_limit_that_yielded_yields_once_more_in_a_moment() {
        let mut waiters = Waiters::new(Config::new(1_000_000_000));
        waiters.stall(Pending::of(Vpn(1), 0), 0);
        waiters.yield_limit(0);
        assert_eq!(waiters.moment_left(1, || true), Some(GRACE - 1));
        assert_eq!(waiters.moment_left(1, || false), None);
        waiters.keep_limit();
        assert_eq!(waiters.moment_left(1, || true), None);
    }
}
