//! The lab: the core's own policies at work without a kernel.
//!
//! [`lab`] is `foreswap lab`. So far it has one experiment, `decisions/`: it replays what a real
//! kernel decided and compares. It runs the very modules that the engine runs and has no copy of
//! any decision.

#![forbid(unsafe_code)]

mod decisions;

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
}

const DECISIONS_HELP: &str = "\
Recordings of swap readahead (policies vma and cluster) are replayed touch by touch; a decision is
a miss and the pages that are read for it. Recordings of file readahead (policy linux) are replayed
read by read; a decision is a miss or a mark that is met, the window that is set and what is read.
After a difference the replay goes on from what the kernel did. Which pages a recording with
drop_ahead_every dropped is not known; there, who asks is taken from it and only the answer is compared.

The exit status is 0 when every decision is equal, 1 when one differs, and 2 when none differs but a
file cannot be read or holds something that cannot be compared.";

/// Runs `foreswap lab`. Results go to standard output, what could not be compared to standard error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn lab(args: LabArgs) -> anyhow::Result<ExitCode> {
    let LabCommand::Decisions { files } = args.command;
    let verdict = decisions::compare(&files, &mut std::io::stdout(), &mut std::io::stderr())?;
    Ok(verdict.into())
}
