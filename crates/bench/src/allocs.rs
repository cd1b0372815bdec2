//! A program made of small allocations, which `foreswap run` must not slow down.
//!
//! It keeps a table of live blocks. Each step frees a random block, allocates another of 16 to 1,024 bytes in its
//! place, marks its first byte, and compares the mark of the freed block. One step in 4,096 allocates 256 KiB to 1.25
//! MiB, so that malloc's mmap path is used as well.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::args::AllocsArgs;
use crate::output::put_json;
use crate::usemem::Draw;

/// The report of the workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Allocations made.
    pub count: u64,
    /// Time of all of them.
    pub pass_ns: u64,
    /// Time per allocation, with the free before it.
    pub ns_per_allocation: f64,
}

/// `foreswap workload allocs`.
pub fn main(args: &AllocsArgs) -> anyhow::Result<ExitCode> {
    let mut draw = Draw::new(args.seed, 0);
    let mut live: Vec<Vec<u8>> = vec![Vec::new(); args.live as usize];
    let start = Instant::now();
    for step in 0..args.count {
        let place = draw.below(args.live) as usize;
        let size = match step % 4096 {
            0 => (256 << 10) + draw.below(1 << 20) as usize,
            _ => 16 + draw.below(1008) as usize,
        };
        let mark = (place as u8) ^ 0xa5;
        let old = std::mem::take(&mut live[place]);
        if old.first().is_some_and(|found| *found != mark) {
            bail!(
                "wrong data: block {place} at {:p} lost its mark",
                old.as_ptr()
            );
        }
        drop(old);
        let mut block = Vec::with_capacity(size);
        // Only one byte is written: the bench measures the allocator, not memset.
        block.push(mark);
        live[place] = block;
    }
    let pass_ns = start.elapsed().as_nanos() as u64;
    let report = Report {
        count: args.count,
        pass_ns,
        ns_per_allocation: pass_ns as f64 / args.count.max(1) as f64,
    };
    put_json(&report)
}
