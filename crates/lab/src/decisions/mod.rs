//! `foreswap lab decisions`: compares the core's decisions with Linux's.

mod files;
mod recording;
mod replay;
mod replay_files;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use files::Advice;
use recording::{Recording, RecordingError, Recordings};

/// The result of all files together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// A decision differs.
    differs: bool,
    /// Some part could not be compared.
    incomplete: bool,
}

impl From<Verdict> for ExitCode {
    fn from(verdict: Verdict) -> Self {
        match verdict {
            Verdict { differs: true, .. } => ExitCode::from(1),
            Verdict {
                incomplete: true, ..
            } => ExitCode::from(2),
            Verdict { .. } => ExitCode::SUCCESS,
        }
    }
}

/// One line of the table.
struct Row {
    name: String,
    policy: String,
    /// `page-cluster`, or the readahead limit in pages.
    limit: u64,
    decisions: usize,
    equal: usize,
    first: Option<String>,
}

/// The meaning of the limit, per kind of recording.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Swap,
    File,
}

impl Kind {
    fn limit(self) -> &'static str {
        match self {
            Kind::Swap => "page-cluster",
            Kind::File => "limit pages",
        }
    }
}

fn row(recording: &Recording) -> (Kind, Row) {
    match recording {
        Recording::Swap(swap) => {
            let result = replay::replay(swap);
            let row = Row {
                name: swap.name.escape_debug().to_string(),
                policy: swap.policy.to_string(),
                limit: swap.page_cluster.into(),
                decisions: result.decisions,
                equal: result.equal,
                first: result.first.as_ref().map(ToString::to_string),
            };
            (Kind::Swap, row)
        }
        Recording::File(file) => {
            let result = replay_files::replay(file);
            let advice = match file.advice {
                Advice::None => "",
                Advice::Sequential => " (sequential)",
                Advice::Random => " (random)",
            };
            let row = Row {
                name: format!("{}{advice}", file.name.escape_debug()),
                policy: "linux".into(),
                limit: file.limit,
                decisions: result.decisions,
                equal: result.equal,
                first: result.first.as_ref().map(ToString::to_string),
            };
            (Kind::File, row)
        }
    }
}

/// Replays every recording of every file. An invalid file ends with a message on `err`; the others continue.
pub fn compare(
    files: &[PathBuf],
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    for path in files {
        let name = path.display();
        writeln!(out, "{name}")?;
        let (differs, problem) = compare_file(path, out)?;
        verdict.differs |= differs;
        if let Err(why) = problem {
            verdict.incomplete = true;
            out.flush()?;
            writeln!(err, "foreswap lab: {name}: {why}")?;
        }
    }
    out.flush()?;
    Ok(verdict)
}

/// Whether a decision differs, or the fault of the file.
fn compare_file(
    path: &Path,
    out: &mut impl Write,
) -> io::Result<(bool, Result<(), RecordingError>)> {
    let mut recordings = match File::open(path).and_then(Recordings::new) {
        Ok(recordings) => recordings,
        Err(error) => return Ok((false, Err(error.into()))),
    };
    let (mut compared, mut decisions, mut equal) = (0, 0, 0);
    let mut heading = None;
    let problem = loop {
        match recordings.next() {
            Ok(Some(recording)) => {
                let (kind, row) = row(&recording);
                if heading.replace(kind) != Some(kind) {
                    writeln!(
                        out,
                        "{:<26} {:<8} {:>12} {:>10} {:>10}  first difference",
                        "recording",
                        "policy",
                        kind.limit(),
                        "decisions",
                        "equal",
                    )?;
                }
                writeln!(
                    out,
                    "{:<26} {:<8} {:>12} {:>10} {:>10}  {}",
                    row.name,
                    row.policy,
                    row.limit,
                    row.decisions,
                    row.equal,
                    row.first.as_deref().unwrap_or("none"),
                )?;
                compared += 1;
                decisions += row.decisions;
                equal += row.equal;
            }
            Ok(None) if compared == 0 => break Err(RecordingError::Empty),
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    if compared > 0 {
        writeln!(
            out,
            "{compared} recordings, {decisions} decisions, {equal} equal"
        )?;
    }
    Ok((equal < decisions, problem))
}
