//! How much a process counts when the limit is divided: less the longer it sleeps.
//!
//! All processes of a run count alike while they work. A process that sleeps beside one that lacks memory (a parent that
//! waits for its child, an idle server) needs its pages later, if at all. The kernel's list of pages of all processes
//! ages its pages as the others are used. Here each process orders its own pages, so its *weight* ages instead: it halves
//! with each period in which the process neither ran nor faulted, and is whole again when it does. A process whose weight
//! fell loses nothing by that alone: only what others lack is taken from it.

use crate::units::Nanos;

/// The weight of a process that works. A sleeping one keeps at least 1: with a busy process beside it, 1.5 % of the limit,
/// enough to be woken and to answer.
pub const FULL_WEIGHT: u64 = 64;
/// How long a process is looked at. Longer than the sleep of a program that draws (60 Hz) or serves (10 Hz): such a
/// program loses half of its weight at most.
const PERIOD: Nanos = 100_000_000;
/// It works if it ran for more than this part of the period: more than timers and signal handlers take.
const WORKS: u64 = 64;

/// The activity of one process.
#[derive(Debug)]
pub(super) struct Activity {
    weight: u64,
    /// When the period began, and its CPU time then.
    since: Nanos,
    ran: Nanos,
    /// It faulted in this period.
    faulted: bool,
}

impl Default for Activity {
    fn default() -> Self {
        Activity {
            weight: FULL_WEIGHT,
            since: 0,
            ran: 0,
            faulted: false,
        }
    }
}

impl Activity {
    pub(super) const fn weight(&self) -> u64 {
        self.weight
    }

    /// At `now`, the process has run for `ran` in all; whether it has `faulted` since the last call.
    pub(super) fn look(&mut self, now: Nanos, ran: Nanos, faulted: bool) {
        self.faulted |= faulted;
        let (period, more) = (now.saturating_sub(self.since), ran.saturating_sub(self.ran));
        let works = self.faulted || more > PERIOD / WORKS;
        if works {
            self.weight = FULL_WEIGHT;
        }
        if period < PERIOD {
            return;
        }
        if !works {
            let halvings = (period / PERIOD).min(u64::from(FULL_WEIGHT.ilog2()));
            self.weight = (self.weight >> halvings).max(1);
        }
        (self.since, self.ran, self.faulted) = (now, ran, false);
    }
}

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    #[test]
    fn weight_halves_while_the_process_sleeps_and_is_whole_at_once_when_it_works() {
        let mut activity = Activity::default();
        let mut weights = Vec::new();
        activity.look(1, 5, false);
        for period in 1..=8 {
            activity.look(1 + period * PERIOD, 5, false);
            weights.push(activity.weight());
        }
        assert_eq!(weights, [32, 16, 8, 4, 2, 1, 1, 1]);
        // A fault, in the middle of a period.
        activity.look(1 + 8 * PERIOD + 10, 5, true);
        assert_eq!(activity.weight(), FULL_WEIGHT);
        activity.look(1 + 9 * PERIOD, 5, false);
        assert_eq!(activity.weight(), FULL_WEIGHT, "it worked in this period");
        activity.look(1 + 10 * PERIOD, 5, false);
        assert_eq!(activity.weight(), FULL_WEIGHT / 2);
        activity.look(2 + 10 * PERIOD, 5 + PERIOD / 8, false);
        assert_eq!(activity.weight(), FULL_WEIGHT, "it runs");
    }

    #[test]
    fn what_timers_take_is_no_work() {
        let mut activity = Activity::default();
        for period in 1..10 {
            activity.look(period * PERIOD, period * PERIOD / WORKS, false);
        }
        assert_eq!(activity.weight(), 1);
    }
}
