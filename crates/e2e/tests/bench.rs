//! `foreswap bench` runs the same bytes on foreswap and on its peers and reports both.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use foreswap_e2e::Job;
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use foreswap_e2e::requirement::venv_python;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

/// `foreswap bench WORDS`, its files in `scratch`.
fn bench(scratch: &Scratch, words: &str) -> Job {
    Job::new(binary())
        .arg("bench")
        .args(words.split_whitespace())
        .arg("--dir")
        .arg(scratch.path())
        .timeout(180)
}

/// Runs it to its end: what it printed, and its JSON.
#[track_caller]
fn report(words: &str) -> (String, Value) {
    let scratch = Scratch::new("bench");
    let json = scratch.join("bench.json");
    let job = bench(&scratch, words).arg("--json").arg(&json);
    let outcome = job.run().succeeded();
    let text = std::fs::read_to_string(&json).expect("the report was written");
    let report = serde_json::from_str(&text).expect("the report is JSON");
    (outcome.text(), report)
}

fn median(report: &Value, peer: usize, figure: &str) -> f64 {
    let figures = &report["peers"][peer]["figures"];
    figures[figure]["median"].as_f64().unwrap_or(f64::NAN)
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("the folder is there");
    entries
        .map(|entry| entry.expect("an entry").file_name().display().to_string())
        .collect()
}

#[test]
fn a_bench_runs_foreswap_and_its_peer_and_writes_what_it_found() {
    let (text, report) = report("seq-read --total 96M --memory 32M --turns 1 --against bare");
    assert!(text.contains("foreswap / bare"), "{text}");
    assert_eq!(report["peers"][0]["peer"], "foreswap");
    assert_eq!(report["peers"][1]["peer"], "bare");
    let median = |peer, figure| median(&report, peer, figure);
    assert!(median(0, "bytes_per_s") > 0.0 && median(1, "bytes_per_s") > 0.0);
    // A third fits: two thirds at least had to go out and come back.
    assert!(median(0, "swap_in_bytes") >= f64::from(48 << 20));
    assert!(median(0, "stats.peak_resident_bytes") <= f64::from(32 << 20));
    // Every page that came in has cost a fault or was read beside one that did.
    assert!(median(0, "faults_per_page") > 0.0 && median(0, "pages_per_major") >= 1.0);
    assert!(text.contains("windows of foreswap"), "{text}");
}

/// Processes once starved each other here: one that was granted all of the limit while it was alone
/// kept it.
#[test]
fn combined_runs_under_foreswap() {
    for mode in ["thread", "process"] {
        let (text, report) = report(&format!(
            "combined --mode {mode} --memory 32M --sequential-tasks 1 --random-tasks 1 --seconds 1 \
             --turns 1 --against bare"
        ));
        for figure in [
            "bytes_per_s",
            "touch_p50_ns",
            "touch_p99_ns",
            "random.pages_per_s",
            "swap_in_bytes",
            "own_hit_ratio",
        ] {
            assert!(median(&report, 0, figure) > 0.0, "{mode} {figure}: {text}");
        }
        assert!(median(&report, 0, "own_hit_ratio") <= 1.0, "{mode}: {text}");
    }
}

#[test]
fn linpack_is_right_under_foreswap() {
    let Some(python) = venv_python("linpack_is_right_under_foreswap") else {
        return;
    };
    let words = "linpack --total 80M --memory 64M --turns 1 --against bare --python";
    let (text, report) = report(&format!("{words} {}", python.display()));
    assert!(median(&report, 0, "residual") < 16.0, "{text}");
    assert!(
        median(&report, 0, "swap_in_bytes") > f64::from(1 << 20),
        "{text}"
    );
    assert_eq!(
        median(&report, 0, "residual"),
        median(&report, 1, "residual"),
        "{text}"
    );
}

#[test]
fn swapoff_brings_a_program_back_under_foreswap() {
    let (text, report) = report("swapoff --total 96M --memory 32M --turns 1 --against foreswap");
    // All but the 16 MiB that the squeezing leaves, and what foreswap itself needs.
    assert!(
        median(&report, 0, "back_bytes") >= f64::from(64 << 20),
        "{text}"
    );
    assert!(median(&report, 0, "bytes_per_s") > 0.0, "{text}");
    assert!(
        median(&report, 0, "stats.peak_resident_bytes") >= f64::from(96 << 20),
        "{text}"
    );
    assert!(text.contains("device, 4 x 2 MiB"), "{text}");
}

#[test]
fn an_interrupted_bench_leaves_no_process_and_no_file() {
    let mut cases = vec![
        "combined --memory 32M --seconds 60 --turns 1 --against bare --mode thread".to_owned(),
        "swapoff --total 512M --memory 32M --turns 90 --against foreswap".to_owned(),
    ];
    if let Some(python) = venv_python("an_interrupted_bench_leaves_no_process_and_no_file") {
        let words = "linpack --total 512M --memory 64M --turns 1 --against bare --python";
        cases.push(format!("{words} {}", python.display()));
    }
    for words in cases {
        let scratch = Scratch::new("interrupted");
        let running = bench(&scratch, &words).start();
        let start = Instant::now();
        // The bench, `foreswap run`, and the workload in it.
        while running.processes().len() < 3 {
            assert!(start.elapsed() < Duration::from_secs(60), "{words}");
            thread::sleep(Duration::from_millis(10));
        }
        thread::sleep(Duration::from_millis(500));
        let tag = running.tag().to_owned();
        kill_process(running.pid(), Signal::INT).expect("the bench can be told to end");
        let outcome = running.wait();
        assert_eq!(outcome.code(), 130, "{words}: {}", outcome.stderr);
        assert!(
            names(scratch.path()).is_empty(),
            "{:?}",
            names(scratch.path())
        );
        // The workload dies with the run that it was in.
        let start = Instant::now();
        while !foreswap_e2e::process::processes_with_tag(&tag).is_empty() {
            assert!(start.elapsed() < Duration::from_secs(10), "{words}");
            thread::sleep(Duration::from_millis(10));
        }
    }
}
