//! The `foreswap` command.

fn main() {}
