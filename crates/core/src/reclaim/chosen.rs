//! The policy that was chosen at the start.

use super::clock::Clock;
use super::policy::{Came, Rank, ReclaimPolicy};

/// The policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// References that the hand of a clock takes.
    #[default]
    Clock,
}

/// The state of the policy.
pub(crate) enum Chosen {
    Clock(Clock),
}

/// The value of an expression for the policy that was chosen. The match is outside of the loops of the sweep.
macro_rules! with {
    ($chosen:expr, $policy:ident => $value:expr) => {
        match $chosen {
            Chosen::Clock($policy) => $value,
        }
    };
}
pub(crate) use with;

impl Chosen {
    /// No page was mapped yet.
    pub fn new(policy: Policy) -> Self {
        match policy {
            Policy::Clock => Chosen::Clock(Clock::default()),
        }
    }
}

impl ReclaimPolicy for Chosen {
    fn rank(&self, came: Came, resident: u64) -> Rank {
        with!(self, policy => policy.rank(came, resident))
    }

    fn on_mapped(&mut self, rank: Rank, resident: u64) {
        with!(self, policy => policy.on_mapped(rank, resident));
    }

    fn judge(&mut self, rank: Rank, pages: u32) -> Option<Rank> {
        with!(self, policy => policy.judge(rank, pages))
    }

    fn begin_pass(&mut self, evicted: u64, resident: u64) {
        with!(self, policy => policy.begin_pass(evicted, resident));
    }

    fn is_needed(&self, rank: Rank) -> bool {
        with!(self, policy => policy.is_needed(rank))
    }
}
