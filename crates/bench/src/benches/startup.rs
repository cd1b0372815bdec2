//! The time that `foreswap run` adds to the start and end of a program that does nothing.

use std::ffi::OsString;

use anyhow::Context;
use serde_json::{Value, json};

use super::{new_report, turns};
use crate::args::{BenchArgs, PeerName};
use crate::peer::Session;
use crate::report::{Column, Report, Target, Unit};

const TURNS: u32 = 40;
/// Nanoseconds that a start may take longer.
const BOUND: f64 = 20e6;

/// Runs /bin/true bare and under `foreswap run`.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let program = ["/bin/true", "/usr/bin/true"]
        .into_iter()
        .find(|path| std::path::Path::new(path).exists())
        .context("there is no /bin/true on this system")?;
    let order = [args.runner, PeerName::Bare];
    let command = |_: &Session, _| vec![OsString::from(program)];
    let results = turns::in_turns(session, &order, turns, command, |_| {
        Ok((Default::default(), Value::Null))
    })?;
    let of = |i: usize| results.get(i)?.median("elapsed_ns");
    let added = of(0).zip(of(1)).map(|(ours, bare)| ours - bare);
    let parameters =
        json!({ "program": program, "memory_limit_bytes": session.limit, "turns": turns });
    let title = format!("{program}, medians of {turns} turns");
    let mut report = new_report("startup", title, session, parameters);
    report.peers = results;
    report.show(vec![Column::spread(
        "start to end ms",
        "elapsed_ns",
        Unit::Milliseconds,
    )]);
    let what = "added from start to end";
    report
        .targets
        .push(Target::at_most(what, BOUND, Unit::Milliseconds, added));
    Ok(report)
}
