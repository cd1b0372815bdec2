//! The exit status of `foreswap lab decisions` tells whether the core decides as Linux did.

use std::fs;
use std::path::Path;

use foreswap_e2e::Job;
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::{Outcome, Scratch};
use foreswap_e2e::requirement::workspace;

fn decisions(files: &[&Path]) -> Outcome {
    Job::new(binary())
        .args(["lab", "decisions"])
        .args(files)
        .run()
}

#[test]
fn recordings_are_equal_different_or_not_comparable() {
    let scratch = Scratch::new("lab");
    let data = workspace().join("crates/core/tests/data");
    let recorded = ["swap-vma.jsonl.gz", "swap-cluster.jsonl.gz"].map(|name| data.join(name));
    let outcome = decisions(&recorded.each_ref().map(|path| path.as_path())).succeeded();
    let text = outcome.text();
    assert!(
        text.contains("18 recordings, 9288 decisions, 9288 equal"),
        "{text}"
    );

    // The kernel's first window at page 0 is cut off after page 4.
    let other = scratch.join("other");
    let text =
        r#"{"name":"mine","policy":"vma","page_cluster":3,"vma_pages":64,"touches":[[0,[0,1,2]]]}"#;
    fs::write(&other, text).expect("a file can be written");
    let outcome = decisions(&[&recorded[0], &other]);
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    let difference = "touches[0], page 0: 0-4; Linux read 0-2";
    assert!(outcome.text().contains(difference), "{}", outcome.text());

    let files = data.join("file-read.jsonl.gz");
    let text = decisions(&[&files]).succeeded().text();
    assert!(
        text.contains("31 recordings, 9738 decisions, 9738 equal"),
        "{text}"
    );

    let mapped = scratch.join("mapped");
    let text = r#"{"name":"a","read_ahead_pages":8,"file_pages":9,"kind":"map","advice":"none","accesses":[]}"#;
    fs::write(&mapped, text).expect("a file can be written");
    let outcome = decisions(&[&recorded[0], &mapped]);
    assert_eq!(outcome.code(), 2);
    let problem = r#"line 1: `kind` is "map"; expected "read""#;
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
}
