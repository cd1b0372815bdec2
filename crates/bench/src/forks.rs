//! A program that forks while it holds memory, as shells and interpreters do for each command.
//!
//! It fills a region, then forks children one after the other, which end at once or execute another file. At the end
//! the region must have its content from the fill.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use crate::args::ForksArgs;
use crate::output::put_json;
use crate::spread::Spread;

const PAGE: usize = 4096;

/// The report of the workload.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Report {
    /// Children.
    pub count: u64,
    /// Time from before the fork until the parent saw the child's end, the median of all.
    pub fork_ns: f64,
    /// All forks together.
    pub forks_ns: u64,
}

/// `foreswap workload forks`.
pub fn main(args: &ForksArgs) -> anyhow::Result<ExitCode> {
    let bytes = usize::try_from(args.bytes).context("too large")? / PAGE * PAGE;
    let mut region = vec![0_u64; bytes / 8];
    let word = |n: usize| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (n, to) in region.iter_mut().enumerate() {
        *to = word(n);
    }
    let start = Instant::now();
    let mut times = Vec::new();
    for _ in 0..args.count {
        let begun = Instant::now();
        // SAFETY: this process has one thread; the child only executes a file or ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: both are allowed after a fork, and the strings are constants.
            unsafe {
                if args.exec {
                    let name = c"true".as_ptr();
                    libc::execl(
                        c"/bin/true".as_ptr(),
                        name,
                        std::ptr::null::<libc::c_char>(),
                    );
                }
                libc::_exit(i32::from(args.exec));
            }
        }
        let mut status = 0;
        // SAFETY: the status is written to a word of ours.
        if child < 0 || unsafe { libc::waitpid(child, &raw mut status, 0) } != child {
            return Err(std::io::Error::last_os_error()).context("fork");
        }
        if status != 0 {
            bail!("a child ended with status {status:#x}");
        }
        times.push(begun.elapsed().as_nanos() as f64);
    }
    let forks_ns = start.elapsed().as_nanos() as u64;
    if let Some(wrong) = (0..region.len()).find(|&n| region[n] != word(n)) {
        bail!("wrong data in word {wrong}: {:#x}", region[wrong]);
    }
    put_json(&Report {
        count: args.count,
        fork_ns: Spread::of(&times).median,
        forks_ns,
    })
}
