//! foreswap's workloads, and the peers with which it is compared.
//!
//! [`bench()`] is `foreswap bench`: it runs one workload on foreswap and on the named peers in turns (A B A B ...)
//! within one call, and reports medians and ratios. An absolute figure means nothing on a shared machine, a ratio
//! within one run does. [`workload`] is the hidden command that such a turn runs as a child process. It knows nothing
//! of foreswap: the same executable with the same arguments runs bare, under `foreswap run`, or in a memory cgroup on
//! the kernel's own swap.
//!
//! `usemem/`, `workset/`, `mapped/`, `hold.rs`, `forks.rs`, `allocs.rs`, and `linpack.py` and `build.py` (run by Python) are
//! workloads; `programs/` has jobs for programs of others. `disk.rs` measures a swap area's device, `slots/` the slot allocator and `digest.rs` the page hash alone. `files/` reads files
//! through foreswap's page cache and the kernel's. `peer/` runs a workload under
//! one memory management, `system/` changes the machine for a peer and undoes it. `benches/` decides which runs there
//! are, and `report/` makes tables, targets and JSON of them.

mod allocs;
mod args;
mod benches;
mod digest;
mod disk;
mod files;
mod forks;
mod hold;
pub mod interrupt;
mod mapped;
mod output;
mod peer;
mod programs;
mod progress;
mod report;
mod size;
mod slots;
mod spread;
mod steal;
mod system;
mod usemem;
mod workset;

use std::process::ExitCode;

pub use args::{BenchArgs, BenchName, PeerName, WorkloadArgs};

/// Runs `foreswap bench`. Ends with 0 when every run was completed (a missed target is a finding, not a failure), with
/// 1 when a workload failed or read a wrong byte, with 130 or 143 after Ctrl-C or SIGTERM.
pub fn bench(args: BenchArgs) -> anyhow::Result<ExitCode> {
    Ok(said("bench", benches::run(args)))
}

/// Runs `foreswap workload`: one workload in this process, one JSON object on standard output.
pub fn workload(args: WorkloadArgs) -> anyhow::Result<ExitCode> {
    Ok(said("workload", args.run()))
}

/// Prints an error in one line, without the trace that `main` may add to an error that it returns.
fn said(command: &str, result: anyhow::Result<ExitCode>) -> ExitCode {
    result.unwrap_or_else(|error| {
        eprintln!("foreswap {command}: {error:#}");
        ExitCode::FAILURE
    })
}
