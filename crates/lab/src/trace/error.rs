//! Errors in a trace: the place, the value found, the form expected.

use std::io;

use thiserror::Error;

/// Why a trace is invalid. The caller names the file.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A system error.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Invalid bytes.
    #[error("offset {offset}: {problem}")]
    Offset {
        /// The offset of the invalid part, in bytes from the start of the file; of the uncompressed file, if that is
        /// compressed as a whole.
        offset: u64,
        /// The fault.
        problem: String,
    },
    /// A record of a block.
    #[error("offset {offset}, record {record} of the block there: {problem}")]
    Record {
        /// Of the block, in bytes from the start of the file.
        offset: u64,
        /// Counted from 1.
        record: u32,
        /// The fault.
        problem: String,
    },
    /// A line of text.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// The fault.
        problem: String,
    },
    /// The format is unknown.
    #[error("{0}")]
    Format(String),
}

impl TraceError {
    pub(super) fn at(offset: u64, problem: impl Into<String>) -> Self {
        TraceError::Offset {
            offset,
            problem: problem.into(),
        }
    }

    pub(super) fn line(line: u64, problem: impl Into<String>) -> Self {
        TraceError::Line {
            line,
            problem: problem.into(),
        }
    }
}
