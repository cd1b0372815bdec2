//! The cost of a fork for a program that holds memory: bare, under `foreswap run` and on the kernel's own swap, in
//! turns, if all of it fits and at a quarter of it; with children that end at once and with children that execute
//! another file.

use serde_json::{Value, json};

use super::{new_report, peers, turns, usemem};
use crate::args::{BenchArgs, PeerName};
use crate::forks;
use crate::peer::{Figures, Session};
use crate::report::{Column, Report, Target, Unit};

const TURNS: u32 = 3;
const BYTES: u64 = 400 << 20;
const COUNT: u64 = 40;
/// The target.
const BOUND: f64 = 1.5;

/// Runs the forks.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total).unwrap_or(BYTES);
    session.swap_bytes = usemem::swap_for(bytes);
    let order = peers(args, &[PeerName::KernelDefaults, PeerName::Bare]);
    // A program that fits has its memory but once.
    let limits = match args.memory {
        Some(limit) => vec![("", limit)],
        None => vec![("fits", bytes + bytes / 4), ("a quarter", bytes / 4)],
    };
    let parameters = json!({ "bytes": bytes, "forks": COUNT, "turns": turns,
        "memory_limits_bytes": limits.iter().map(|(_, limit)| limit).collect::<Vec<_>>() });
    let title = format!(
        "forks of {}, medians of {turns} turns",
        crate::size::humane(bytes)
    );
    let mut report = new_report("forks", title, session, parameters);
    for (name, limit) in limits {
        session.limit = limit;
        for (does, more) in [("exit", None), ("exec", Some("--exec".to_owned()))] {
            let words = ["workload", "forks", "--bytes"].map(str::to_owned);
            let words = words
                .into_iter()
                .chain([bytes.to_string(), "--count".to_owned()]);
            let words: Vec<String> = words.chain([COUNT.to_string()]).chain(more).collect();
            let command = |s: &Session, _| s.own_command(&words);
            let mut results = turns::in_turns(session, &order, turns, command, read)?;
            let what = format!("{name}, {does}")
                .trim_start_matches(", ")
                .to_owned();
            let ours = results.first().and_then(|ours| ours.median("fork_ns"));
            for (peer, result) in order.iter().zip(&results).skip(1) {
                let ratio = ours.zip(result.median("fork_ns"));
                let ratio = ratio.map(|(ours, theirs)| ours / theirs);
                let against = format!("{what}: a fork, to {}", result.peer);
                match peer {
                    PeerName::Bare => {
                        if let Some(ratio) = ratio {
                            report.say(format!("{against}: {ratio:.2}"));
                        }
                    }
                    _ => {
                        let target = Target::at_most(against, BOUND, Unit::Ratio, ratio);
                        report.targets.push(target);
                    }
                }
            }
            for result in &mut results {
                result.peer = format!("{what}, {}", result.peer);
            }
            report.peers.append(&mut results);
        }
    }
    report.show(vec![
        Column::spread("a fork ms", "fork_ns", Unit::Milliseconds),
        Column::spread("all forks ms", "forks_ns", Unit::Milliseconds),
    ]);
    Ok(report)
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: forks::Report = serde_json::from_value(value.clone())?;
    let figures = Figures::from([
        ("fork_ns".to_owned(), report.fork_ns),
        ("forks_ns".to_owned(), report.forks_ns as f64),
    ]);
    Ok((figures, value))
}
