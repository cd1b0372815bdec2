//! fork and calls that are built on it, with most of the memory swapped out. The checks are in `programs/fork_calls.c`;
//! each is run bare and at a third of its memory.

use std::time::{Duration, Instant};

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Managed, Outcome, program};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part_with(name: &str, managed: &Managed) -> Option<Outcome> {
    let path = program::compile(name, "fork_calls")?;
    let outcome = managed.equals_bare_swapping(&Job::new(path).arg(name));
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory at the fork: {}",
        outcome.stderr
    );
    Some(outcome)
}

#[track_caller]
fn part(name: &str) -> Option<Outcome> {
    part_with(name, &Managed::limit(LIMIT))
}

/// As [`part`], and at least `processes` of its processes must have been managed.
#[track_caller]
fn part_of(processes: u64, name: &str) {
    if let Some(outcome) = part(name) {
        let managed = outcome.stats().count("processes");
        assert!(
            managed >= processes,
            "only {managed} processes were managed"
        );
    }
}

#[test]
fn child_sees_parent() {
    part_of(2, "child_sees_parent");
}

#[test]
fn ends_while_forking() {
    part("ends_while_forking");
}

#[test]
fn parent_exits_first() {
    part_of(2, "parent_exits_first");
}

#[test]
fn child_exits_first() {
    part("child_exits_first");
}

#[test]
fn grandchildren() {
    part_of(4, "grandchildren");
}

#[test]
fn fork_while_threads_work() {
    part("fork_while_threads_work");
}

/// Two hundred forks while other threads move memory, most of it on the area. The child finds the memory that it may
/// look at in its new place.
#[test]
fn fork_while_threads_move_memory() {
    let Some(path) = program::compile("fork_while_threads_move_memory", "fork_moves") else {
        return;
    };
    let job = Job::new(path).arg("threads_move");
    let bare = job.run();
    for io in ["auto", "threads"] {
        let managed = Managed::limit(LIMIT).options(["--io", io]);
        let outcome = managed.run(&job).succeeded();
        outcome.equals(&bare);
        outcome.swapped();
        assert!(outcome.note("absent") > 1024, "little was out of memory");
        let settled = outcome.note("settled");
        assert!(settled > 40, "children could look at {settled} blocks only");
    }
}

#[test]
fn fork_and_exec() {
    part_of(4, "fork_and_exec");
}

#[test]
fn exec_self() {
    part("exec_self");
}

#[test]
fn vfork_and_spawn() {
    part("vfork_and_spawn");
}

/// Forty forks with an area that holds little more than the program: slots that a child shared or took must be free
/// when it has ended.
#[test]
fn many_forks_in_little_swap() {
    part_with(
        "many_forks",
        &Managed::limit(LIMIT).options(["--swap-size", "224M", "--full-timeout", "5s"]),
    );
}

/// A supervisor that may have 800 descriptors has room for 118 processes.
#[test]
fn failed_forks() {
    let room = ["sh", "-c", "ulimit -n 800 && exec \"$@\"", "sh"];
    part_with("failed_forks", &Managed::limit(LIMIT).started_by(room));
}

#[test]
fn raw_forks() {
    part("raw_forks");
}

/// Forks by inline assembly, which the kernel alone reports. Their memory is charged and cannot be evicted: the limit
/// gives way, and the user is told.
#[track_caller]
fn past_libc(name: &str, managed: Managed) -> Option<Outcome> {
    let path = program::compile(name, "fork_past_libc")?;
    let job = Job::new(path).arg(name);
    let outcome = managed.talkative().run(&job).succeeded();
    outcome.equals(&job.run());
    outcome.swapped();
    let told = "forked by a system call of its own";
    assert!(outcome.stderr.contains(told), "said: {}", outcome.stderr);
    Some(outcome)
}

#[test]
fn past_libc_reads_and_writes() {
    past_libc("reads_and_writes", Managed::limit(LIMIT));
}

/// Their content is in an area in memory.
#[test]
fn past_libc_with_a_ram_area() {
    let area = ["--swap", "ram:512M"];
    past_libc("reads_and_writes", Managed::limit(LIMIT).options(area));
}

#[test]
fn past_libc_moves() {
    past_libc("moves", Managed::limit(LIMIT));
}

#[test]
fn past_libc_children_of_children() {
    past_libc("children_of_children", Managed::limit(LIMIT));
}

#[test]
fn past_libc_parent_leaves() {
    past_libc("parent_leaves", Managed::limit(LIMIT));
}

/// Slots that such children held must be free when they have ended or executed a file.
#[test]
fn past_libc_many_in_little_swap() {
    let little = ["--swap-size", "224M", "--full-timeout", "5s"];
    past_libc("many", Managed::limit(LIMIT).options(little));
}

/// The kernel's report does not tell whose fork it is.
#[test]
fn past_libc_at_the_same_moment() {
    past_libc("at_the_same_moment", Managed::limit(LIMIT));
}

#[test]
fn past_libc_beside_moves() {
    if let Some(outcome) = past_libc("beside_moves", Managed::limit(LIMIT)) {
        let looked = outcome.note("looked");
        assert!(looked > 10, "children could look {looked} times only");
    }
}

#[test]
fn siblings_share_the_limit() {
    part_of(4, "siblings_share_the_limit");
}

#[test]
fn killed_child() {
    part("killed_child");
}

#[test]
fn killed_parent() {
    part("killed_parent");
}

#[test]
fn closes_everything() {
    part("closes_everything");
}

#[test]
fn advice_for_children() {
    part("advice_for_children");
}

#[test]
fn shared_stays_shared() {
    part("shared_stays_shared");
}

#[test]
fn fork_in_threads() {
    part("fork_in_threads");
}

/// The command ends at once; the daemon that it leaves behind keeps swapping and stays right.
#[test]
fn daemon_outlives_the_command() {
    let Some(path) = program::compile("daemon_outlives_the_command", "fork_calls") else {
        return;
    };
    let scratch = Scratch::new("daemon");
    let verdict = scratch.join("verdict");
    let running = Managed::limit(LIMIT).start(
        &Job::new(path).arg("leaves_a_daemon").arg(&verdict),
        &scratch.join("stats.json"),
    );
    let deadline = Instant::now() + Duration::from_secs(60);
    while std::fs::read_to_string(&verdict)
        .unwrap_or_default()
        .is_empty()
    {
        assert!(
            Instant::now() < deadline,
            "the daemon never finished: {:?} are left",
            running.processes()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let text = std::fs::read_to_string(&verdict).expect("the verdict can be read");
    assert_eq!(text, "right\n", "the daemon's memory");
    running.wait().succeeded();
}
