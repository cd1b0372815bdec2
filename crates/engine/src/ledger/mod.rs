//! The ledger: the shared memory in which all processes of one `foreswap run` keep their common limit, swap maps and statistics.
