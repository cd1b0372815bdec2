//! Thin modules over the kernel: each hides one interface.
