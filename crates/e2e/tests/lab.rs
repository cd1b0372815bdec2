//! The exit status of `foreswap lab decisions` tells whether the core decides as Linux did, and that of `foreswap lab clients`
//! whether clients could be simulated.

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

#[test]
fn clients_on_servers_are_simulated_and_drawn_and_contradictions_refused() {
    let scratch = Scratch::new("clients");
    let plot = scratch.join("clients.svg");
    let clients = |more: &[&str]| {
        let small = ["lab", "clients", "--data", "6M", "--time", "20"];
        Job::new(binary()).args(small).args(more).run()
    };
    let few = [
        "--memory",
        "2M",
        "--clients",
        "1,5",
        "--servers",
        "2",
        "--workload",
        "random",
    ];
    let text = clients(&few).succeeded().text();
    let rows = text.lines().filter(|line| line.starts_with("random"));
    assert_eq!(rows.count(), 4, "{text}");
    let plotted = [&few[..], &["--plot", plot.to_str().expect("text")]].concat();
    assert_eq!(clients(&plotted).succeeded().text(), text);
    let drawn = fs::read_to_string(&plot).expect("drawn");
    assert!(
        drawn.contains("random: 99.9th percentile of faults"),
        "{drawn}"
    );

    let outcome = clients(&["--memory", "8M"]);
    assert_eq!(outcome.code(), 2, "{}", outcome.stderr);
    let problem = "--data 6 MiB fits into --memory 8 MiB";
    assert!(outcome.stderr.contains(problem), "{}", outcome.stderr);
}
