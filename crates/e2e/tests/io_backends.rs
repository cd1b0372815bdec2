//! The same work by io_uring and by threads, chosen or forced, has the same output.

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Managed, program};

/// Mebibytes.
const LIMIT: u64 = 64;

/// All programs for which the I/O backend could matter.
const ALL: &[(&str, &str)] = &[
    ("mapping_calls", "mremap_move"),
    ("mapping_calls", "dontneed_single_pages"),
    ("fork_calls", "child_sees_parent"),
    ("fork_calls", "closes_everything"),
    ("heap_calls", "thread_arenas"),
    ("system_calls", "direct_files"),
    ("system_calls", "threads_fault_at_once"),
];

/// A selection that shows that the backend was used. The backend makes no difference beyond the ring, and the other
/// tests use io_uring.
const SOME: &[(&str, &str)] = &[
    ("mapping_calls", "mremap_move"),
    ("fork_calls", "child_sees_parent"),
];

#[track_caller]
fn parts(test: &str, managed: &Managed, parts: &[(&str, &str)]) {
    for &(program, part) in parts {
        let Some(path) = program::compile(test, program) else {
            return;
        };
        let scratch = Scratch::new(test);
        let job = Job::new(path).arg(part).cwd(scratch.path());
        let outcome = managed.equals_bare_swapping(&job);
        assert!(!outcome.stderr.contains("foreswap:"), "{}", outcome.stderr);
    }
}

#[test]
fn threads_when_asked_for() {
    parts(
        "threads_when_asked_for",
        &Managed::limit(LIMIT).options(["--io", "threads"]),
        SOME,
    );
}

#[test]
fn io_uring_when_asked_for() {
    parts(
        "io_uring_when_asked_for",
        &Managed::limit(LIMIT).options(["--io", "uring"]),
        SOME,
    );
}

#[test]
fn threads_where_io_uring_is_refused() {
    let test = "threads_where_io_uring_is_refused";
    let Some(launcher) = program::compile(test, "without_io_uring") else {
        return;
    };
    let managed = Managed::limit(LIMIT).started_by([&launcher]);
    parts(test, &managed, ALL);
}

/// The chosen backend is reported once, however many processes there are.
#[test]
fn the_choice_is_said_once() {
    let test = "the_choice_is_said_once";
    let (Some(launcher), Some(path)) = (
        program::compile(test, "without_io_uring"),
        program::compile(test, "fork_calls"),
    ) else {
        return;
    };
    let job = Job::new(path).arg("siblings_share_the_limit");
    let outcome = Managed::limit(LIMIT)
        .talkative()
        .started_by([&launcher])
        .run(&job)
        .succeeded();
    outcome.swapped();
    let mut lines = 0;
    for line in outcome.stderr.lines() {
        lines += usize::from(line.contains("io_uring"));
    }
    assert_eq!(lines, 1, "{}", outcome.stderr);
}

#[test]
fn io_uring_insisted_on_where_it_is_refused() {
    let test = "io_uring_insisted_on_where_it_is_refused";
    let (Some(launcher), Some(path)) = (
        program::compile(test, "without_io_uring"),
        program::compile(test, "small"),
    ) else {
        return;
    };
    let outcome = Managed::limit(LIMIT)
        .options(["--io", "uring"])
        .started_by([&launcher])
        .run(&Job::new(path).arg("tasks"));
    assert_eq!(outcome.text(), "", "the command ran");
    assert!(
        outcome.code() != 0 && outcome.code() < 128,
        "{}",
        outcome.code()
    );
    assert!(outcome.stderr.contains("io_uring"), "{}", outcome.stderr);
}
