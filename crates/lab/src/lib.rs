//! The lab: the core's own policies at work without a kernel.
//!
//! [`lab`] is `foreswap lab`. `decisions/` replays recorded decisions of a real kernel and compares. `trace/` reads
//! and writes traces of programs. From a trace, `mrc/` computes how much memory the program needs, and `replay/` how
//! it would run with other policies. `reproduce/` runs the workloads of the five documents that foreswap started from
//! on a simulated machine (`sim/`, `work/`) and prints their tables with its own figures beside them. `torture/`
//! searches for bugs. All of them run the engine's own modules and contain no copy of a decision, except `clients/`: it lets
//! many machines of `replay/` share a pool of servers, and has the rules of the relay again (`clients/relay.rs` says why).

#![forbid(unsafe_code)]

mod clients;
mod decisions;
mod hash;
mod jobs;
mod mrc;
mod page_tables;
mod plot;
mod progress;
mod replay;
mod reproduce;
mod sim;
mod size;
pub mod torture;
pub mod trace;
mod work;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Args, Subcommand};

pub use mrc::{Curve, RunningCurve};
use trace::{Source, SourceOptions, Target, TraceError};

/// `foreswap lab`.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "\
Examples:
  foreswap lab mrc job.trace --plot job.svg
  foreswap lab reproduce all"
)]
pub struct LabArgs {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// Replay recorded decisions of a Linux kernel and compare foreswap's own with them
    #[command(after_help = DECISIONS_HELP)]
    Decisions {
        /// Recordings, one JSON object per line, plain or gzip
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// Compute from a trace how much memory a program needs: its miss-ratio curve
    Mrc(Box<mrc::MrcArgs>),
    /// Try other memory sizes, readahead policies and huge pages on a trace, on a simulated machine
    Replay(Box<replay::ReplayArgs>),
    /// Measure what each heuristic of the memory manager is worth, on simulated machines
    #[cfg(feature = "ablate")]
    Worth(replay::worth::WorthArgs),
    /// Simulate many clients on a pool of servers: how throughput and tail grow
    Clients(Box<clients::ClientsArgs>),
    /// Write a trace in another format
    Convert(ConvertArgs),
    /// Simulate the published measurements with which foreswap began, and compare the figures
    Reproduce(reproduce::ReproduceArgs),
    /// Look for bugs in the memory manager: random programs, machines and faults, from a seed
    Torture(torture::TortureArgs),
}

/// `foreswap lab convert`.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  foreswap lab convert job.trace job.csv")]
struct ConvertArgs {
    /// A trace: of `run --trace`, CSV, or libCacheSim's oracleGeneral
    #[arg(value_name = "TRACE")]
    from: PathBuf,

    /// The output file
    #[arg(value_name = "FILE")]
    to: PathBuf,

    /// The output format [default: csv if FILE ends in .csv, else foreswap]
    #[arg(long, value_enum, value_name = "FORMAT")]
    target: Option<Target>,

    #[command(flatten)]
    source: SourceOptions,
}

/// A file with an error.
#[derive(Debug, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub(crate) struct FileError {
    path: PathBuf,
    error: TraceError,
}

pub(crate) fn on_file(path: &Path) -> impl Fn(TraceError) -> FileError {
    let path = path.to_owned();
    move |error| FileError {
        path: path.clone(),
        error,
    }
}

/// Writes a small file whole.
pub(crate) fn write_file(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}

/// Reports remarks on a trace that was read.
pub(crate) fn remark_trace(
    err: &mut impl Write,
    trace: &str,
    cut_off: bool,
    lost: u64,
) -> io::Result<()> {
    if cut_off {
        writeln!(
            err,
            "foreswap lab: {trace}: the end is missing (the recording was killed, or the file was \
             cut); what is there was used"
        )?;
    }
    if lost > 0 {
        let lost = size::count(lost);
        writeln!(
            err,
            "foreswap lab: {trace}: {lost} records were lost while it was recorded"
        )?;
    }
    Ok(())
}

const DECISIONS_HELP: &str = "\
Example:
  foreswap lab decisions vma.jsonl cluster.jsonl.gz

Recordings of swap readahead (policies vma and cluster) are replayed touch by touch; a decision is
a miss and the pages that are read for it. Recordings of file readahead (policy linux) are replayed
read by read; a decision is a miss or a mark that is met, the window that is set and what is read.
After a difference the replay goes on from what the kernel did. Which pages a recording with
drop_ahead_every dropped is not known; there, the cause of a decision is taken from the recording,
and only the answer is compared.

The exit status is 0 when every decision is equal, 1 when one differs, and 2 when none differs but a
file cannot be read or holds something that cannot be compared.";

/// Runs `foreswap lab`. Results go to standard output, incomparable parts to standard error.
///
/// # Errors
///
/// Standard output cannot be written.
pub fn lab(args: LabArgs) -> anyhow::Result<ExitCode> {
    let (mut out, mut err) = (io::stdout(), io::stderr());
    let result = match args.command {
        LabCommand::Decisions { files } => {
            return Ok(decisions::compare(&files, &mut out, &mut err)?.into());
        }
        LabCommand::Reproduce(args) => return reproduce::reproduce(&args, &mut out, &mut err),
        LabCommand::Torture(args) => return torture::torture(&args, &mut out, &mut err),
        LabCommand::Mrc(args) => mrc::mrc(&args, &mut out, &mut err),
        LabCommand::Replay(args) => replay::replay(&args, &mut out, &mut err),
        #[cfg(feature = "ablate")]
        LabCommand::Worth(args) => replay::worth::worth(&args, &mut out, &mut err),
        LabCommand::Clients(args) => clients::run_all(&args, &mut out),
        LabCommand::Convert(args) => convert(&args, &mut out, &mut err),
    };
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error) => {
            writeln!(err, "foreswap lab: {error:#}")?;
            Ok(ExitCode::from(2))
        }
    }
}

fn convert(args: &ConvertArgs, out: &mut impl Write, err: &mut impl Write) -> anyhow::Result<()> {
    let csv = args
        .to
        .extension()
        .is_some_and(|end| end.eq_ignore_ascii_case("csv"));
    let target = args
        .target
        .unwrap_or(if csv { Target::Csv } else { Target::Foreswap });
    let mut source = Source::open(&args.from, &args.source).map_err(on_file(&args.from))?;
    let records = trace::convert(&mut source, &args.from, &args.to, target)?;
    remark_trace(
        err,
        &args.from.display().to_string(),
        source.was_cut_off(),
        0,
    )?;
    writeln!(
        out,
        "{}: {} records",
        args.to.display(),
        size::count(records)
    )?;
    Ok(())
}
