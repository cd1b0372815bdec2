//! Everything that measures readahead and swapoff (seeds 000 and 003), with the targets of each.

use super::series::{self, Part};
use crate::args::{BenchArgs, BenchName, PeerName};
use crate::peer::Session;
use crate::report::Report;

/// The parts; the number is that of the interleaved scans.
const PARTS: [(BenchName, Option<u64>); 9] = [
    (BenchName::SeqRead, None),
    (BenchName::Reverse, None),
    (BenchName::Interleaved, Some(2)),
    (BenchName::Interleaved, Some(8)),
    (BenchName::Stride, None),
    (BenchName::RandRead, None),
    (BenchName::Combined, None),
    (BenchName::Swapoff, None),
    (BenchName::Linpack, None),
];

/// Runs all of them.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let part = |(name, scans): (BenchName, Option<u64>)| Part {
        name,
        detail: scans.map_or_else(String::new, |scans| format!("{scans} scans")),
        args: part_of(args, name, scans),
    };
    let parts = PARTS.into_iter().map(part).collect();
    series::run(BenchName::Readahead, parts, args, session)
}

fn part_of(args: &BenchArgs, name: BenchName, scans: Option<u64>) -> BenchArgs {
    let both = [PeerName::Kernel, PeerName::KernelDefaults];
    let mut part = series::arguments(args, name, &both);
    part.usemem.scans = scans.unwrap_or(part.usemem.scans);
    part
}
