//! File workloads of seed 004.
//!
//! Each program is one [`FileWork`](crate::sim::file_machine::FileWork) for all of its tasks. Requests are drawn as
//! the program's own documentation or source specifies; open questions of the seed are answered at the place of the
//! decision.

pub mod aio;
pub mod fileio;
pub mod iozone;
pub mod oltp;
pub mod streams;
