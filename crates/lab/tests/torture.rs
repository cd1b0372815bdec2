//! `foreswap lab torture` over fixed seeds and over fresh ones, which are printed. `FORESWAP_SEED` replays one,
//! `FORESWAP_RUNS` sets how many are fresh.

use std::path::Path;
use std::process::ExitCode;

use clap::Parser;
use foreswap_lab::torture::{TortureArgs, torture};

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    torture: TortureArgs,
}

/// The exit status, standard output and standard error.
fn run(words: &[&str]) -> (ExitCode, String, String) {
    let args = Cli::parse_from(["torture"].iter().chain(words)).torture;
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = torture(&args, &mut out, &mut err).expect("written");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status, text(out), text(err))
}

fn is(status: ExitCode, expected: u8) -> bool {
    // It can be compared in no other way.
    format!("{status:?}") == format!("{:?}", ExitCode::from(expected))
}

#[track_caller]
fn is_sound(words: &[&str]) -> serde_json::Value {
    let (status, out, _) = run(&[words, &["--json"]].concat());
    assert!(is(status, 0), "{out}");
    serde_json::from_str(&out).expect("JSON")
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

#[test]
fn seeds_that_are_always_the_same() {
    let report = is_sound(&["--seed", "1", "--runs", "150", "--steps", "10000"]);
    let number = |key: &str| report[key].as_u64().expect("a number");
    assert_eq!((number("runs"), number("steps")), (150, 1_500_000));
    // Every kind of failure happened.
    for key in ["faults", "swap_in_pages", "swap_out_pages", "sigbus"] {
        assert!(number(key) > 100_000, "{key}: {report}");
    }
    for key in ["forks", "deaths", "swapoffs", "huge_pages"] {
        assert!(number(key) > 100, "{key}: {report}");
    }
    assert!(number("huge_pages_drained") > 20, "{report}");
}

/// A compressing area refused some pages of a huge page while a thread waited for it and the MMU said EAGAIN. It was
/// written whole once more, and the slots of the other pages were lost.
#[test]
fn a_unit_refused_in_part_keeps_its_slots() {
    is_sound_again("unit-refused-in-part.jsonl");
}

/// A huge page was mapped in part while its area was emptied. Swapoff moved the page that it had found once more, from
/// a frame that was empty by then.
#[test]
fn a_unit_that_came_in_part_is_not_moved_again() {
    is_sound_again("unit-came-in-part.jsonl");
}

/// Writes had failed until the area was no longer used. Each fault waited for slots and lost its page in the end, which
/// was taken for a program that crawls.
#[test]
fn an_area_that_failed_is_a_reason_to_wait() {
    is_sound(&["--seed", "1087644426", "--steps", "7000"]);
}

/// The areas were full, and the process waited for its turn. The fault that was first in the line then had waited for
/// memory for less long than those behind it, whose waits did not end.
#[test]
fn the_longest_wait_ends_first_after_a_turn() {
    is_sound(&["--seed", "1566715025", "--steps", "7000"]);
}

/// Slots had become free since a write found none, and the next write had not begun when the wait was over.
#[test]
fn no_page_is_lost_while_a_slot_is_free() {
    is_sound(&["--seed", "77221", "--steps", "20000"]);
}

/// Swapoff found a page mapped that the kernel took away later, as an earlier discard reached it. The page was lost.
#[test]
fn a_page_that_swapoff_found_mapped_may_be_taken_away() {
    is_sound(&["--seed", "31114", "--steps", "20000"]);
}

/// Debts of forked processes: whatever they copy, discard or evict, and whoever ends, each page is charged to somebody.
/// Seeds 94970609 and 94970661 found leaks.
#[test]
fn families_pay_for_all_their_pages() {
    for seed in ["94970609", "94970661"] {
        is_sound(&["--families", "--seed", seed]);
    }
    is_sound(&["--families", "--seed", "1", "--runs", "40"]);
}

fn is_sound_again(name: &str) {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/");
    is_sound(&["--replay", &format!("{folder}{name}")]);
}

#[test]
fn fresh_seeds() {
    let runs = variable("FORESWAP_RUNS").unwrap_or("100".into());
    let report = match variable("FORESWAP_SEED") {
        Some(seed) => is_sound(&["--seed", &seed]),
        None => is_sound(&["--runs", &runs]),
    };
    println!("{report}");
}

#[test]
fn the_same_seed_does_the_same() {
    let of = |seed: &str, jobs: &str| {
        let words = [
            "--seed", seed, "--runs", "3", "--steps", "3000", "--jobs", jobs,
        ];
        let report = is_sound(&words);
        (
            report["faults"].clone(),
            report["sigbus"].clone(),
            report["swap_in_pages"].clone(),
        )
    };
    assert_eq!(of("77", "1"), of("77", "3"));
    assert_ne!(of("77", "1"), of("78", "1"));
    let trace = |seed| is_sound(&["--seed", seed, "--steps", "3000"])["trace"].clone();
    assert_eq!(trace("5"), trace("5"));
    assert_ne!(trace("5"), trace("6"));
}

#[test]
fn a_file_that_cannot_be_replayed_has_status_2() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("case.jsonl");
    let replay = |path: &Path| run(&["--replay", path.to_str().expect("text")]);
    let (status, _, err) = replay(&path);
    assert!(is(status, 2) && err.contains("No such file"), "{err}");
    std::fs::write(&path, "{\"foreswap_torture\":1}\n").expect("written");
    let (status, _, err) = replay(&path);
    assert!(is(status, 2), "{err}");
    assert!(
        err.contains("case.jsonl: line 1: missing field `plan`"),
        "{err}"
    );
}

#[test]
fn arguments_are_checked() {
    let error = |words: &[&str]| {
        let words = ["torture"].iter().chain(words);
        Cli::try_parse_from(words)
            .err()
            .expect("an error")
            .to_string()
    };
    assert!(error(&["--seconds=-1"]).contains("expected seconds, such as 30"));
    assert!(error(&["--steps", "0"]).contains("0 is not in 1..="));
    assert!(error(&["--replay", "x", "--seed", "1"]).contains("cannot be used with"));
}
