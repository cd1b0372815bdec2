//! Swap areas and the I/O that reaches them.
//!
//! Two halves that never meet in one thread. [`area`] runs in the supervisor: it opens the file or
//! device that evicted pages go to, and refuses, with a remedy, everything that could cost a user
//! data or privacy. [`ring`] runs in the engine, on threads that the C library does not know: it
//! reads and writes the areas without blocking, through io_uring or, where that is refused, through
//! a few threads.
//!
//! This crate does not know what a slot is or which page lies where. It moves bytes and reports
//! every result.

pub mod area;
pub mod ram;
pub mod ring;

mod errno;
