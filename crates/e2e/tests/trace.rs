//! `run --trace` records a real program, and `foreswap lab` answers from the recording.

use std::fs;
use std::path::Path;
use std::time::Duration;

use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Outcome, Scratch};
use foreswap_e2e::{Job, MIB, Managed, program};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// Mebibytes.
const LIMIT: u64 = 64;

fn lab(words: &[&str]) -> Outcome {
    Job::new(binary()).arg("lab").args(words).run()
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path of this test")
}

fn json(words: &[&str]) -> Value {
    let outcome = lab(words).succeeded();
    serde_json::from_str(&outcome.text()).expect("JSON")
}

fn traced(path: &Path) -> Managed {
    Managed::limit(LIMIT).options(["--trace".as_ref(), path.as_os_str()])
}

/// The count of each event in a trace.
fn events(scratch: &Scratch, trace: &Path) -> impl Fn(&str) -> usize + use<> {
    let csv = scratch.join("all.csv");
    lab(&["convert", text(trace), text(&csv)]).succeeded();
    let lines = fs::read_to_string(csv).expect("written");
    move |op| {
        lines
            .lines()
            .filter(|line| line.split(',').nth(3) == Some(op))
            .count()
    }
}

#[test]
fn a_program_is_recorded_and_its_need_of_memory_told() {
    let name = "a_program_is_recorded_and_its_need_of_memory_told";
    let Some(path) = program::compile(name, "small") else {
        return;
    };
    let scratch = Scratch::new("trace");
    let trace = scratch.join("run.trace");
    // It fills 160 MiB, and reads them.
    let job = Job::new(path).arg("swaps_once");
    let bare = job.run();
    let run = traced(&trace).run(&job).succeeded();
    run.equals(&bare);
    run.within_limit(LIMIT * MIB);

    let count = events(&scratch, &trace);
    let stats = run.stats();
    // Faults are counted by the engine as well; a few are served without being counted.
    let faults = ["faults_major", "faults_minor", "faults_zero"].map(|key| stats.count(key));
    let (seen, all) = (count("touch") as u64, faults.iter().sum::<u64>());
    assert!(
        seen.abs_diff(all) <= all / 20 + 16,
        "{seen} recorded, {all} counted"
    );
    assert!(count("evicted") > 0 && count("prefetched") > 0 && count("map") > 0);

    let drawn = scratch.join("mrc.svg");
    let answer = json(&["mrc", text(&trace), "--json", "--plot", text(&drawn)]);
    assert!(
        fs::read_to_string(&drawn)
            .expect("drawn")
            .starts_with("<svg")
    );
    assert_eq!(
        (&answer["totals"]["lost"], &answer["totals"]["cut_off"]),
        (&0.into(), &false.into())
    );
    let exact = &answer["curves"][0];
    assert_eq!(exact["known_from_bytes"].as_u64(), Some(LIMIT * MIB));
    let needed = exact["needed"][0]["memory_bytes"]
        .as_u64()
        .expect("a number");
    assert!(
        (140 * MIB..200 * MIB).contains(&needed),
        "{} MiB",
        needed / MIB
    );

    let words = [
        "replay",
        text(&trace),
        "--memory",
        "64M,256M",
        "--readahead",
        "streams,none",
        "--json",
    ];
    let first = json(&words);
    assert_eq!(first, json(&words));
    let number = |run: usize, key: &str| first["runs"][run][key].as_f64().expect("a number");
    // With enough memory nothing is read; with less, readahead saves time.
    assert_eq!(
        (number(2, "faults_major"), number(3, "swap_in_bytes")),
        (0.0, 0.0)
    );
    assert!(number(1, "faults_major") > 10_000.0);
    assert!(number(0, "elapsed_s") < number(1, "elapsed_s"));
    assert!(number(2, "elapsed_s") < number(0, "elapsed_s"));
}

/// Every process of a run is in its trace, and a child names its parent.
#[test]
fn forked_processes_are_recorded() {
    let Some(path) = program::compile("forked_processes_are_recorded", "fork_calls") else {
        return;
    };
    let scratch = Scratch::new("trace-forks");
    let trace = scratch.join("run.trace");
    let job = Job::new(path).arg("grandchildren");
    let run = traced(&trace).run(&job).succeeded();
    run.equals(&job.run());
    let processes = run.stats().count("processes");
    assert!(processes >= 4, "{processes} processes");
    let answer = json(&["mrc", text(&trace), "--json"]);
    let tasks = answer["totals"]["tasks"].as_u64().expect("a number");
    assert!(tasks >= processes, "{tasks} tasks of {processes} processes");
    let count = events(&scratch, &trace);
    assert_eq!(count("end") as u64, tasks);
    json(&["replay", text(&trace), "--memory", "32M", "--json"]);
}

/// Whichever process is killed, the written part is a trace.
#[test]
fn the_trace_of_a_killed_run_is_valid() {
    let Some(path) = program::compile("the_trace_of_a_killed_run_is_valid", "small") else {
        return;
    };
    let job = Job::new(path).arg("swaps_for_ever").timeout(60);
    for supervisor in [false, true] {
        let scratch = Scratch::new("trace-killed");
        let trace = scratch.join("run.trace");
        let running = traced(&trace).start(&job, &scratch.join("stats.json"));
        std::thread::sleep(Duration::from_millis(2500));
        let victims = match supervisor {
            true => vec![running.pid()],
            false => running.processes_named("small"),
        };
        assert!(!victims.is_empty());
        for pid in victims {
            kill_process(pid, Signal::KILL).expect("killed");
        }
        assert_ne!(running.wait().code(), 0);
        let answer = json(&["mrc", text(&trace), "--json"]);
        assert_eq!(answer["totals"]["cut_off"].as_bool(), Some(supervisor));
        assert!(
            answer["totals"]["records"].as_u64() > Some(1000),
            "{}",
            answer["totals"]
        );
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named_before_the_command_starts() {
    let scratch = Scratch::new("trace-nowhere");
    let (witness, nowhere) = (scratch.join("witness"), scratch.join("no/such/folder"));
    let outcome = traced(&nowhere).run(&Job::new("touch").arg(&witness));
    assert_eq!(outcome.code(), 125);
    assert!(
        outcome.stderr.contains("cannot write the trace to") && outcome.stderr.contains("--trace"),
        "{}",
        outcome.stderr
    );
    assert!(!witness.exists());
}

#[test]
fn bad_traces_are_named_with_status_2() {
    let scratch = Scratch::new("trace-bad");
    let at = |name: &str, bytes: &[u8]| {
        let path = scratch.join(name);
        fs::write(&path, bytes).expect("a file can be written");
        text(&path).to_owned()
    };
    let csv = at("ok.csv", b"page\n1\n2\n1\n");
    let good = scratch.join("ok.trace");
    lab(&["convert", &csv, text(&good)]).succeeded();
    let mut damaged = fs::read(&good).expect("written");
    damaged[60] ^= 1;
    for (path, expected) in [
        (
            at("a.csv", b"page\n1\nx\n"),
            "a.csv: line 3: page is \"x\"; expected a number",
        ),
        (
            at("b.csv", b""),
            "b.csv: line 1: the file is empty; expected the columns",
        ),
        (
            at("c.oracleGeneral", &[0; 30]),
            "c.oracleGeneral: offset 24: the file ends after 6 bytes",
        ),
        (
            at("d.trace", &damaged),
            "d.trace: offset 32: the block is damaged",
        ),
        (
            at("e.trace", b"foretrac"),
            "e.trace: offset 0: the header is cut off",
        ),
        (
            at("f", b"1 2 3"),
            "f: neither its first bytes nor its name tell",
        ),
        ("/nowhere".into(), "/nowhere: cannot be read: No such file"),
    ] {
        for words in [&["mrc"][..], &["replay", "--memory", "64M"]] {
            let outcome = lab(&[words, &[path.as_str()]].concat());
            assert_eq!(outcome.code(), 2, "{path}: {}", outcome.stderr);
            assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
            assert!(outcome.stdout.is_empty());
        }
    }
}
