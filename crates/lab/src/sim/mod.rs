//! The simulated machine: a discrete-event model in which the shipped core decides unchanged.
//!
//! One memory manager serves all tasks, as a kernel's does. `machine` owns the virtual clock and
//! lets tasks, background reclaim and interrupts act in the order of their times; `memory` is the
//! [`foreswap_core::world::World`] that the core acts on, and notes what each act costs; `lock` has
//! the waiters of a contended lock; `device` are the swap devices; `parameters` reads a machine from
//! its file. `file_machine` is the machine at work on files, with the `page_cache` of a kernel. Nothing here reads a clock or a random source of the host: the same seed gives the same
//! bytes on any machine.

mod cpus;
pub mod device;
pub mod file_machine;
pub mod histogram;
pub mod lock;
mod lru;
pub mod machine;
pub mod memory;
pub mod node;
pub mod page_cache;
pub mod parameters;
pub mod program;
pub mod rng;
