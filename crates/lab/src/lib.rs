//! The lab: the core's own policies at work without a kernel.
//!
//! [`lab`] is `foreswap lab`. `decisions/` replays what a real kernel decided and compares;
//! `reproduce/` runs the work of the five documents that foreswap began with on a simulated machine
//! (`sim/`, `work/`) and prints their tables with its own figures beside. All of it runs the very
//! modules that the engine runs and has no copy of any decision.

#![forbid(unsafe_code)]

mod decisions;
mod reproduce;
mod sim;
mod work;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

/// `foreswap lab`.
#[derive(Debug, Args)]
#[command(arg_required_else_help = true)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Replay recorded decisions of a Linux kernel and compare foreswap's own with them
    #[command(after_help = DECISIONS_HELP)]
    Decisions {
        /// Recordings, one JSON object a line, plain or gzip
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Simulate the published measurements that foreswap began with, and compare the figures
    Reproduce(reproduce::ReproduceArgs),
}

const DECISIONS_HELP: &str = "\
Recordings of swap readahead (policies vma and cluster) are replayed, touch by touch; a decision is
a miss and the pages that are read for it. After a difference the replay goes on from what the
kernel read.

The exit status is 0 when every decision is equal, 1 when one differs, and 2 when none differs but a
file cannot be read or holds something that cannot be compared.";

/// Runs `foreswap lab`. Results go to standard output, what could not be compared to standard error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn lab(args: LabArgs) -> anyhow::Result<ExitCode> {
    let (mut out, mut err) = (std::io::stdout(), std::io::stderr());
    match args.command {
        LabCommand::Decisions { files } => {
            Ok(decisions::compare(&files, &mut out, &mut err)?.into())
        }
        LabCommand::Reproduce(args) => reproduce::reproduce(&args, &mut out, &mut err),
    }
}
