//! `linpack` (seed 000): SciPy's LU factorisation of a matrix larger than the limit, by an unmodified Python script
//! (`linpack.py`). The bench compares the time of the factorisation, without filling the matrix and checking the
//! residual.
//!
//! The BLAS uses one thread unless `--tasks` says otherwise. With two, one touches everything in memory while the other
//! waits for reclaim, which then finds nothing cold, and the kernel kills the program for want of memory.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::{new_report, peers, turns, usemem};
use crate::args::{BenchArgs, PeerName};
use crate::peer::{Figures, Scratch, Session};
use crate::report::{Better, Column, Report, Target, Unit, peer_name};
use crate::size::humane;

const SCRIPT: &str = include_str!("../linpack.py");
const TURNS: u32 = 5;
const BYTES: u64 = 1 << 30;
/// The target: elapsed time relative to the kernel at its best.
const BOUND: f64 = 0.75;
/// The figures of the script's report.
const FIGURES: [&str; 6] = [
    "factor_ns",
    "fill_ns",
    "check_ns",
    "gflops",
    "faults_per_page",
    "residual",
];

/// Runs the script.
pub fn run(args: &BenchArgs, session: &mut Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let given = &args.usemem;
    let bytes = given.bytes.or(given.total).unwrap_or(BYTES);
    let python = with_scipy(python(args, session)?)?;
    let script = Scratch::new(&session.directory, "linpack.py");
    std::fs::write(&script.0, SCRIPT)
        .with_context(|| format!("cannot write {}", script.0.display()))?;
    session.swap_bytes = usemem::swap_for(bytes);
    let order = peers(args, &[PeerName::Kernel]);
    let words: Vec<OsString> = vec![
        python.clone().into(),
        script.0.clone().into(),
        bytes.to_string().into(),
        given.seed.to_string().into(),
        given.tasks.to_string().into(),
    ];
    let results = turns::in_turns(session, &order, turns, |_, _| words.clone(), read)?;

    let first = results.iter().find_map(|peer| peer.details.first());
    let versions = first.map_or_else(String::new, |turn| {
        let version = |of: &str| turn["workload"][of].as_str().unwrap_or("?").to_owned();
        format!("SciPy {}, NumPy {}", version("scipy"), version("numpy"))
    });
    let n = first.and_then(|turn| turn["workload"]["n"].as_u64());
    let title = format!(
        "dgetrf of {n} x {n} ({}) in {}, {} of the BLAS, medians of {turns} turns",
        humane(n.unwrap_or(0).pow(2) * 8),
        humane(session.limit),
        match given.tasks {
            1 => "one thread".to_owned(),
            tasks => format!("{tasks} threads"),
        },
        n = n.map_or_else(|| "?".to_owned(), |n| n.to_string()),
    );
    let parameters = json!({ "bytes": bytes, "n": n, "seed": given.seed,
        "threads": given.tasks, "python": python,
        "memory_limit_bytes": session.limit, "turns": turns,
        "readahead": session.foreswap.readahead, "run_options": session.foreswap.more });
    let mut report = new_report("linpack", title, session, parameters);
    report.peers = results;
    report.notes.push(format!(
        "{versions}; {} is the Python; seconds, Gflop/s and faults/page are of the factorisation, \
         the rest of the whole run; a residual below 16 is right, another ends the bench",
        python.display()
    ));
    report.show(columns());
    report.compare("factor_ns", Better::Less);
    usemem::say_windows(&mut report);
    let found = report.ratio("factor_ns", peer_name(PeerName::Kernel));
    report.targets.push(Target::at_most(
        "linpack, elapsed to the kernel's",
        BOUND,
        Unit::Ratio,
        found,
    ));
    Ok(report)
}

/// The Python that was named, or that of the checkout that contains the current directory or this executable, or the
/// system's.
pub fn python(args: &BenchArgs, session: &Session) -> anyhow::Result<PathBuf> {
    if let Some(python) = &args.python {
        return Ok(python.clone());
    }
    let here = std::env::current_dir().unwrap_or_default();
    let folders = here.ancestors().chain(session.exe.ancestors());
    let ours = folders
        .map(|folder| folder.join(".venv/bin/python"))
        .find(|python| python.exists());
    Ok(ours.unwrap_or_else(|| PathBuf::from("python3")))
}

/// Fails, with instructions, if `python` cannot import the modules of the script. It also loads the libraries into the
/// page cache before the first turn.
fn with_scipy(python: PathBuf) -> anyhow::Result<PathBuf> {
    let tried = Command::new(&python)
        .args(["-c", "import numpy, scipy.linalg.lapack"])
        .stdin(Stdio::null())
        .output()
        .with_context(|| missing(&python))?;
    if !tried.status.success() {
        let said = String::from_utf8_lossy(&tried.stderr);
        let last = said.trim().lines().next_back().unwrap_or("it said nothing");
        bail!("{}: {last}", missing(&python));
    }
    Ok(python)
}

fn missing(python: &Path) -> String {
    format!(
        "linpack needs a Python with SciPy, and {} is none; in foreswap's checkout `make setup` \
         installs one in .venv, elsewhere: python3 -m venv .venv && .venv/bin/pip install \
         scipy==1.17.1, and name it with --python .venv/bin/python",
        python.display()
    )
}

fn read(output: &[u8]) -> anyhow::Result<(Figures, Value)> {
    let value: Value = serde_json::from_slice(output).context("the script's report is broken")?;
    let figures = FIGURES
        .iter()
        .filter_map(|name| Some(((*name).to_owned(), value[name].as_f64()?)));
    Ok((figures.collect(), value))
}

fn columns() -> Vec<Column> {
    vec![
        Column::spread("seconds", "factor_ns", Unit::Seconds),
        Column::median("Gflop/s", "gflops", Unit::Tenths),
        Column::median("fill s", "fill_ns", Unit::Seconds),
        Column::median("start to end s", "elapsed_ns", Unit::Seconds),
        Column::median("faults/page", "faults_per_page", Unit::Ratio),
        Column::median("pages/major", "pages_per_major", Unit::Tenths),
        Column::median("hit ratio", "hit_ratio", Unit::Ratio),
        Column::median("in MiB", "swap_in_bytes", Unit::Mebibytes),
        Column::median("out MiB", "swap_out_bytes", Unit::Mebibytes),
        Column::median("peak MiB", "peak_bytes", Unit::Mebibytes),
        Column::median("residual", "residual", Unit::Ratio),
    ]
}
