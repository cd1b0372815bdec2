//! What every end-to-end test of foreswap needs: a program (C, compiled on the spot, or one that is
//! installed), a run of it bare, a run of it under `foreswap run`, and the comparison of the two.
//!
//! The comparison is the point: standard output and exit status must be those of the bare run, the
//! peak must stay within the limit, and swapping must really have happened, or the test proves
//! nothing. Every run has a time-out, and only processes that a run started are ever killed: they
//! are known by a tag in their environment.
//!
//! A missing tool or kernel feature is a failure where `CI` is set and a named skip elsewhere.

pub mod foreswap;
pub mod inputs;
pub mod process;
pub mod program;
pub mod requirement;
pub mod system;

pub use foreswap::{Managed, Stats};
pub use process::{Job, Outcome};
pub use requirement::full_size;

/// Bytes in a mebibyte.
pub const MIB: u64 = 1 << 20;
