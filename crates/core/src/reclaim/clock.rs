//! A clock: the rank counts references. The hand takes one per pass, and evicts a page that has none.
//!
//! A page that came back soon after its eviction has one reference more than others.

use super::policy::{Came, Rank, ReclaimPolicy};

/// References by how a page comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Config {
    /// Of a page that was touched or is about to be.
    new: Rank,
    /// Of a page that is needed again soon after its eviction.
    refault: Rank,
}

const CONFIG: Config = Config { new: 1, refault: 2 };

/// The policy.
pub(crate) struct Clock {
    config: Config,
}

impl Default for Clock {
    fn default() -> Self {
        Clock { config: CONFIG }
    }
}

impl ReclaimPolicy for Clock {
    fn rank(&self, came: Came, _resident: u64) -> Rank {
        match came {
            Came::Beside => 0,
            Came::Returned { soon: true, .. } => self.config.refault,
            Came::Touched | Came::Ahead | Came::Returned { .. } | Came::Joined(_) => {
                self.config.new
            }
        }
    }

    fn on_mapped(&mut self, _rank: Rank, _resident: u64) {}

    fn judge(&mut self, rank: Rank, _pages: u32) -> Option<Rank> {
        rank.checked_sub(1)
    }

    fn begin_pass(&mut self, _evicted: u64, _resident: u64) {}

    fn is_needed(&self, rank: Rank) -> bool {
        rank > self.config.new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_came_back_soon_survives_one_pass_more() {
        let mut clock = Clock::default();
        let mut passes = |came| {
            let (mut rank, mut passes) = (clock.rank(came, 100), 0);
            while let Some(left) = clock.judge(rank, 1) {
                (rank, passes) = (left, passes + 1);
            }
            passes
        };
        let returned = |soon| Came::Returned {
            distance: None,
            soon,
        };
        assert_eq!(passes(Came::Beside), 0);
        assert_eq!(passes(Came::Touched), 1);
        assert_eq!(passes(returned(false)), 1);
        assert_eq!(passes(returned(true)), 2);
    }
}
