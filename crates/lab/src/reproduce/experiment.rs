//! One comparison: a machine, a workload, and the policies compared.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use foreswap_core::Swapoff;
use foreswap_core::linux_kswapd::Defects;
use foreswap_core::readahead::{Policy, file};

use crate::jobs;
use crate::sim::file_machine::FileState;
use crate::sim::machine::{Setup, SimError};
use crate::sim::memory::{HugeSwap, Order};
use crate::sim::parameters::Parameters;

/// Simulated figures, by the keys of the published rows.
pub type Figures = BTreeMap<String, f64>;

/// The difference between the base and the optimized variant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Swap readahead.
    Readahead(Policy),
    /// The lookup method of swapoff.
    Swapoff(Swapoff),
    /// When a huge page is split on its way out.
    HugeSwap(HugeSwap),
    /// File readahead.
    FileReadahead(file::Policy),
    /// Defects of background reclaim.
    Kswapd(Defects),
}

impl Choice {
    /// `setup` with this choice.
    pub fn of(self, setup: Setup) -> Setup {
        match self {
            Choice::Readahead(readahead) => Setup { readahead, ..setup },
            Choice::Swapoff(swapoff) => Setup { swapoff, ..setup },
            Choice::HugeSwap(huge_swap) => Setup { huge_swap, ..setup },
            Choice::FileReadahead(file_readahead) => Setup {
                file_readahead,
                ..setup
            },
            Choice::Kswapd(defects) => Setup { defects, ..setup },
        }
    }
}

/// One comparison.
#[derive(Clone, Copy)]
pub struct Experiment {
    /// The start of its figures' keys.
    pub name: &'static str,
    /// The seed with its tables.
    pub seed: &'static str,
    /// The machine.
    pub machine: &'static str,
    /// The factor by which memory and time are scaled down.
    pub scale: u64,
    /// The common settings of both variants.
    pub common: Setup,
    /// The seed's base and optimized variant.
    pub variants: [Choice; 2],
    /// Runs the workload.
    pub run: fn(&Parameters, &Setup, u64) -> Result<Figures, SimError>,
}

/// Background reclaim without any of its defects.
const REPAIRED: Defects = Defects {
    strict_zone_check: false,
    early_flag_clear: false,
    zero_classzone: false,
};

/// The kernel of the seeds, before any choice.
const KERNEL: Setup = Setup {
    readahead: Policy::Vma(8),
    swapoff: Swapoff::Readahead,
    huge_swap: HugeSwap::SplitFirst,
    order: Order::Lru,
    first_touch: 1,
    file_readahead: file::Policy::OnDemand,
    file_state: FileState::Copied,
    defects: REPAIRED,
    headroom: 1,
};

/// foreswap with single pages.
pub const OURS: Setup = Setup {
    readahead: Policy::Streams(512),
    swapoff: Swapoff::Stream,
    huge_swap: HugeSwap::SplitAfter,
    order: Order::Clock,
    first_touch: 256,
    file_readahead: file::Policy::Streams,
    file_state: FileState::Shared,
    defects: REPAIRED,
    headroom: 8,
};

/// foreswap's own best policy, the same for all seeds: with huge pages where memory is touched in order.
pub const OURS_HUGE: Setup = Setup {
    huge_swap: HugeSwap::Whole,
    ..OURS
};

/// The variants of seed 004.
const FILE_VARIANTS: [Choice; 2] = [
    Choice::FileReadahead(file::Policy::Legacy),
    Choice::FileReadahead(file::Policy::OnDemand),
];

/// A program of seed 004, on its machine at full size.
const fn on_files(
    name: &'static str,
    run: fn(&Parameters, &Setup, u64) -> Result<Figures, SimError>,
) -> Experiment {
    Experiment {
        name,
        seed: "ondemand-readahead",
        machine: "core-2",
        scale: 1,
        common: KERNEL,
        variants: FILE_VARIANTS,
        run,
    }
}

/// All comparisons.
pub const EXPERIMENTS: &[Experiment] = &[
    Experiment {
        name: "usemem",
        seed: "vma-readahead",
        machine: "xeon-e5-v3",
        scale: 16,
        common: KERNEL,
        variants: [
            Choice::Readahead(Policy::Cluster(8)),
            Choice::Readahead(Policy::Vma(8)),
        ],
        run: super::vma_readahead::usemem,
    },
    Experiment {
        name: "linpack",
        seed: "vma-readahead",
        machine: "xeon-e5-v3",
        scale: 64,
        common: KERNEL,
        variants: [
            Choice::Readahead(Policy::Cluster(8)),
            Choice::Readahead(Policy::Vma(8)),
        ],
        run: super::vma_readahead::linpack,
    },
    Experiment {
        name: "thp",
        seed: "thp-swap",
        machine: "xeon-e5-v3-4.8",
        scale: 16,
        common: Setup {
            first_touch: 256,
            ..KERNEL
        },
        variants: [
            Choice::HugeSwap(HugeSwap::SplitFirst),
            Choice::HugeSwap(HugeSwap::SplitAfter),
        ],
        run: super::thp_swap::swap_out,
    },
    Experiment {
        name: "cluster",
        seed: "swapoff",
        machine: "kvm-guest",
        scale: 16,
        common: Setup {
            readahead: Policy::Cluster(8),
            ..KERNEL
        },
        variants: [
            Choice::Swapoff(Swapoff::LegacyStats),
            Choice::Swapoff(Swapoff::Readahead),
        ],
        run: super::swapoff::swapoff,
    },
    Experiment {
        name: "vma",
        seed: "swapoff",
        machine: "kvm-guest",
        scale: 16,
        common: KERNEL,
        variants: [
            Choice::Swapoff(Swapoff::LegacyStats),
            Choice::Swapoff(Swapoff::Readahead),
        ],
        run: super::swapoff::swapoff,
    },
    on_files("iozone", super::ondemand_readahead::iozone),
    on_files("aio-stress", super::ondemand_readahead::aio_stress),
    on_files("fileio", super::ondemand_readahead::fileio),
    on_files("oltp", super::ondemand_readahead::oltp),
    on_files("thrashing", super::ondemand_readahead::thrashing),
    Experiment {
        name: "simoop",
        seed: "kswapd",
        machine: "two-socket-disk",
        scale: 2,
        common: KERNEL,
        variants: [Choice::Kswapd(Defects::BASE), Choice::Kswapd(REPAIRED)],
        run: super::kswapd::simoop,
    },
    Experiment {
        name: "stutter",
        seed: "kswapd",
        machine: "uma-disk",
        scale: 2,
        common: KERNEL,
        variants: [Choice::Kswapd(Defects::BASE), Choice::Kswapd(REPAIRED)],
        run: super::kswapd::stutter,
    },
];

impl Experiment {
    /// The setups of base, optimized and foreswap.
    pub fn setups(&self) -> [Setup; 3] {
        let [base, optimized] = self.variants;
        [base.of(self.common), optimized.of(self.common), OURS_HUGE]
    }

    /// Runs all three on the same machine and workload, at most `jobs` at a time.
    ///
    /// # Errors
    ///
    /// A run ended early.
    pub fn figures(
        &self,
        machine: &Parameters,
        scale: u64,
        seed: u64,
        jobs: NonZeroUsize,
    ) -> Result<[Figures; 3], SimError> {
        let machine = machine.clone().scaled(scale);
        let run = |setup: &Setup| -> Result<Figures, SimError> {
            let figures = (self.run)(&machine, setup, seed)?;
            let named = |(key, value)| (format!("{}/{key}", self.name), value);
            Ok(figures.into_iter().map(named).collect())
        };
        let mut all = <[Figures; 3]>::default();
        let figures = jobs::each(jobs, &self.setups(), run);
        for (place, figures) in all.iter_mut().zip(figures) {
            *place = figures?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Base and optimized differ only in the named policy: given the other's choice, each is the other.
    #[test]
    fn variants_differ_in_the_named_policy_only() {
        for experiment in EXPERIMENTS {
            let name = experiment.name;
            let [base, optimized] = experiment.variants;
            let [first, second, _] = experiment.setups();
            assert_ne!(first, second, "{name}");
            assert_eq!(
                std::mem::discriminant(&base),
                std::mem::discriminant(&optimized),
                "{name}: two policies are named"
            );
            assert_eq!(optimized.of(first), second, "{name}");
            assert_eq!(base.of(second), first, "{name}");
        }
    }

    #[test]
    fn every_experiment_has_a_machine_and_published_rows() {
        let seeds = super::super::published::seeds().expect("readable");
        for experiment in EXPERIMENTS {
            Parameters::named(experiment.machine).expect("a machine");
            let rows = seeds.iter().filter(|seed| seed.seed == experiment.seed);
            let mut rows = rows
                .flat_map(|seed| &seed.tables)
                .flat_map(|table| &table.rows);
            let begins = format!("{}/", experiment.name);
            assert!(
                rows.any(|row| row.key.starts_with(&begins)),
                "{}",
                experiment.name
            );
        }
    }
}
