//! The core on the machine of `foreswap-model`, whose oracle knows the expected content of every page: programs drawn
//! from a seed (`random`), recorded decisions of Linux (`vectors`, `file_vectors`), and one situation each (the others).

mod advice;
mod at_once;
mod compressed;
mod directed;
mod failing_area;
mod file_vectors;
mod files;
mod filled;
mod growth;
mod huge;
mod huge_swapoff;
mod random;
mod readahead;
mod streams;
mod swapoff;
mod swapped;
mod tiers;
mod vectors;
mod waiting;
