//! The shared object that `foreswap run` injects.
