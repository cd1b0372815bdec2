//! Random times by published percentiles. Between two percentiles all values are equally likely: no curve is fitted, because
//! the sources give none, and integers make every machine draw the same.

use foreswap_core::units::Nanos;

use crate::sim::rng::Rng;

/// Parts that make the whole.
const WHOLE: u64 = 1_000_000;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::published::{NETWORK, SERVICE};

    #[test]
    fn draws_have_the_percentiles_and_the_mean() {
        for distribution in [NETWORK, SERVICE] {
            assert!(distribution.0.is_sorted());
            let mut rng = Rng::new(3);
            let mut draws: Vec<Nanos> = (0..200_000).map(|_| distribution.draw(&mut rng)).collect();
            draws.sort_unstable();
            for share in [100_000, 500_000, 900_000, 990_000] {
                let found = draws[(share * draws.len() as u64 / WHOLE) as usize];
                let wanted = distribution.at(share);
                assert!(found.abs_diff(wanted) < wanted / 10, "{found}, {wanted}");
            }
            let mean = draws.iter().sum::<Nanos>() / draws.len() as Nanos;
            assert!(mean.abs_diff(distribution.mean()) < mean / 50, "{mean}");
        }
    }
}
