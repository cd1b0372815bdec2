//! Memory moved and swapped 2 MiB at a time, and operations that split it. Every word is always as last written, and
//! memory that is touched in order is never split.

use foreswap_e2e::{Job, MIB, Managed, Outcome, program};

/// Mebibytes; the program has three times as much.
const LIMIT: u64 = 64;
/// Bytes of a huge page.
const HUGE: u64 = 2 * MIB;

fn run(test: &str, kind: &str, thp: &str) -> Option<Outcome> {
    let path = program::compile(test, "huge_pages")?;
    let said = format!("{kind}: all as it should be\n");
    Some(run_with(
        &Job::new(&path).arg(kind),
        &said,
        &["--thp", thp],
        &[],
    ))
}

/// Runs a program that verifies all its writes, and prints `said` at the end.
fn run_with(job: &Job, said: &str, options: &[&str], more: &[&str]) -> Outcome {
    let managed = Managed::limit(LIMIT).options(options.iter().chain(more).copied());
    let outcome = managed.run(&job.clone().timeout(120));
    let (code, text) = (outcome.code(), outcome.text());
    assert_eq!(code, 0, "{text}\n{}", outcome.stderr);
    assert_eq!(text, said);
    outcome
}

/// Nearly all memory is moved in whole huge pages, with about one fault for each, and none is split.
#[test]
fn memory_touched_in_order_stays_whole() {
    let Some(outcome) = run("in_order", "in_order", "adaptive") else {
        return;
    };
    outcome.swapped();
    let stats = outcome.stats();
    let count = |key| stats.count(key);
    let (come, gone) = (count("huge_swap_in") * HUGE, count("huge_swap_out") * HUGE);
    assert!(come * 10 > count("swap_in_bytes") * 8, "{:?}", stats.0);
    assert!(gone * 10 > count("swap_out_bytes") * 8, "{:?}", stats.0);
    assert_eq!(count("huge_splits"), 0);
    let faults = count("faults_major") + count("faults_minor") + count("faults_zero");
    // Six passes over 96 huge pages. A scan begins with single pages, and does so again if it had to stop for longer
    // than streams are remembered; `foreswap bench` judges the number more narrowly.
    assert!(faults < 6 * 96 * 3, "{faults} faults");
}

#[test]
fn parts_of_huge_pages_change_alone() {
    for thp in ["adaptive", "always"] {
        run("in_parts", "in_parts", thp);
    }
}

/// With any thread that hashes and compresses, the program's bytes are the same, and huge pages stay whole on files.
#[test]
fn helpers_or_none_do_the_work() {
    let Some(path) = program::compile("helpers", "huge_pages") else {
        return;
    };
    let job = Job::new(&path).arg("in_order");
    for (helpers, more) in [
        ("0", &[][..]),
        ("1", &["--io", "threads"]),
        ("3", &[]),
        ("0", &["--swap", "ram:256M"]),
        ("2", &["--swap", "ram:64M", "--swap", "/tmp"]),
    ] {
        let outcome = run_with(
            &job,
            "in_order: all as it should be\n",
            &["--helpers", helpers],
            more,
        );
        outcome.swapped();
        // They start at the first transfer that is large enough, and stay.
        assert_eq!(outcome.note("helpers").to_string(), helpers, "{more:?}");
        let splits = outcome.stats().count("huge_splits");
        // A compressing area splits huge pages that contain incompressible pages.
        let may_split = more.iter().any(|word| word.starts_with("ram:"));
        assert!(splits == 0 || may_split, "{splits} splits, {more:?}");
    }
}

/// Scattered touches read single pages; memory that is touched in order again is evicted whole again.
#[test]
fn scattered_touches_read_little() {
    let Some(outcome) = run("scattered", "scattered", "adaptive") else {
        return;
    };
    let stats = outcome.stats();
    assert!(stats.count("huge_swap_in") > 0);
    // At most eight pages for each of 3000 touches, and twice all of it.
    let (read, most) = (
        stats.count("swap_in_bytes"),
        3000 * 8 * 4096 + 2 * 192 * MIB,
    );
    assert!(read < most, "{read} bytes read, expected at most {most}");
}

/// A page in each 2 MiB takes at most three times its size.
#[test]
fn sparse_memory_stays_small() {
    let Some(outcome) = run("sparse", "sparse", "adaptive") else {
        return;
    };
    let stats = outcome.stats();
    let touched = (4 << 30) / HUGE * 4096;
    let peak = stats.count("peak_resident_bytes");
    assert!(peak <= 3 * touched + 2 * MIB, "{peak} bytes for {touched}");
}

#[test]
fn never_moves_single_pages() {
    let Some(outcome) = run("never", "in_order", "never") else {
        return;
    };
    outcome.swapped();
    let stats = outcome.stats();
    assert_eq!(
        (stats.count("huge_swap_in"), stats.count("huge_swap_out")),
        (0, 0)
    );
}

/// Only changed pages are written to an area: a page in a thousand, in single pages and in huge pages.
#[test]
fn pages_that_one_word_fills_take_no_io() {
    let Some(path) = program::compile("filled", "filled") else {
        return;
    };
    let job = Job::new(&path);
    for (thp, more) in [
        ("adaptive", &[][..]),
        ("never", &[]),
        ("always", &["--helpers", "0"]),
        ("adaptive", &["--swap", "ram:64M", "--swap", "/tmp"]),
    ] {
        let outcome = run_with(&job, "all as it should be\n", &["--thp", thp], more);
        let stats = outcome.stats();
        let count = |key| stats.count(key);
        // The program passes over its memory five times and more, two thirds of it absent each time.
        assert!(count("filled_drops") * 4096 > 384 * MIB, "{:?}", stats.0);
        if thp == "never" {
            assert!(count("swap_out_bytes") < 8 * MIB, "{:?}", stats.0);
        }
    }
}
