//! Why a trace is not understood: where, what was found, what was expected.

use std::io;

use thiserror::Error;

/// Why a trace is not understood. The caller names the file.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The system.
    #[error("cannot be read: {0}")]
    Read(#[from] io::Error),
    /// Bytes that make no sense.
    #[error("offset {offset}: {problem}")]
    Offset {
        /// Of the part that is wrong, in bytes from the start of the file; where that is compressed
        /// as a whole, in bytes of what was compressed.
        offset: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// A record of a block.
    #[error("offset {offset}, record {record} of the block there: {problem}")]
    Record {
        /// Of the block, in bytes from the start of the file.
        offset: u64,
        /// Counted from 1.
        record: u32,
        /// What is wrong with it.
        problem: String,
    },
    /// A line of text.
    #[error("line {line}: {problem}")]
    Line {
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        problem: String,
    },
    /// The kind of file cannot be told.
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
