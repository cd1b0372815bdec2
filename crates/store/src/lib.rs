//! Swap areas and their I/O.
//!
//! Two halves that never run in one thread. [`area`] runs in the supervisor: it opens the file or device for evicted
//! pages, and refuses, with a remedy, anything that could cost a user data or privacy. [`ring`] runs in the engine,
//! on threads unknown to the C library: it reads and writes the areas without blocking, through io_uring or, if that
//! is refused, through a few threads.
//!
//! This crate does not know slots or the places of pages. It moves bytes and reports every result.

pub mod area;
pub mod far;
pub mod ram;
pub mod ring;
pub mod seal;

mod errno;
