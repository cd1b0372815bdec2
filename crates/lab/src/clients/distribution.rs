//! Random times by published percentiles. Between two percentiles all values are equally likely: no curve is fitted, because
//! the sources give none, and integers make every machine draw the same.

use foreswap_core::units::Nanos;

use crate::sim::rng::Rng;

/// Parts that make the whole.
pub const WHOLE: u64 = 1_000_000;

/// Values at rising shares of all draws.
#[derive(Clone, Copy, Debug)]
pub struct Distribution(
    /// The share below, in millionths, and the value in nanoseconds; from 0 to 1,000,000.
    pub &'static [(u64, Nanos)],
);

impl Distribution {
    /// The value that `share` millionths of all draws do not exceed.
    pub fn at(&self, share: u64) -> Nanos {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        for (&(from, low), &(to, high)) in pairs {
            if share <= to && from < to {
                let part = u128::from(high - low) * u128::from(share.saturating_sub(from));
                return low + (part / u128::from(to - from)) as Nanos;
            }
        }
        self.0.last().map_or(0, |&(_, value)| value)
    }

    /// Draws one.
    pub fn draw(&self, rng: &mut Rng) -> Nanos {
        self.at(rng.below(WHOLE))
    }

    /// The mean of all draws.
    #[cfg(test)]
    pub fn mean(&self) -> Nanos {
        let pairs = self.0.iter().zip(self.0.iter().skip(1));
        let sum: u128 = pairs
            .map(|(&(from, low), &(to, high))| u128::from(to - from) * u128::from(low + high) / 2)
            .sum();
        (sum / u128::from(WHOLE)) as Nanos
    }
}
