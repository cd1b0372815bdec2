//! A near area and a far one: pages that are used come to be near.

use std::os::unix::fs::PermissionsExt;

use super::*;

/// The part of the memory that is filled last is on a server that answers after a millisecond. Then it is all that is read,
/// four times, and each word is verified.
#[test]
fn a_working_set_comes_nearer() {
    let test = "a_working_set_comes_nearer";
    let scratch = Scratch::new(test);
    let near = file(&scratch, "near", 64);
    fs::set_permissions(&near, fs::Permissions::from_mode(0o600)).expect("a mode");
    let words = [
        "--filter=delay",
        "memory",
        "256M",
        "delay-read=1ms",
        "delay-write=1ms",
    ];
    let Some(server) = Server::nbdkit(test, &scratch, "s", &words) else {
        return;
    };
    let steps = ["late-read"; 4].join(",");
    let job =
        Job::new(binary()).args(["workload", "workset", "--bytes", "128M", "--steps", &steps]);
    let managed = Managed::limit(32).options(["--swap", &near, "--swap", &server.address("")]);
    let outcome = managed.run(&job).succeeded();
    let report: serde_json::Value = serde_json::from_str(&outcome.text()).expect("a report");
    let steps = report["steps"].as_array().expect("steps");
    let times: Vec<f64> = steps
        .iter()
        .filter_map(|step| step["ns_per_touch"].as_f64())
        .collect();
    let [first, .., last] = times[..] else {
        panic!("{report}");
    };
    // Two thirds of the touches miss; without an exchange, each of these takes more than a millisecond.
    assert!(first > 100_000.0 && last < first / 2.0, "{times:?} ns");
}
