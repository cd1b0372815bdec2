//! One way of a link: all transfers that are under way share its bandwidth equally, as TCP connections do on average.
//!
//! What each has got is the same for all, so that one number and the order of their ends are the whole state. Rounding goes
//! against the transfers: the link never carries more than its bandwidth.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use foreswap_core::units::Nanos;

/// Fractions of a byte.
const FINE: u128 = 1 << 24;
const SECOND: u128 = 1_000_000_000;

/// When the next transfer ends, unless the link has changed by then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Due {
    /// The time.
    pub at: Nanos,
    /// The state of the link for which this is true.
    pub version: u32,
}

/// One way of a link.
#[derive(Debug)]
pub struct Link {
    bandwidth: u128,
    /// What a transfer has got that was there from the start, in fractions of a byte.
    each: u128,
    /// The time of `each`.
    now: Nanos,
    /// By the value of `each` at its end, and by arrival.
    flows: BinaryHeap<Reverse<(u128, u64, u32)>>,
    begun: u64,
    version: u32,
    /// Time with a transfer under way.
    busy: Nanos,
}

impl Link {
    /// An idle link of `bandwidth` bytes a second.
    pub fn new(bandwidth: u64) -> Self {
        Link {
            bandwidth: u128::from(bandwidth.max(1)),
            each: 0,
            now: 0,
            flows: BinaryHeap::new(),
            begun: 0,
            version: 0,
            busy: 0,
        }
    }

    fn advance(&mut self, now: Nanos) {
        let passed = now - self.now;
        self.now = now;
        let flows = self.flows.len() as u128;
        if flows > 0 {
            self.each += u128::from(passed) * self.bandwidth * FINE / (SECOND * flows);
            self.busy += passed;
        }
    }

    fn due(&mut self) -> Option<Due> {
        self.version = self.version.wrapping_add(1);
        let Reverse((end, _, _)) = self.flows.peek()?;
        let flows = self.flows.len() as u128;
        let left = end.saturating_sub(self.each) * flows * SECOND;
        let wait = left.div_ceil(self.bandwidth * FINE);
        Some(Due {
            at: self.now + wait as Nanos,
            version: self.version,
        })
    }

    /// Transfer `name` of `bytes` bytes begins.
    pub fn begin(&mut self, now: Nanos, bytes: u64, name: u32) -> Option<Due> {
        self.advance(now);
        self.begun += 1;
        let end = self.each + u128::from(bytes) * FINE;
        self.flows.push(Reverse((end, self.begun, name)));
        self.due()
    }

    /// The time of `version` has come: the transfer that ends, and what is due then. `None`: the link has changed since.
    pub fn end(&mut self, now: Nanos, version: u32) -> Option<(u32, Option<Due>)> {
        if version != self.version {
            return None;
        }
        self.advance(now);
        let Reverse((_, _, name)) = self.flows.pop()?;
        Some((name, self.due()))
    }

    /// All transfers are cut off.
    pub fn cut(&mut self, now: Nanos) {
        self.advance(now);
        self.flows.clear();
        self.version = self.version.wrapping_add(1);
    }

    /// Time until `now` with a transfer under way.
    pub fn busy(&mut self, now: Nanos) -> Nanos {
        self.advance(now);
        self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::rng::Rng;

    const GB: u64 = 1_000_000_000;

    /// Begins the transfers (time, bytes) and returns when each ends.
    fn run(bandwidth: u64, transfers: &[(Nanos, u64)]) -> Vec<Nanos> {
        let mut link = Link::new(bandwidth);
        let mut ends = vec![0; transfers.len()];
        let (mut next, mut due) = (0, None::<Due>);
        loop {
            let begins = transfers.get(next).map(|&(at, _)| at);
            match (begins, due) {
                (Some(at), other) if other.is_none_or(|due| at < due.at) => {
                    due = link.begin(at, transfers[next].1, next as u32);
                    next += 1;
                }
                (_, Some(Due { at, version })) => {
                    let (name, then) = link.end(at, version).expect("it has not changed");
                    assert_eq!(ends[name as usize], 0, "it ends twice");
                    ends[name as usize] = at;
                    due = then;
                }
                (_, None) => return ends,
            }
        }
    }

    #[test]
    fn equal_transfers_share_equally() {
        // A byte per nanosecond.
        assert_eq!(run(GB, &[(0, 1000)]), [1000]);
        assert_eq!(run(GB, &[(0, 1000), (0, 1000)]), [2000, 2000]);
        // The second one gets half from 500 on, and all after the first has ended.
        assert_eq!(run(GB, &[(0, 1000), (500, 1000)]), [1500, 2000]);
        assert_eq!(run(GB, &[(0, 4000), (0, 1000)]), [5000, 2000]);
    }

    #[test]
    fn a_link_never_carries_more_than_its_bandwidth() {
        let mut rng = Rng::new(5);
        for bandwidth in [GB, 1_234_567_891, 77_777] {
            let mut at = 0;
            let transfers: Vec<(Nanos, u64)> = (0..2_000)
                .map(|_| {
                    at += rng.below(3_000_000_000_000 / bandwidth);
                    (at, 1 + rng.below(4_096))
                })
                .collect();
            let ends = run(bandwidth, &transfers);
            let mut order: Vec<usize> = (0..ends.len()).collect();
            order.sort_by_key(|&n| ends[n]);
            for &(from, _) in transfers.iter().step_by(97) {
                let mut bytes = 0u128;
                for &n in order.iter().filter(|&&n| transfers[n].0 >= from) {
                    bytes += u128::from(transfers[n].1);
                    let most = u128::from(ends[n] - from) * u128::from(bandwidth) / SECOND;
                    assert!(bytes <= most + 1, "{bytes} bytes, at most {most}");
                }
            }
        }
    }

    #[test]
    fn what_is_cut_off_does_not_end() {
        let mut link = Link::new(GB);
        let due = link.begin(0, 1000, 0).expect("it ends");
        link.cut(500);
        assert_eq!(link.end(due.at, due.version), None);
        let due = link.begin(2000, 100, 1).expect("it ends");
        assert_eq!((due.at, link.busy(2100)), (2100, 600));
    }
}
