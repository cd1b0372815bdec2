//! The output of a workload: JSON objects, one per line.

use std::io::Write;
use std::process::ExitCode;

use serde::Serialize;

/// Prints one object and flushes, so that the reader of a pipe has it at once.
pub fn put_json(report: &impl Serialize) -> anyhow::Result<ExitCode> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, report)?;
    writeln!(out)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
