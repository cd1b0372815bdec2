//! The policy that was chosen at the start.

use super::clock::Clock;
use super::generations::Generations;
use super::lru::Lru;
use super::policy::{Came, Rank, ReclaimPolicy};
use super::s3fifo::S3Fifo;

/// The policies.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// References that the hand of a clock takes.
    #[default]
    Clock,
    /// Two lists, and refault distance.
    Lru,
    /// Generations, and refault distance.
    Generations,
    /// A small and a main queue.
    S3Fifo,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 4] = [
        Policy::Clock,
        Policy::Lru,
        Policy::Generations,
        Policy::S3Fifo,
    ];

    /// Its name, as options spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Clock => "clock",
            Policy::Lru => "lru",
            Policy::Generations => "generations",
            Policy::S3Fifo => "s3fifo",
        }
    }
}

/// The state of the policy.
pub(crate) enum AnyPolicy {
    Clock(Clock),
    Lru(Lru),
    Generations(Generations),
    S3Fifo(S3Fifo),
}

/// The value of an expression for the policy that was chosen. The match is outside of the loops of the sweep.
macro_rules! with {
    ($chosen:expr, $policy:ident => $value:expr) => {
        match $chosen {
            AnyPolicy::Clock($policy) => $value,
            AnyPolicy::Lru($policy) => $value,
            AnyPolicy::Generations($policy) => $value,
            AnyPolicy::S3Fifo($policy) => $value,
        }
    };
}
pub(crate) use with;

impl AnyPolicy {
    /// No page was mapped yet.
    pub fn new(policy: Policy) -> Self {
        match policy {
            Policy::Clock => AnyPolicy::Clock(Clock::default()),
            Policy::Lru => AnyPolicy::Lru(Lru::default()),
            Policy::Generations => AnyPolicy::Generations(Generations::default()),
            Policy::S3Fifo => AnyPolicy::S3Fifo(S3Fifo::default()),
        }
    }
}

impl ReclaimPolicy for AnyPolicy {
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

#[cfg(test)]
mod tests {
    use alloc::vec::Vec;

    use super::*;

    /// Ways to come, each several times over.
    fn comings() -> Vec<Came> {
        let distances = [None, Some(0), Some(90), Some(1_000_000)];
        let returned = distances.map(|distance| Came::Returned {
            distance,
            soon: distance != Some(1_000_000),
        });
        let others = [Came::Beside, Came::Touched, Came::Ahead, Came::Joined(0)];
        returned.into_iter().chain(others).collect()
    }

    #[test]
    fn every_policy_names_all_pages_of_any_kind_within_few_passes() {
        for policy in Policy::ALL {
            for came in comings() {
                let mut chosen = AnyPolicy::new(policy);
                let mut ranks = Vec::new();
                for _ in 0..100 {
                    let rank = chosen.rank(came, 100);
                    chosen.on_mapped(rank, 100);
                    ranks.push(rank);
                }
                while !ranks.is_empty() {
                    let before = ranks.len();
                    // Reclaim goes around so often in one call.
                    for _ in 0..4 {
                        let was = ranks.len();
                        ranks = ranks.iter().filter_map(|&r| chosen.judge(r, 1)).collect();
                        chosen.begin_pass((was - ranks.len()) as u64, ranks.len() as u64);
                    }
                    assert!(ranks.len() < before, "{policy:?}, {came:?}");
                }
            }
        }
    }

    #[test]
    fn a_page_that_is_cold_goes_at_once() {
        for policy in Policy::ALL {
            let mut chosen = AnyPolicy::new(policy);
            assert_eq!(chosen.judge(0, 1), None);
            assert!(!chosen.is_needed(0));
        }
    }
}
