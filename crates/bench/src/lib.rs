//! Workloads and peers.
