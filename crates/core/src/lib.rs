//! The memory manager of foreswap.
//!
//! This crate decides which page is read, which page is evicted, and to which slot. It makes no system call, reads no
//! clock, starts no thread and draws no random number. It is `no_std`, which lets the compiler check that. It reaches
//! the world through the traits in [`world`]. The Linux engine implements them with userfaultfd and io_uring, the
//! tests and the lab with a model.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod fault;
mod frames;
#[cfg(feature = "ablate")]
pub mod heuristics;
#[cfg(not(feature = "ablate"))]
mod heuristics;
pub mod huge;
mod io;
mod mm;
#[cfg(feature = "planted")]
pub mod planted;
pub mod process;
pub mod readahead;
mod reclaim;
mod space;
pub mod stats;
mod swap;
pub mod units;
pub mod world;

pub use huge::Thp;
pub use io::{SLOTS_PER_IO, pipe};
pub use mm::{Config, Mm, Outcome, SMALL};
pub use readahead::Hint;
pub use reclaim::any_policy::Policy as ReclaimPolicy;
pub use reclaim::auto_limit;
pub use reclaim::linux_kswapd;
pub use space::advice::Advice;
pub use space::page_table::{Entry, Fill, Resident};
pub use space::vma::Vma;
pub use space::{Place, Stored};
pub use swap::drain::{SLOTS_PER_SWAPOFF_IO, Swapoff};
pub use swap::slots::Slots;
