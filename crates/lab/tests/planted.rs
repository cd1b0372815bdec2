//! Torture finds each of fifteen bugs that are planted in the core, within the steps that docs/LAB.md states, and
//! shrinks the program that shows it. Needs the feature `planted`.

use std::process::ExitCode;

use clap::Parser;
use foreswap_lab::torture::{TortureArgs, torture};
use serde_json::Value;

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    torture: TortureArgs,
}

fn run(words: &[&str]) -> (bool, Value) {
    let args = Cli::parse_from(["torture", "--json"].iter().chain(words)).torture;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = torture(&args, &mut out, &mut err).expect("written");
    let found = format!("{status:?}") == format!("{:?}", ExitCode::from(1));
    (found, serde_json::from_slice(&out).expect("JSON"))
}

/// Each must be found within this many steps from seed 1 on. Without a planted bug, as many runs find nothing.
const WITHIN: u64 = 2_000_000;
const RUNS: &str = "100";

const BUGS: [&str; 15] = [
    "lost-wake-up",
    "slot-freed-twice",
    "stale-window",
    "kept-clean",
    "early-publish",
    "unchecked-digest",
    "forgotten-count",
    "leaked-frame",
    "forgotten-stall",
    "missed-discard",
    "unit-of-two-leaves",
    "taken-untouched",
    "creeping-limit",
    "replaced-guard",
    "hasty-loss",
];

#[test]
fn each_is_found_within_its_steps() {
    let mut missed = Vec::new();
    for bug in BUGS {
        let (found, report) = run(&["--plant", bug, "--seed", "1", "--runs", RUNS, "--jobs", "1"]);
        let steps = report["steps"].as_u64().expect("a number")
            + report["bug"]["step"].as_u64().unwrap_or_default();
        println!("{bug}: {steps} steps, {}", report["bug"]["what"]);
        if !found || steps > WITHIN {
            missed.push(format!(
                "{bug}: found {found}, {steps} steps, expected {WITHIN}"
            ));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn without_them_the_same_seeds_are_sound() {
    let (found, report) = run(&["--seed", "1", "--runs", RUNS]);
    assert!(!found, "{report}");
}

#[test]
fn a_failure_is_shrunk_and_replayed() {
    let folder = tempfile::tempdir().expect("a folder");
    for (bug, most) in [
        ("kept-clean", 10),
        ("missed-discard", 20),
        ("early-publish", 20),
    ] {
        let path = folder.path().join(bug);
        let path = path.to_str().expect("text");
        let (found, report) = run(&[
            "--plant", bug, "--seed", "1", "--runs", "50", "--shrink", path,
        ]);
        assert!(found, "{report}");
        let shrunk = &report["bug"]["shrunk"];
        let steps = shrunk["steps"].as_array().expect("steps").len();
        println!("{bug}: {steps} steps: {shrunk}");
        assert!(steps <= most, "{bug}: {steps} steps: {shrunk}");
        let (found, again) = run(&["--replay", path]);
        assert!(found, "{again}");
        assert_eq!(again["bug"]["what"], shrunk["what"]);
    }
}
