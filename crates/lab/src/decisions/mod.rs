//! `foreswap lab decisions`: does the core decide as Linux did?

mod recording;
mod replay;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use recording::{Recording, RecordingError, Recordings};
use replay::{Comparison, replay};

/// What came of all files together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// A decision differs.
    differs: bool,
    /// Something could not be compared.
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

/// Replays every recording of every file. A file that cannot be understood ends with a message on
/// `err`; the others go on.
pub fn compare(
    files: &[PathBuf],
    out: &mut impl Write,
    err: &mut impl Write,
) -> io::Result<Verdict> {
    let mut verdict = Verdict::default();
    for path in files {
        let name = path.display();
        writeln!(out, "{name}")?;
        match compare_file(path, out)? {
            (differs, Ok(0)) => verdict.differs |= differs,
            (differs, problem) => {
                verdict.differs |= differs;
                verdict.incomplete = true;
                out.flush()?;
                match problem {
                    Ok(n) => writeln!(
                        err,
                        "foreswap lab: {name}: {n} recordings not compared: \
                         file readahead decisions are not supported in this version"
                    )?,
                    Err(why) => writeln!(err, "foreswap lab: {name}: {why}")?,
                }
            }
        }
    }
    out.flush()?;
    Ok(verdict)
}

/// Whether a decision differs; how many recordings are of a kind that is not supported, or what is
/// wrong with the file.
fn compare_file(
    path: &Path,
    out: &mut impl Write,
) -> io::Result<(bool, Result<usize, RecordingError>)> {
    let mut recordings = match File::open(path).and_then(Recordings::new) {
        Ok(recordings) => recordings,
        Err(error) => return Ok((false, Err(error.into()))),
    };
    let (mut unsupported, mut compared) = (0, 0);
    let mut sum = Comparison::default();
    let problem = loop {
        match recordings.next() {
            Ok(Some(Recording::File)) => unsupported += 1,
            Ok(Some(Recording::Swap(swap))) => {
                if compared == 0 {
                    writeln!(out, "{HEADER}")?;
                }
                compared += 1;
                let result = replay(&swap);
                let first = result
                    .first
                    .as_ref()
                    .map_or("none".into(), ToString::to_string);
                writeln!(
                    out,
                    "{:<20} {:<8} {:>12} {:>10} {:>10}  {first}",
                    swap.name.escape_debug().to_string(),
                    swap.policy.to_string(),
                    swap.page_cluster,
                    result.decisions,
                    result.equal,
                )?;
                sum.decisions += result.decisions;
                sum.equal += result.equal;
            }
            Ok(None) if unsupported + compared == 0 => break Err(RecordingError::Empty),
            Ok(None) => break Ok(unsupported),
            Err(error) => break Err(error),
        }
    };
    if compared > 0 {
        let (decisions, equal) = (sum.decisions, sum.equal);
        writeln!(
            out,
            "{compared} recordings, {decisions} decisions, {equal} equal"
        )?;
    }
    Ok((sum.equal < sum.decisions, problem))
}

const HEADER: &str =
    "recording            policy   page-cluster  decisions      equal  first difference";
