//! `foreswap bench` runs the same bytes on foreswap and on its peers and reports both.

use foreswap_e2e::Job;
use foreswap_e2e::foreswap::binary;
use foreswap_e2e::process::Scratch;
use serde_json::Value;

#[test]
fn a_bench_runs_foreswap_and_its_peer_and_writes_what_it_found() {
    let scratch = Scratch::new("bench");
    let json = scratch.join("bench.json");
    let outcome = Job::new(binary())
        .args(["bench", "seq-read", "--total", "96M", "--memory", "32M"])
        .args(["--turns", "1", "--against", "bare", "--dir"])
        .arg(scratch.path())
        .arg("--json")
        .arg(&json)
        .timeout(180)
        .run()
        .succeeded();
    assert!(
        outcome.text().contains("foreswap / bare"),
        "{}",
        outcome.text()
    );
    let text = std::fs::read_to_string(&json).expect("the report was written");
    let report: Value = serde_json::from_str(&text).expect("the report is JSON");
    let median = |peer: usize, figure: &str| {
        let figures = &report["peers"][peer]["figures"];
        figures[figure]["median"].as_f64().unwrap_or(f64::NAN)
    };
    assert_eq!(report["peers"][0]["peer"], "foreswap");
    assert_eq!(report["peers"][1]["peer"], "bare");
    assert!(median(0, "bytes_per_s") > 0.0 && median(1, "bytes_per_s") > 0.0);
    // A third fits: two thirds at least had to go out and come back.
    assert!(median(0, "swap_in_bytes") >= f64::from(48 << 20));
    assert!(median(0, "stats.peak_resident_bytes") <= f64::from(32 << 20));
}
