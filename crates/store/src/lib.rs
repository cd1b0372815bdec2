//! Swap areas and the I/O that reaches them.
