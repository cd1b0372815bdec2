//! A program that fits its limit must not be slower: several programs, bare and under `foreswap run`, in turns. The
//! bench compares the time of their work; `startup` measures the time that `run` adds to their start.

use serde_json::{Value, json};

use super::{new_report, turns, usemem};
use crate::allocs;
use crate::args::{BenchArgs, Op, PeerName, UsememArgs};
use crate::peer::{Figures, Session};
use crate::report::{Column, PeerReport, Report, Target, Unit};
use crate::spread::Spread;

/// The median of many short turns tells two per cent from noise.
const TURNS: u32 = 15;
const LIMIT: u64 = 512 << 20;
const BYTES: u64 = 128 << 20;
/// Passes per turn: some tenths of a second.
const PASSES: u32 = 10;
const ALLOCATIONS: u64 = 3_000_000;
/// The target.
const BOUND: f64 = 1.02;

/// Runs the three programs.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    session.limit = args.memory.unwrap_or(LIMIT);
    let turns = args.turns.unwrap_or(TURNS);
    let order = [args.runner, PeerName::Bare];
    let given = &args.usemem;
    let bytes = given.bytes.or(given.total).unwrap_or(BYTES);
    let with = |op| UsememArgs {
        bytes: Some(bytes),
        total: None,
        tasks: 1,
        repeat: PASSES,
        seconds: None,
        op,
        ..given.clone()
    };
    let allocations: Vec<String> = ["workload", "allocs", "--count"]
        .map(str::to_owned)
        .into_iter()
        .chain([ALLOCATIONS.to_string()])
        .collect();
    let programs: [(&str, Vec<String>, turns::Read); 3] = [
        (
            "sequential writes",
            with(Op::Write).to_command(),
            usemem::read,
        ),
        (
            "sequential reads",
            with(Op::Read).to_command(),
            usemem::read,
        ),
        ("small allocations", allocations, read_allocations),
    ];

    let parameters = json!({ "memory_limit_bytes": session.limit, "bytes": bytes,
        "passes": PASSES, "allocations": ALLOCATIONS, "turns": turns });
    let title = format!(
        "programs that fit {}, medians of {turns} turns",
        crate::size::humane(session.limit)
    );
    let mut report = new_report("fits", title, session, parameters);
    for (what, words, read) in programs {
        let command = |s: &Session, _| s.own_command(&words);
        let mut results = turns::in_turns(session, &order, turns, command, read)?;
        let ratio = side_by_side(&results);
        let what_is_asked = format!("{what}, time of work to the bare program's");
        report
            .targets
            .push(Target::at_most(what_is_asked, BOUND, Unit::Ratio, ratio));
        // The least disturbed turns: the medians approach them on a quiet machine.
        let least = |i: usize| {
            results
                .get(i)?
                .figures
                .get("work_ns")
                .map(|spread| spread.min)
        };
        if let Some((ours, bare)) = least(0).zip(least(1)) {
            report.say(format!(
                "{what}, fastest turn to fastest turn: {:.3}",
                ours / bare
            ));
        }
        for result in &mut results {
            result.peer = format!("{what}, {}", result.peer);
        }
        report.peers.append(&mut results);
    }
    report.show(vec![
        Column::spread("work ms", "work_ns", Unit::Milliseconds),
        Column::spread("start to end ms", "elapsed_ns", Unit::Milliseconds),
    ]);
    Ok(report)
}

/// The median of the ratios of adjacent turns: a machine that is slower for a while is slower for both.
fn side_by_side(results: &[PeerReport]) -> Option<f64> {
    let [ours, bare] = results else { return None };
    let pairs = ours.turns.iter().zip(&bare.turns);
    let ratios: Vec<f64> = pairs
        .filter_map(|(ours, bare)| Some(ours.get("work_ns")? / bare.get("work_ns")?))
        .collect();
    (!ratios.is_empty()).then(|| Spread::of(&ratios).median)
}

fn read_allocations(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output)?;
    let report: allocs::Report = serde_json::from_value(value.clone())?;
    let figures = Figures::from([
        ("work_ns".to_owned(), report.pass_ns as f64),
        ("ns_per_allocation".to_owned(), report.ns_per_allocation),
    ]);
    Ok((figures, value))
}
