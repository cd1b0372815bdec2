//! Regions of memory beyond RAM in a Rust program (`crates/regions`): this test, run once more by itself with the library
//! of the build under test.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Outcome, program, requirement};
use foreswap_regions::{Advice, Engine, Error};

#[path = "../../regions/examples/sort.rs"]
mod sort;

const MIB: usize = 1 << 20;
/// A user without rights.
const NOBODY: u32 = 65534;

/// This file's tests.
fn this() -> PathBuf {
    std::env::current_exe().expect("its own path")
}

/// Runs the test `name` of `tests`, this file or a copy, as a program.
#[track_caller]
fn run(tests: &Path, name: &str, library: PathBuf) -> Outcome {
    let outcome = Job::new(tests)
        .args(["--ignored", "--exact", "--nocapture", name])
        .env("FORESWAP_LIBRARY", library)
        .run()
        .succeeded();
    // No test of a wrong name succeeds, too.
    assert!(outcome.text().contains("1 passed"), "{}", outcome.text());
    outcome
}

#[test]
fn the_example_works() {
    let outcome = run(&this(), "sorts", program::library());
    assert!(outcome.text().contains("16777216 numbers are sorted"));
}

#[test]
fn regions_are_slices() {
    run(&this(), "uses_regions", program::library());
}

#[test]
fn a_missing_library_is_an_error() {
    run(&this(), "lacks_the_library", "/no/such/library.so".into());
}

/// Otherwise it would run the code of whoever starts it.
#[test]
fn a_setuid_program_does_not_obey_the_variable() {
    let test = "a_setuid_program_does_not_obey_the_variable";
    if !requirement::root(test) {
        return;
    }
    let scratch = Scratch::new(test);
    let copy = scratch.join("setuid");
    fs::copy(this(), &copy).expect("a copy");
    chown(&copy, Some(NOBODY), None).expect("another owner");
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4755)).expect("a mode");
    run(&copy, "ignores_the_variable", "/no/such/library.so".into());
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
    let figures: serde_json::Value = serde_json::from_str(&stats).expect("JSON");
    let swapped_out = figures["totals"]["swap_out_bytes"].as_u64();
    assert!(swapped_out >= Some(16 << 20), "{stats}");
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

#[test]
#[ignore = "the program of a_setuid_program_does_not_obey_the_variable"]
fn ignores_the_variable() {
    // The library may be installed on this machine; its engine may refuse another user.
    if let Err(error) = Engine::open(["--memory=16M"]) {
        assert!(!error.to_string().contains("/no/such"), "{error}");
    }
}
