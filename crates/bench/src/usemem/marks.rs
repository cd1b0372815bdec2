//! Moments at which all tasks stand still and somebody outside counts.
//!
//! The workload knows nothing of whoever manages its memory, so it cannot tell what that read
//! and wrote in the measured passes alone. But it knows when they begin and end: with `--marks`
//! it says so, a line of JSON on standard output, and goes on when it is answered by a line on
//! standard input. No task touches its region in between, and none of the pause is timed.

use std::io::{self, BufRead, Write};

use serde::{Deserialize, Serialize};

use super::launch::{Barrier, Left};

/// A moment, in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// Nothing of the regions was touched.
    Start,
    /// So much is filled as there is memory (`--full`).
    Full,
    /// All is filled.
    Filled,
    /// The measured passes have not begun, but those before them have ended.
    Begin,
    /// They have ended, and nothing was checked.
    End,
}

/// The line that tells of a moment.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mark {
    /// Which one it is.
    pub mark: Moment,
}

/// Why a moment could not be told of.
#[derive(Debug, thiserror::Error)]
pub enum MarkError {
    /// Another task failed.
    #[error(transparent)]
    Left(#[from] Left),
    /// Nobody listens, or nobody answers.
    #[error("--marks: standard output and input must be somebody who answers: {0}")]
    Alone(#[from] io::Error),
}

/// Meets the other tasks at `barrier`; the `leader` then tells of the moment and waits for the
/// answer, and all go on together. Every task must call it, and one of them as the leader.
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
        // What else a workload prints is none.
        assert!(serde_json::from_slice::<Mark>(b"{\"total\":1}").is_err());
    }
}
