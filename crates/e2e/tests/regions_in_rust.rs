//! Regions of memory beyond RAM in a Rust program (`crates/regions`): this test, run once more by itself with the library
//! of the build under test.

use std::path::PathBuf;

use foreswap_e2e::{Job, Outcome, program};
use foreswap_regions::{Advice, Engine, Error};

#[path = "../../regions/examples/sort.rs"]
mod sort;

const MIB: usize = 1 << 20;

/// Runs the test `name` of this file as a program.
#[track_caller]
fn run(name: &str, library: PathBuf) -> Outcome {
    Job::new(std::env::current_exe().expect("its own path"))
        .args(["--ignored", "--exact", "--nocapture", name])
        .env("FORESWAP_LIBRARY", library)
        .run()
}

#[test]
fn the_example_works() {
    let outcome = run("sorts", program::library()).succeeded();
    assert!(outcome.text().contains("16777216 numbers are sorted"));
}

#[test]
fn regions_are_slices() {
    run("uses_regions", program::library()).succeeded();
}

#[test]
fn a_missing_library_is_an_error() {
    run("lacks_the_library", "/no/such/library.so".into()).succeeded();
}

#[test]
#[ignore = "the program of the_example_works"]
fn sorts() {
    sort::main().expect("a sorted array");
}

#[test]
#[ignore = "the program of regions_are_slices"]
fn uses_regions() {
    let refused = Engine::open(["--memory=x"]).expect_err("no size");
    assert!(refused.to_string().contains("'x'"), "{refused}");
    let engine = Engine::open(["--memory=16M"]).expect("an engine");
    assert!(matches!(Engine::open(["--mem\0ory"]), Err(Error::Zero(_))));
    assert!(engine.map(0).is_err());
    let mut regions: Vec<_> = (0..4)
        .map(|_| engine.map(8 * MIB + 1).expect("a region"))
        .collect();
    std::thread::scope(|scope| {
        for (at, region) in (0..).zip(&mut regions) {
            scope.spawn(move || {
                assert_eq!(region.len(), 8 * MIB + 4096);
                assert!(region.iter().all(|byte| *byte == 0));
                for (n, byte) in region.iter_mut().enumerate() {
                    *byte = (n / 7) as u8 ^ at;
                }
            });
        }
    });
    let is_whole = |region: &[u8], at: u8| {
        let mut bytes = region.iter().enumerate();
        bytes.all(|(n, byte)| *byte == (n / 7) as u8 ^ at)
    };
    for (at, region) in (0..).zip(&regions) {
        region.advise(Advice::Sequential).expect("advice");
        assert!(is_whole(region, at));
    }
    regions[1].discard().expect("a discard");
    assert!(regions[1].iter().all(|byte| *byte == 0));
    assert!(is_whole(&regions[0], 0) && is_whole(&regions[2], 2));
    let stats = engine.stats().expect("figures");
    assert!(stats.contains("\"limit_bytes\":16777216"), "{stats}");
    assert!(
        !stats.contains("\"swap_out_bytes\":0,\"faults_major\""),
        "{stats}"
    );
    engine.set_memory("64M").expect("another limit");
    assert!(format!("{:?}", regions[0]).contains("len: 8392704"));
}

#[test]
#[ignore = "the program of a_missing_library_is_an_error"]
fn lacks_the_library() {
    let error = Engine::open(["--memory=16M"]).expect_err("no library");
    let text = error.to_string();
    assert!(
        text.contains("/no/such/library.so") && text.contains("FORESWAP_LIBRARY"),
        "{text}"
    );
}
