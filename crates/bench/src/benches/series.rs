//! Several benches in a row, and a table of their targets and figures.
//!
//! A bench that fails is reported and does not stop the others; Ctrl-C does.

use serde_json::json;

use super::{new_report, one, value_name};
use crate::args::{BenchArgs, BenchName, Op, PeerName};
use crate::interrupt;
use crate::peer::Session;
use crate::report::Report;

/// A bench of a series.
#[derive(Debug)]
pub struct Part {
    /// Its name.
    pub name: BenchName,
    /// Its difference from the others, in words; may be empty.
    pub detail: String,
    /// Its arguments.
    pub args: BenchArgs,
}

/// The arguments of part `name`: those given, without those of other parts. Its peers are `against` if none are named.
pub fn arguments(args: &BenchArgs, name: BenchName, against: &[PeerName]) -> BenchArgs {
    let mut part = args.clone();
    part.against.get_or_insert_with(|| against.to_vec());
    part.usemem.op = Op::Read;
    if name == BenchName::Combined {
        // The given size is that of the other programs; combined is scaled by the limit.
        part.usemem.bytes = None;
        part.usemem.total = None;
    } else {
        part.usemem.seconds = None;
    }
    part
}

/// Runs all `parts`, and summarises them under the name of `series`.
pub fn run(
    series: BenchName,
    parts: Vec<Part>,
    args: &BenchArgs,
    session: &mut Session,
) -> anyhow::Result<Report> {
    let series = value_name(series);
    let mut targets = Vec::new();
    let mut done = Vec::new();
    let mut failures = Vec::new();
    for part in parts {
        let detail = match part.detail.as_str() {
            "" => String::new(),
            detail => format!(", {detail}"),
        };
        let name = value_name(part.name) + &detail;
        eprintln!("foreswap bench {series}: {name}");
        session.foreswap.more.clone_from(&part.args.run_options);
        session.in_order = false;
        match one(part.name, &part.args, session) {
            Ok(part) => {
                println!("{}", part.text());
                targets.extend(part.targets.iter().cloned());
                done.push(part);
            }
            Err(error) => {
                interrupt::check()?;
                let what = format!("{name}: {error:#}");
                eprintln!("foreswap bench {series}: {what}");
                failures.push(what);
            }
        }
    }
    session.foreswap.more.clone_from(&args.run_options);
    let title = "what was asked, and what was found".to_owned();
    let parameters = json!({ "memory_limit_bytes": session.limit, "turns": args.turns });
    let mut report = new_report(&series, title, session, parameters);
    report.targets = targets;
    report.failures = failures;
    report.parts = done;
    Ok(report)
}
