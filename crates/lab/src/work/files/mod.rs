//! Work on files, as the programs of seed 004 do it.
//!
//! Each is one [`FileWork`](crate::sim::file_machine::FileWork) for all of its tasks. Where a program's
//! own documentation or source says how it draws its requests, that is what is done here; what the
//! seed leaves open is said where it is decided.

pub mod aio;
pub mod fileio;
pub mod iozone;
pub mod oltp;
pub mod streams;
