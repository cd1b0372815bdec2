//! Memory that comes in ways which nobody tells foreswap of, or that looks like something else. Each
//! program is run bare and at a third of what it uses, and must say the same; its own peak, as the
//! kernel counted it, must be near the limit.

use foreswap_e2e::{Job, MIB, Managed, Outcome, program};

/// Mebibytes.
const LIMIT: u64 = 64;

/// What the process may use beyond the limit by its own peak: the engine, the program's text and
/// libraries, and what comes between two looks.
const BESIDE_LIMIT: u64 = 40 * MIB;

#[track_caller]
fn near_limit(outcome: &Outcome) {
    let peak = outcome.note("peak_kib") * 1024;
    assert!(
        peak <= LIMIT * MIB + BESIDE_LIMIT,
        "the process' own peak was {peak}"
    );
}

#[track_caller]
fn part(name: &str) -> Option<Outcome> {
    let path = program::compile(name, "adoption")?;
    let job = Job::new(path).arg(name);
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&job);
    near_limit(&outcome);
    Some(outcome)
}

#[test]
fn static_arrays() {
    part("static_arrays");
}

#[test]
fn guarded_chunks() {
    part("guarded_chunks");
}

#[test]
fn threads_end() {
    part("threads_end");
}

#[test]
fn library_arrays() {
    let test = "library_arrays";
    let Some(library) = program::compile_with(test, "adoption_library", &["-shared", "-fPIC"])
    else {
        return;
    };
    let library = library.to_str().expect("a readable path");
    let Some(path) = program::compile_with(test, "adoption", &["-DLIBRARY", library]) else {
        return;
    };
    let job = Job::new(path).arg(test);
    near_limit(&Managed::limit(LIMIT).equals_bare_swapping(&job));
}

/// Runs a program that asks the kernel itself. What it touches between two looks comes on top, and where
/// the disk is busy with others' work reclaim is late: the best of some runs counts.
#[track_caller]
fn raw(test: &str, options: &[&str]) {
    let Some(path) = program::compile_with(test, "adoption_raw", options) else {
        return;
    };
    let job = Job::new(path);
    let bare = job.run();
    let mut least = u64::MAX;
    for _ in 0..4 {
        let outcome = Managed::limit(LIMIT).run(&job).succeeded();
        outcome.equals(&bare);
        outcome.swapped();
        least = least.min(outcome.note("peak_kib") * 1024);
        if least <= LIMIT * MIB + BESIDE_LIMIT {
            return;
        }
    }
    panic!("the process' own peak was {least}");
}

#[test]
fn raw_calls_from_the_start() {
    raw("raw_calls_from_the_start", &[]);
}

#[test]
fn raw_calls_in_a_loop() {
    raw("raw_calls_in_a_loop", &["-O3"]);
}

/// As what Go links: nothing but the loader.
#[test]
fn without_libraries() {
    let loader = "-Wl,--dynamic-linker=/lib64/ld-linux-x86-64.so.2";
    let alone = [
        "-DALONE",
        "-nostdlib",
        "-nostartfiles",
        "-pie",
        "-fPIE",
        loader,
    ];
    raw("without_libraries", &alone);
}
