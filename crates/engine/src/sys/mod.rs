//! Thin modules over the kernel: each hides one interface.

pub mod uffd;
