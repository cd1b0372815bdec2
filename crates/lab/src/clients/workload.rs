//! What clients do: each fills its memory, most of which goes to the servers, reads it once, so that everything is there, and
//! then touches it for ever. What is under way from before ends in its first touches, which are not counted.

use clap::ValueEnum;
use foreswap_core::units::Vpn;

use crate::replay::machine::Op;
use crate::sim::rng::Rng;

/// Where the memory begins: at a huge page.
const BASE: u64 = 1 << 20;
/// The longest run of the mixed workload, in pages.
const RUN: u64 = 32;
/// One touch of this many writes, in the mixed workload.
const WRITES: u64 = 3;

/// Touches that are not counted.
const SETTLING: u64 = 256;

/// The workloads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Workload {
    /// Reads in order, again and again: bound by bandwidth
    Scan,
    /// Reads random pages: bound by latency
    Random,
    /// Runs of 1 to 32 pages at random places, a third of the touches write
    Mixed,
}

impl Workload {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Workload::Scan => "scan",
            Workload::Random => "random",
            Workload::Mixed => "mixed",
        }
    }

    /// The touches of a client with `pages` pages.
    pub fn program(self, pages: u64, seed: u64) -> Program {
        let mut rng = Rng::new(seed);
        // Scans of different clients are at different places.
        let at = rng.below(pages);
        Program {
            workload: self,
            rng,
            pages,
            touches: 0,
            at,
            run: 0,
        }
    }
}

/// The touches of one client, without end.
pub struct Program {
    workload: Workload,
    rng: Rng,
    pages: u64,
    /// Touches so far.
    touches: u64,
    /// The next page of a run, and the pages left of it.
    at: u64,
    run: u64,
}

impl Program {
    /// Whether its touches count.
    pub fn is_settled(&self) -> bool {
        self.touches > 2 * self.pages + SETTLING
    }
}

impl Iterator for Program {
    type Item = Op;

    fn next(&mut self) -> Option<Op> {
        self.touches += 1;
        if self.touches <= 2 * self.pages {
            let page = (self.touches - 1) % self.pages;
            return Some(touch(page, self.touches <= self.pages));
        }
        let write = match self.workload {
            Workload::Scan => false,
            Workload::Random => {
                self.at = self.rng.below(self.pages);
                return Some(touch(self.at, false));
            }
            Workload::Mixed => {
                if self.run == 0 {
                    self.run = 1 + self.rng.below(RUN);
                    self.at = self.rng.below(self.pages);
                }
                self.run -= 1;
                self.rng.below(WRITES) == 0
            }
        };
        let page = self.at;
        self.at = (self.at + 1) % self.pages;
        Some(touch(page, write))
    }
}

fn touch(page: u64, write: bool) -> Op {
    Op::Touch {
        page: Vpn(BASE + page),
        byte: 0,
        write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touches(workload: Workload, seed: u64) -> Vec<(u64, bool)> {
        let program = workload.program(1000, seed).take(12_000);
        let touches = program.map(|op| match op {
            Op::Touch { page, write, .. } => (page.0 - BASE, write),
            other => panic!("{other:?}"),
        });
        touches.collect()
    }

    #[test]
    fn all_memory_is_prepared_and_then_touched_as_named() {
        for workload in [Workload::Scan, Workload::Random, Workload::Mixed] {
            let touches = touches(workload, 1);
            let (prepared, rest) = touches.split_at(2000);
            let wanted = (0..2000).map(|n| (n % 1000, n < 1000));
            assert!(wanted.eq(prepared.iter().copied()));
            let writes = rest.iter().filter(|(_, write)| *write).count();
            let next = |pair: &&[(u64, bool)]| pair[1].0 == (pair[0].0 + 1) % 1000;
            let in_order = rest.windows(2).filter(next).count();
            let (writes_wanted, order_wanted) = match workload {
                Workload::Scan => (0..=0, 9_999..=9_999),
                Workload::Random => (0..=0, 0..=40),
                Workload::Mixed => (3_000..=3_700, 9_200..=9_600),
            };
            assert!(writes_wanted.contains(&writes), "{workload:?}: {writes}");
            assert!(order_wanted.contains(&in_order), "{workload:?}: {in_order}");
        }
        assert_ne!(touches(Workload::Scan, 1), touches(Workload::Scan, 2));
    }
}
