//! Moments at which all tasks pause, so that an observer can count.
//!
//! The workload knows nothing of its memory management, and cannot tell its I/O in the measured passes alone. But it
//! knows when they begin and end. With `--marks` it reports these moments, a line of JSON on standard output each, and
//! continues after a line on standard input. No task touches its region in between, and the pause is not timed.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::launch::{Barrier, Left};

/// A moment, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// No page of the regions was touched yet.
    Start,
    /// As much is filled as there is memory (`--full`).
    Full,
    /// All is filled.
    Filled,
    /// The passes before the measured ones have ended.
    Begin,
    /// The measured passes have ended, and nothing was checked yet.
    End,
}

/// The line that reports a moment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// The moment.
    pub mark: Moment,
}

/// Why a moment could not be reported.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// Another task failed.
    #[error(transparent)]
    Left(#[from] Left),
    /// No observer reads, or none answers.
    #[error("--marks: standard output and input must be somebody who answers: {0}")]
    Alone(#[from] io::Error),
}

/// Meets the other tasks at `barrier`. The `leader` then reports the moment and waits for the answer, and all continue
/// together. Every task must call it, and one of them as the leader.
pub fn stand_still(barrier: &Barrier, moment: Moment, leader: bool) -> Result<(), MarkError> {
    barrier.wait()?;
    if leader {
        announce(moment, &mut io::stdout().lock(), &mut io::stdin().lock())?;
    }
    Ok(barrier.wait()?)
}

fn announce(moment: Moment, out: &mut impl Write, answer: &mut impl BufRead) -> io::Result<()> {
    serde_json::to_writer(&mut *out, &Mark { mark: moment })?;
    writeln!(out)?;
    out.flush()?;
    match answer.read_line(&mut String::new())? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_a_line_and_waits_for_one() {
        let mut out = Vec::new();
        announce(Moment::Begin, &mut out, &mut &b"on\n"[..]).unwrap();
        assert_eq!(out, b"{\"mark\":\"begin\"}\n");
        let mark: Mark = serde_json::from_slice(&out).unwrap();
        assert_eq!(mark.mark, Moment::Begin);
        let error = announce(Moment::End, &mut out, &mut &b""[..]).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        // Other output of a workload is no mark.
        assert!(serde_json::from_slice::<Mark>(b"{\"total\":1}").is_err());
    }
}
