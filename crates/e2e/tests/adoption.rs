//! Memory that foreswap is not told of, or that looks like something else. Each program is run bare and at a third of
//! its memory, and must have the same output. Its own peak, as the kernel counts it, must be near the limit.

use foreswap_e2e::{Job, MIB, Managed, Outcome, program, requirement};

/// Mebibytes.
const LIMIT: u64 = 64;

/// Memory of the process beyond the limit, by its own peak: the engine, the program's text and libraries, and growth
/// between two looks.
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
fn executable() {
    if let Some(outcome) = part("executable") {
        assert!(outcome.note("absent") > 8192, "{}", outcome.stderr);
    }
}

#[test]
fn unlike_neighbours() {
    part("unlike_neighbours");
}

/// 40,000 small mappings, of which bare ones are joined.
#[test]
fn small_mappings() {
    if let Some(outcome) = part("small_mappings") {
        let mappings = outcome.note("mappings");
        assert!(mappings < 10_000, "{mappings} mappings");
    }
}

/// The allocator of a sanitizer maps its pieces of a reservation past the C library, when they are about to be used.
#[test]
fn blocks_of_the_leak_sanitizer() {
    let test = "blocks_of_the_leak_sanitizer";
    let Some(path) = program::compile_with(test, "adoption", &["-fsanitize=leak"]) else {
        return;
    };
    let job = Job::new(path).arg("many_blocks");
    near_limit(&found_late(&job.env("LSAN_OPTIONS", "detect_leaks=0")));
}

/// Memory that is found late may be charged above the limit, if nothing leaves for a moment.
#[track_caller]
fn found_late(job: &Job) -> Outcome {
    let outcome = Managed::limit(LIMIT).run(job).succeeded();
    assert_eq!(outcome.text(), job.run().succeeded().text());
    outcome.swapped();
    outcome
}

/// Three threads map pieces of reservations past the C library at once, and fill them at full speed. Their calls leave
/// the pager little time in which it can move pages: the limit may be passed, and is named.
#[test]
fn reserved_by_threads() {
    let Some(path) = program::compile("reserved_by_threads", "adoption") else {
        return;
    };
    let job = Job::new(path).arg("reserved_by_threads");
    let outcome = found_late(&job);
    let passed = outcome.note("peak_kib") * 1024 > LIMIT * MIB + BESIDE_LIMIT;
    let stats = &outcome.stats().0;
    let over = &stats["over_limit_bytes"];
    let mut named = stats["unmanaged_bytes"]["total"].as_u64().expect("bytes");
    for cause in ["present", "found"] {
        named += over[cause].as_u64().expect("bytes");
    }
    assert!(!passed || named > BESIDE_LIMIT / 2, "{stats}");
}

#[test]
fn own_userfaultfd() {
    part("own_userfaultfd");
}

#[test]
fn moves_with_neighbour() {
    part("moves_with_neighbour");
}

#[test]
fn moves_of_several() {
    part("moves_of_several");
}

#[test]
fn named_a_stack() {
    part("named_a_stack");
}

/// With and without huge pages, for which memory has a flag more.
#[test]
fn moves_as_one() {
    let Some(path) = program::compile("moves_as_one", "adoption") else {
        return;
    };
    let job = Job::new(path).arg("moves_as_one");
    for thp in ["always", "never"] {
        let managed = Managed::limit(LIMIT).options(["--thp", thp]);
        managed.equals_bare_swapping(&job);
    }
}

/// A sanitizer's runtime is loaded before the C library, requires to be the first of all modules, and reserves
/// terabytes. Its shadow memory is managed too.
#[track_caller]
fn sanitized(test: &str, option: &str) {
    let Some(path) = program::compile_with(test, "adoption", &[option]) else {
        return;
    };
    // Its leak check stops all threads.
    let job = Job::new(path).arg("guarded_chunks");
    let job = job.env("ASAN_OPTIONS", "detect_leaks=0");
    Managed::limit(LIMIT).equals_bare_swapping(&job);
}

#[test]
fn address_sanitizer() {
    sanitized("address_sanitizer", "-fsanitize=address");
}

/// The leak check at exit finds what it finds bare: nothing.
#[test]
fn leak_check_of_the_address_sanitizer() {
    let test = "leak_check_of_the_address_sanitizer";
    let Some(path) = program::compile_with(test, "adoption", &["-fsanitize=address"]) else {
        return;
    };
    let job = Job::new(path).arg("guarded_chunks");
    // Where nobody may trace processes, it has no leak check.
    let works = job.run().code() == 0;
    if requirement::required(works, test, "ptrace for the leak check") {
        Managed::limit(LIMIT).equals_bare_swapping(&job);
    }
}

#[test]
fn undefined_behaviour_sanitizer() {
    sanitized("undefined_behaviour_sanitizer", "-fsanitize=undefined");
}

#[test]
fn valgrind() {
    let test = "valgrind";
    let Some(valgrind) = requirement::command(test, "valgrind") else {
        return;
    };
    let Some(path) = program::compile(test, "small") else {
        return;
    };
    let job = Job::new(valgrind).arg("-q").arg(path);
    let managed = Managed::limit(LIMIT).talkative().run(&job);
    managed.equals(&job.run());
    let said = managed.stderr.matches("what Valgrind runs is not managed");
    assert_eq!(said.count(), 1, "{}", managed.stderr);
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

/// Runs a program that calls the kernel directly. The memory that it touches between two looks is added, and reclaim is
/// late while the disk is busy with other work: the best of several runs counts.
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

/// As Go links programs: nothing but the loader.
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
