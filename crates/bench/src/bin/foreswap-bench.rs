//! The benches without the `foreswap` command: for the tests of this crate, and to measure another build (`--exe`).

use std::process::ExitCode;

use clap::Parser;

#[derive(Parser)]
#[command(name = "foreswap-bench", about = "foreswap's benches by themselves")]
enum Command {
    /// Runs a workload on foreswap and on its peers, in turns
    Bench(Box<foreswap_bench::BenchArgs>),
    /// Runs one workload in this process
    #[command(hide = true)]
    Workload(foreswap_bench::WorkloadArgs),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Bench(args) => foreswap_bench::bench(*args),
        Command::Workload(args) => foreswap_bench::workload(args),
    }
}
