//! The memory manager of foreswap.
//!
//! This crate decides: which page is brought in, which is moved out, where it goes. It makes no
//! system call, reads no clock, starts no thread and draws no random number: it is `no_std`, so the
//! compiler keeps that promise. The world reaches it through the traits in `world`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
