//! The deterministic harness of the core: a modelled MMU, store, swap map and clock, programs drawn from a seed, and an
//! oracle that knows the expected content of every page.

mod advice;
mod at_once;
mod compressed;
mod directed;
mod file_vectors;
mod filled;
mod fork;
mod huge;
mod huge_swapoff;
mod mmu;
mod oracle;
mod plan;
mod process;
mod random;
mod readahead;
mod rng;
mod scenario;
mod space;
mod streams;
mod swapoff;
mod swapped;
mod system;
mod vectors;
mod waiting;
