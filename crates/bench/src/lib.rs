//! foreswap's workloads, and the peers they are run against.

mod args;
mod size;

use std::process::ExitCode;

pub use args::{BenchArgs, BenchName, PeerName, WorkloadArgs};

/// Runs `foreswap bench`.
pub fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("bench {:?} is not part of this build", args.name)
}

/// Runs `foreswap workload`: one workload in this very process, one JSON object on
/// standard output.
pub fn workload(args: WorkloadArgs) -> anyhow::Result<ExitCode> {
    args.run()
}
