//! The simulated machine: a discrete-event model around the unchanged core.
//!
//! One memory manager serves all tasks, as a kernel's does. `machine` owns the virtual clock and runs tasks,
//! background reclaim and interrupts in the order of their times. `memory` is the [`foreswap_core::world::World`] on
//! which the core acts, and records the cost of each operation. `lock` has the waiters of a contended lock; `device`
//! has the swap devices; `parameters` reads a machine from its file. `file_machine` is the machine for file
//! workloads, with the `page_cache` of a kernel. Nothing here reads a clock or a random source of the host: the same
//! seed gives the same bytes on any machine.

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
