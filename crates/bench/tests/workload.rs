//! The workload alone: it verifies its reads, in every pattern, operation and mode, and reports its figures.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn run(words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foreswap-bench"))
        .args(words.split_whitespace())
        .output()
        .expect("the workload starts")
}

fn usemem(words: &str) -> Output {
    run(&format!("workload usemem {words}"))
}

fn report(words: &str) -> serde_json::Value {
    let output = usemem(words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words}: {errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

const PATTERNS: [&str; 5] = ["seq", "rand", "stride", "reverse", "interleaved"];

#[test]
fn every_pattern_operation_and_fill_reads_what_was_written() {
    for pattern in PATTERNS {
        for op in ["read", "write"] {
            for fill in ["index", "random"] {
                let words =
                    format!("--bytes 4M --repeat 3 --pattern {pattern} --op {op} --fill {fill}");
                let report = report(&words);
                assert_eq!(report["total"]["pages"], 3 * 1024, "{words}");
                assert_eq!(report["total"]["first_touch"]["count"], 3 * 1024, "{words}");
                let checked = report["total"]["check_ns"].as_u64().unwrap() > 0;
                assert_eq!(checked, op == "write", "{words}");
            }
        }
    }
}

#[test]
fn a_wrong_byte_ends_it_and_is_named() {
    // Word 700 is word 188 of page 1. A random pass over 4 pages is sure enough to meet it only when it writes: then
    // every word is checked at the end.
    let cases = [
        ("--pattern seq --op read", 1),
        ("--pattern reverse --op read", 1),
        ("--pattern stride --stride 3 --op read", 1),
        ("--pattern interleaved --op read", 1),
        ("--pattern rand --op read --repeat 5000", 1),
        ("--pattern seq --op write", 1),
        ("--pattern rand --op write", 1),
        ("--pattern seq --op read --fill random", 1),
        ("--pattern seq --op read --tasks 3", 1),
        ("--pattern seq --op read --tasks 3 --mode thread", 1),
        ("--pattern seq --op write --step 4096", 1),
    ];
    for (words, status) in cases {
        let output = usemem(&format!("--bytes 16K --corrupt-word 700 {words}"));
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{words}: {errors}");
        assert!(output.stdout.is_empty(), "{words}");
        assert!(
            errors.contains("page 1, word 188 of it"),
            "{words}: {errors}"
        );
        assert!(
            errors.contains("the word at 0x") && errors.contains("found 0x"),
            "{errors}"
        );
    }
    let output = usemem("--bytes 16K --corrupt-word 700 --pattern seq --op read");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        errors.contains("should be 0x00000000000002bc, found 0x00000000000022bc"),
        "{errors}"
    );
}

#[test]
fn tasks_are_summed_and_told_apart() {
    for mode in ["process", "thread"] {
        let report = report(&format!(
            "--total 8M --tasks 4 --mode {mode} --op write --repeat 2"
        ));
        let tasks = report["tasks"].as_array().unwrap();
        assert_eq!(tasks.len(), 4);
        assert_eq!(report["region_bytes"], 2 << 20);
        assert_eq!(report["total"]["pages"], 4 * 512 * 2);
        let sum: f64 = tasks
            .iter()
            .map(|task| task["pages_per_s"].as_f64().unwrap())
            .sum();
        let total = report["total"]["pages_per_s"].as_f64().unwrap();
        assert!((sum / total - 1.0).abs() < 1e-6);
        let spread = &report["total"]["task_ns_per_page"];
        assert!(spread["min"].as_f64() <= spread["max"].as_f64());
    }
}

#[test]
fn seconds_end_it() {
    let report = report("--bytes 1M --seconds 0.2 --pattern rand");
    let pass = report["total"]["pass_ns"].as_u64().unwrap();
    assert!(pass >= 200_000_000, "{pass}");
    assert!(report["total"]["pages"].as_u64().unwrap() > 256);
}

#[test]
fn combined_runs_two_groups_for_the_same_time() {
    for mode in ["process", "thread"] {
        let words = format!(
            "workload combined --sequential-tasks 2 --sequential-total 4M --random-tasks 3 \
             --random-total 3M --seconds 0.2 --mode {mode}"
        );
        let output = run(&words);
        assert!(output.status.success(), "{words}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let group = |name: &str, tasks: usize, bytes: u64, pattern: &str| {
            let group = &report[name];
            assert_eq!(group["tasks"].as_array().unwrap().len(), tasks);
            assert_eq!(group["region_bytes"], bytes);
            assert_eq!(group["parameters"]["pattern"], pattern);
            assert!(group["total"]["pass_ns"].as_u64().unwrap() >= 200_000_000);
            assert!(group["total"]["check_ns"].as_u64().unwrap() > 0);
        };
        group("sequential", 2, 2 << 20, "seq");
        group("random", 3, 1 << 20, "rand");
    }
    let spoiled = run(
        "workload combined --sequential-total 1M --random-total 1M --seconds 0.2 \
                       --corrupt-word 700",
    );
    assert_eq!(spoiled.status.code(), Some(1));
    let errors = String::from_utf8_lossy(&spoiled.stderr);
    assert!(errors.contains("task 0: wrong data"), "{errors}");
}

#[test]
fn hold_does_what_it_is_told() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foreswap-bench"))
        .args(["workload", "hold", "--bytes", "4M"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the workload starts");
    let mut words = child.stdin.take().unwrap();
    words.write_all(b"count\ncheck\n").unwrap();
    drop(words);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let answers: Vec<serde_json::Value> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(answers.len(), 3);
    for answer in answers {
        assert_eq!(answer["bytes"], 4 << 20);
        assert_eq!(answer["mapped_bytes"], 4 << 20);
        assert!(answer["resident_bytes"].as_u64().unwrap() >= 4 << 20);
    }
}

/// The lines of a workload that gets `answers` answers.
fn answered(words: &str, answers: usize) -> (Output, Vec<serde_json::Value>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_foreswap-bench"))
        .args(words.split_whitespace())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the workload starts");
    let mut input = child.stdin.take().unwrap();
    input.write_all("on\n".repeat(answers).as_bytes()).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines = lines.collect();
    (output, lines)
}

#[test]
fn the_moments_of_the_passes_are_told_once_by_all_tasks_together() {
    for tasks in ["--tasks 1", "--tasks 3", "--tasks 3 --mode thread"] {
        let words = format!("workload usemem --total 3M --marks --op write --warm-up 2 {tasks}");
        let (output, lines) = answered(&words, 4);
        assert!(output.status.success(), "{words}");
        let marks: Vec<_> = lines
            .iter()
            .filter_map(|line| line["mark"].as_str())
            .collect();
        assert_eq!(marks, ["start", "filled", "begin", "end"], "{words}");
        // Passes before the measured ones are not in the measurement.
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[4]["total"]["pages"], 768);
        assert_eq!(lines[4]["total"]["first_touch"]["count"], 768);
        assert!(lines[4]["total"]["other_bytes"].as_u64() > Some(0));

        // The last one gets no answer: no task continues, and none waits for ever.
        let (output, lines) = answered(&words, 3);
        assert_eq!((output.status.code(), lines.len()), (Some(1), 4), "{words}");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            errors.contains("--marks: standard output and input"),
            "{errors}"
        );
    }
}

#[test]
fn nonsense_is_refused() {
    for words in [
        "--bytes 1Q",
        "--tasks 0",
        "--step 4",
        "--pattern sideways",
        "--bytes 1M --total 1M",
    ] {
        let output = usemem(words);
        assert_eq!(output.status.code(), Some(2), "{words}");
    }
}

#[test]
fn allocations_are_counted() {
    let output = Command::new(env!("CARGO_BIN_EXE_foreswap-bench"))
        .args(["workload", "allocs", "--count", "50000", "--live", "1000"])
        .output()
        .expect("the workload starts");
    assert!(output.status.success());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["count"], 50_000);
}
