//! The counts of a run.

use crate::process::Tally;

/// The counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Steps carried out.
    pub steps: u64,
    /// Counts of the processes.
    pub tally: Tally,
    /// Pages read from areas.
    pub swap_in: u64,
    /// Pages written to areas.
    pub swap_out: u64,
    /// Huge pages read and written whole.
    pub huge: u64,
    /// Of these, the ones read by swapoff.
    pub drained: u64,
    /// Children.
    pub forks: u64,
    /// Processes that died before the end.
    pub deaths: u64,
    /// Areas removed.
    pub swapoffs: u64,
    /// A hash over all events.
    pub trace: u64,
}

impl Summary {
    /// The sum of both.
    pub fn add(&mut self, other: &Summary) {
        self.steps += other.steps;
        self.tally.faults += other.tally.faults;
        self.tally.touches += other.tally.touches;
        self.tally.sigbus += other.tally.sigbus;
        self.tally.longest = self.tally.longest.max(other.tally.longest);
        self.tally.kept = self.tally.kept.max(other.tally.kept);
        self.swap_in += other.swap_in;
        self.swap_out += other.swap_out;
        self.huge += other.huge;
        self.drained += other.drained;
        self.forks += other.forks;
        self.deaths += other.deaths;
        self.swapoffs += other.swapoffs;
        self.trace = self.trace.rotate_left(1) ^ other.trace;
    }
}
