//! Thin modules over the kernel: each hides one interface.

pub mod arena_alloc;
pub mod doorbell;
pub mod own_memory;
mod syscall;
pub mod thread;
pub mod uffd;
