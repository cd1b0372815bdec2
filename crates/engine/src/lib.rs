//! The Linux engine of foreswap: the driver that lets `foreswap-core` serve a real process.
//!
//! `pager` is the engine thread that runs the core, `lookout` a thread that may start it, `program` the code that the
//! program's own threads run, `ledger` the memory that all processes of a run share, `digest` the hash of a page,
//! `key` the key of a run that encrypts, `sys` the kernel's interfaces.

pub mod digest;
pub mod key;
pub mod ledger;
pub mod lookout;
mod pager;
pub mod program;
pub mod sys;

pub use pager::IO_DEPTH;
