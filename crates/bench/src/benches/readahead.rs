//! Everything that tells of readahead and swapoff, one bench after the other, and a table of
//! what was asked of each and what was found (issue 3, seeds 000 and 003).
//!
//! A bench that fails is reported and does not keep the others from running; Ctrl-C does.

use serde_json::json;

use super::{new_report, one, value_name};
use crate::args::{BenchArgs, BenchName, Op, PeerName, UsememArgs};
use crate::interrupt;
use crate::peer::Session;
use crate::report::Report;

/// What is run; the number is that of the interleaved scans.
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
    let mut targets = Vec::new();
    let mut parts = Vec::new();
    let mut failures = Vec::new();
    for (name, scans) in PARTS {
        eprintln!(
            "foreswap bench readahead: {}{}",
            value_name(name),
            scans.map_or_else(String::new, |scans| format!(", {scans} scans"))
        );
        let args = part_of(args, name, scans);
        match one(name, &args, session) {
            Ok(part) => {
                println!("{}", part.text());
                targets.extend(part.targets.iter().cloned());
                parts.push(part);
            }
            Err(error) => {
                interrupt::check()?;
                let what = format!("{}: {error:#}", value_name(name));
                eprintln!("foreswap bench readahead: {what}");
                failures.push(what);
            }
        }
    }
    let title = "what was asked, and what was found".to_owned();
    let parameters = json!({ "memory_limit_bytes": session.limit, "turns": args.turns });
    let mut report = new_report("readahead", title, session, parameters);
    report.targets = targets;
    report.failures = failures;
    report.parts = parts;
    Ok(report)
}

/// The arguments of a part: those given, without what belongs to others.
fn part_of(args: &BenchArgs, name: BenchName, scans: Option<u64>) -> BenchArgs {
    let mut part = args.clone();
    let both = || vec![PeerName::Kernel, PeerName::KernelDefaults];
    part.against.get_or_insert_with(both);
    part.usemem = UsememArgs {
        op: Op::Read,
        scans: scans.unwrap_or(args.usemem.scans),
        ..part.usemem
    };
    if name == BenchName::Combined {
        // The size given is that of the other programs; combined is scaled by the limit.
        part.usemem.bytes = None;
        part.usemem.total = None;
    } else {
        part.usemem.seconds = None;
    }
    part
}
