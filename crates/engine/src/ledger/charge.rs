//! The common limit: the number of pages that all processes hold together, and the request for help when there is no
//! room.
//!
//! The global word holds a version (24 bits) above the pages (40 bits). A charge marks itself in the record
//! (`charging`), changes the global word, then the record's own sum. If a process dies in between, the supervisor
//! recounts the global word from the records: it reads the word, checks that no living process is in the middle of a
//! charge, sums the records, and replaces the word only if it has not changed since. The version makes that check
//! reliable.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

use rustix::thread::futex;

use super::ProcId;
use super::layout::Record;
use super::mapping::Ledger;
use super::records::ProcessState;

const PAGES_BITS: u32 = 40;
const PAGES_MASK: u64 = (1 << PAGES_BITS) - 1;

fn pages(word: u64) -> u64 {
    word & PAGES_MASK
}

fn with_pages(word: u64, pages: u64) -> u64 {
    let version = (word >> PAGES_BITS).wrapping_add(1) << PAGES_BITS;
    version | pages.min(PAGES_MASK)
}

/// The maximum excess of the sum of all charges over the limit, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OverLimit {
    /// For a fork child, whose pages are also its parent's.
    pub for_forks: u64,
    /// For pages that are resident regardless of the limit: present before they were managed, or in place of
    /// immovable pages.
    pub for_present: u64,
    /// With pages that came unnoticed and wait for room: they are not in the sum.
    pub for_found: u64,
}

/// Marks a charge in progress as long as it lives.
struct Charging<'a>(&'a Record);

impl<'a> Charging<'a> {
    fn begin(record: &'a Record) -> Self {
        record.charging.fetch_add(1, SeqCst);
        Self(record)
    }
}

impl Drop for Charging<'_> {
    fn drop(&mut self) {
        self.0.charging.fetch_sub(1, SeqCst);
    }
}

impl Ledger {
    /// The limit, in pages.
    pub fn limit_pages(&self) -> u64 {
        self.header().limit_pages.load(Relaxed)
    }

    /// Changes the limit; engines follow at their next charge or pressure round.
    pub fn set_limit_pages(&self, limit: u64) {
        self.header().limit_pages.store(limit, Relaxed);
        self.raise_pressure();
    }

    /// The most pages that the limit becomes without a request of the user: sizes that are chosen once follow from it.
    /// Not less than the limit.
    pub fn bound_pages(&self) -> u64 {
        let bound = self.header().bound_pages.load(Relaxed);
        bound.max(self.limit_pages())
    }

    /// Changes that.
    pub fn set_bound_pages(&self, bound: u64) {
        self.header().bound_pages.store(bound, Relaxed);
    }

    /// Pages charged now, over all processes.
    pub fn charged_pages(&self) -> u64 {
        pages(self.header().charge.charged.load(Relaxed))
    }

    /// The maximum of the charged pages.
    pub fn peak_charged_pages(&self) -> u64 {
        self.header().charge.peak.load(Relaxed)
    }

    /// Pages that one process holds.
    pub fn process_charged(&self, process: ProcId) -> u64 {
        self.record(process).charged.load(Relaxed)
    }

    /// Charges `n` pages if the sum stays within the limit.
    #[must_use]
    pub fn try_charge(&self, process: ProcId, n: u64) -> bool {
        let limit = self.limit_pages();
        self.add_charge(process, n, |sum| sum <= limit).is_some()
    }

    /// Charges `n` pages that are already resident, even above the limit: those of a fork child, and of a process
    /// that is armed late. The caller reclaims down to the limit next.
    pub fn charge_anyway(&self, process: ProcId, n: u64) {
        let sum = self.add_charge(process, n, |_| true).unwrap_or(0);
        let over = sum.saturating_sub(self.limit_pages());
        if n > 0 && over > 0 {
            let words = &self.header().charge;
            let most = match self.state(process) {
                ProcessState::Reserved => &words.over_for_forks,
                _ => &words.over_for_present,
            };
            most.fetch_max(over, Relaxed);
        }
    }

    /// `n` pages are resident that came unnoticed and are not charged.
    pub fn note_found(&self, n: u64) {
        let over = (self.charged_pages() + n).saturating_sub(self.limit_pages());
        if n > 0 && over > 0 {
            let words = &self.header().charge;
            words.over_for_found.fetch_max(over, Relaxed);
        }
    }

    /// The excess over the limit, by cause.
    pub fn over_limit(&self) -> OverLimit {
        let words = &self.header().charge;
        OverLimit {
            for_forks: words.over_for_forks.load(Relaxed),
            for_present: words.over_for_present.load(Relaxed),
            for_found: words.over_for_found.load(Relaxed),
        }
    }

    /// The sum of all charges with this one; `None`, and nothing charged, if it does not fit.
    fn add_charge(&self, process: ProcId, n: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
        let record = self.record(process);
        let words = &self.header().charge;
        let _charging = Charging::begin(record);
        let mut word = words.charged.load(SeqCst);
        loop {
            let sum = pages(word) + n;
            if !fits(sum) {
                return None;
            }
            match words
                .charged
                .compare_exchange_weak(word, with_pages(word, sum), SeqCst, SeqCst)
            {
                Ok(_) => {
                    let own = record.charged.fetch_add(n, SeqCst) + n;
                    record.peak_charged.fetch_max(own, Relaxed);
                    words.peak.fetch_max(sum, Relaxed);
                    return Some(sum);
                }
                Err(now) => word = now,
            }
        }
    }

    /// Returns `n` pages; never more than the process holds.
    pub fn uncharge(&self, process: ProcId, n: u64) {
        let record = self.record(process);
        let _charging = Charging::begin(record);
        let take = |own: u64| Some(own - own.min(n));
        // The closure never refuses.
        let own = record
            .charged
            .fetch_update(SeqCst, SeqCst, take)
            .unwrap_or(0);
        self.subtract(own.min(n));
    }

    fn subtract(&self, n: u64) {
        let word = &self.header().charge.charged;
        let less = |word: u64| Some(with_pages(word, pages(word).saturating_sub(n)));
        let _ = word.fetch_update(SeqCst, SeqCst, less);
    }

    /// Corrects the global sum after `process` died in the middle of a charge, and subtracts its pages. False if a
    /// living process was in the way: try again. The dead process may have been charging a fork child's record, which
    /// outlives it.
    pub(super) fn settle_charge(&self, process: ProcId) -> bool {
        let record = self.record(process);
        let children = self.records_in_use().filter(|&child| {
            self.state(child) == ProcessState::Reserved && self.parent(child) == Some(process)
        });
        let cut_short: Vec<ProcId> = children
            .chain([process])
            .filter(|&other| self.record(other).charging.load(SeqCst) != 0)
            .collect();
        if !cut_short.is_empty() {
            if !(0..1000).any(|_| self.recount_charge()) {
                return false;
            }
            for other in cut_short {
                self.record(other).charging.store(0, SeqCst);
            }
        }
        self.subtract(record.charged.swap(0, SeqCst));
        self.pass_on(process);
        true
    }

    fn recount_charge(&self) -> bool {
        let word = &self.header().charge.charged;
        let before = word.load(SeqCst);
        let mut sum = 0;
        for other in self.records_in_use() {
            let record = self.record(other);
            if self.may_act(other) && record.charging.load(SeqCst) != 0 {
                rustix::thread::sched_yield();
                return false;
            }
            sum += record.charged.load(SeqCst);
        }
        word.compare_exchange(before, with_pages(before, sum), SeqCst, SeqCst)
            .is_ok()
    }

    /// Sets the number of pages that this process lacks (0: none); other processes read it in
    /// [`Ledger::wanted_by_others`]. A greater need wakes them, and so does one that comes `anew`.
    pub fn set_wanted(&self, process: ProcId, n: u64, anew: bool) {
        let wanting = &self.header().wanting;
        if n > 0 {
            wanting.insert(process);
        }
        let before = self.record(process).wanted.swap(n, SeqCst);
        if n == 0 {
            wanting.remove(process);
        }
        if n > before || anew {
            self.raise_pressure();
        }
    }

    /// Pages that other processes lack.
    pub fn wanted_by_others(&self, process: ProcId) -> u64 {
        let wanting = self.header().wanting.members();
        wanting
            .filter(|&other| other != process && self.state(other) == ProcessState::Live)
            .map(|other| self.record(other).wanted.load(SeqCst))
            .sum()
    }

    /// `process` has random faults; `now` in nanoseconds of the monotonic clock.
    pub fn set_missed(&self, process: ProcId, now: u64) {
        let words = &self.header().charge;
        words.missed_by.store(process.index() as u32, Relaxed);
        words.missed_at.store(now, Relaxed);
    }

    /// When another process last had random faults, as far as is known: 0 if this process was the last.
    pub fn others_missed_at(&self, process: ProcId) -> u64 {
        let words = &self.header().charge;
        match words.missed_by.load(Relaxed) == process.index() as u32 {
            true => 0,
            false => words.missed_at.load(Relaxed),
        }
    }

    /// The pressure word: changes whenever a need grows or the limit changes.
    pub fn pressure(&self) -> u32 {
        self.header().charge.pressure.load(SeqCst)
    }

    /// Wakes every [`Ledger::wait_pressure`].
    pub fn raise_pressure(&self) {
        let words = &self.header().charge;
        words.pressure.fetch_add(1, SeqCst);
        if words.waiters.load(SeqCst) != 0 {
            // The waiter's own timeout covers a wake-up that fails.
            let _ = futex::wake(
                &words.pressure,
                futex::Flags::empty(),
                i32::MAX.cast_unsigned(),
            );
        }
    }

    /// Waits until the pressure word differs from `seen` or the time is over; returns the word. Always give a
    /// timeout: a process killed while it raised the pressure wakes no waiter.
    pub fn wait_pressure(&self, seen: u32, timeout: Duration) -> u32 {
        let words = &self.header().charge;
        let timeout = futex::Timespec {
            tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        };
        // A killed waiter leaves the count too high: one needless system call per raise.
        words.waiters.fetch_add(1, SeqCst);
        let _ = futex::wait(&words.pressure, futex::Flags::empty(), seen, Some(&timeout));
        words.waiters.fetch_sub(1, SeqCst);
        self.pressure()
    }
}
