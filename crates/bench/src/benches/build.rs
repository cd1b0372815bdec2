//! `build`: `make -j4` of eight C++ files whose compilers do not fit in memory together (`build.py`). Each of them fits.
//!
//! The bench compares the time of `make` alone. The object files of all turns of all peers must be equal.

use std::ffi::OsString;
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{new_report, peers, turns};
use crate::args::{BenchArgs, PeerName};
use crate::peer::{Figures, Scratch, Session};
use crate::report::{Better, Column, PeerReport, Report, Target, Unit, peer_name};
use crate::size::humane;

const SCRIPT: &str = include_str!("../build.py");
const SOURCE: &str = include_str!("../programs/templates.cc");
const TURNS: u32 = 3;
/// The default limit: half of what four compilers need together.
const LIMIT: u64 = 640 << 20;
const SWAP: u64 = 4 << 30;
const JOBS: u32 = 4;
/// The targets: time relative to the kernel at its best, and to the bare build.
const BOUND: f64 = 0.8;
const BARE_BOUND: f64 = 3.0;

/// Runs the builds.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    for tool in ["python3", "make", "g++"] {
        check(tool)?;
    }
    let turns = args.turns.unwrap_or(TURNS);
    session.limit = args.memory.unwrap_or(LIMIT);
    session.swap_bytes = SWAP;
    let jobs = match args.usemem.tasks {
        1 => JOBS,
        tasks => tasks,
    };
    let files = [("build.py", SCRIPT), ("templates.cc", SOURCE)];
    let [script, source] = files.map(|(name, text)| (Scratch::new(&session.directory, name), text));
    for (Scratch(path), text) in [&script, &source] {
        std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let words: Vec<OsString> = vec![
        "python3".into(),
        script.0.0.clone().into(),
        session.directory.clone().into(),
        jobs.to_string().into(),
        source.0.0.clone().into(),
    ];
    let order = peers(args, &[PeerName::Kernel, PeerName::Bare]);
    let results = turns::in_turns(session, &order, turns, |_, _| words.clone(), read)?;
    are_equal(&results)?;

    let title = format!(
        "make -j{jobs} of eight C++ files in {}, medians of {turns} turns",
        humane(session.limit),
    );
    let parameters = json!({ "jobs": jobs, "memory_limit_bytes": session.limit, "turns": turns,
        "run_options": session.foreswap.more });
    let mut report = new_report("build", title, session, parameters);
    report.peers = results;
    report.notes.push(
        "seconds are of make, the rest of the whole run; all object files were equal".to_owned(),
    );
    report.show(columns());
    report.compare("build_ns", Better::Less);
    for (what, bound, peer) in [
        ("build, time to the kernel's", BOUND, PeerName::Kernel),
        (
            "build, time to the bare build's",
            BARE_BOUND,
            PeerName::Bare,
        ),
    ] {
        let found = report.ratio("build_ns", peer_name(peer));
        let target = Target::at_most(what, bound, Unit::Ratio, found);
        report.targets.push(target);
    }
    Ok(report)
}

fn check(tool: &str) -> anyhow::Result<()> {
    let found = Command::new(tool)
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    match found.is_ok_and(|output| output.status.success()) {
        true => Ok(()),
        false => bail!(
            "build needs python3, make and g++, and {tool} is missing: install it (Debian: apt install python3 make g++)"
        ),
    }
}

/// Fails if two turns made different object files.
fn are_equal(peers: &[PeerReport]) -> anyhow::Result<()> {
    let turns = peers.iter().flat_map(|peer| &peer.details);
    let mut digests: Vec<&Value> = turns.map(|turn| &turn["workload"]["digest"]).collect();
    digests.dedup();
    if digests.len() > 1 {
        bail!("the object files of the turns differ: {digests:?}");
    }
    Ok(())
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output).context("the script's report is broken")?;
    let figures = ["build_ns", "largest_bytes"];
    let figures = figures
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value[name].as_f64()?)));
    Ok((figures.collect(), value))
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("seconds", "build_ns", Unit::Seconds),
        Column::median("start to end s", "elapsed_ns", Unit::Seconds),
        Column::median("major", "major_faults", Unit::Number),
        Column::median("in MiB", "swap_in_bytes", Unit::Mebibytes),
        Column::median("out MiB", "swap_out_bytes", Unit::Mebibytes),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
        Column::median("largest MiB", "largest_bytes", Unit::Mebibytes),
    ]
}
