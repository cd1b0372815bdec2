//! `foreswap report TRACE`: the page of a recorded run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use foreswap_lab::trace::{Source, SourceOptions, TraceError};

use super::Story;
use super::activity::Activity;
use super::watching::PageFile;

/// `foreswap report`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  foreswap report job.trace
  foreswap report job.trace --output job.html

A trace has no times of waiting, no areas and no names of mappings: a page by `foreswap run --report FILE`
shows these as well.")]
pub struct ReportArgs {
    /// A trace by `foreswap run --trace`
    #[arg(value_name = "TRACE")]
    pub trace: PathBuf,

    /// The page [default: TRACE with .html at its end]
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// A trace that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("{path}: {error}; expected a trace by `foreswap run --trace FILE`", path = path.display())]
struct UnreadableTrace {
    path: PathBuf,
    error: TraceError,
}

/// Reads the trace, writes the page, prints its name.
pub fn report(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let path = args.output.clone().unwrap_or_else(|| beside(&args.trace));
    let wrong = |error| UnreadableTrace {
        path: args.trace.clone(),
        error,
    };
    let mut source = Source::open(&args.trace, &SourceOptions::default()).map_err(wrong)?;
    let limit = source.header().limit;
    if limit == 0 {
        bail!(
            "{}: a trace of all touches, without a memory limit; expected one by `foreswap run --trace FILE`. `foreswap lab mrc` \
             draws the curve of this one",
            args.trace.display()
        );
    }
    let same = |path: &Path| std::fs::canonicalize(path).ok();
    if same(&path).is_some_and(|output| Some(output) == same(&args.trace)) {
        bail!(
            "{}: that is the trace itself; name another file with --output",
            path.display()
        );
    }
    let file = PageFile::check(&path)?;
    let mut activity = Activity::new(limit);
    while let Some(record) = source.next().map_err(wrong)? {
        activity.record(&record);
    }
    let found = activity.finish();
    let name = args.trace.file_name().unwrap_or(args.trace.as_os_str());
    let written = file.write(&Story {
        title: name.to_string_lossy().into_owned(),
        found: &found,
        measured: None,
        cut_off: source.was_cut_off(),
    })?;
    println!("{}", written.display());
    Ok(ExitCode::SUCCESS)
}

/// `job.trace.html` for `job.trace`.
fn beside(trace: &Path) -> PathBuf {
    let mut path = trace.as_os_str().to_owned();
    path.push(".html");
    path.into()
}
