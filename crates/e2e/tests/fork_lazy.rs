//! Forked children whose engine has not booted yet: it boots when it is needed. The checks are in
//! `programs/fork_lazy.c`; each is run bare and at a third of its memory.

use foreswap_e2e::{Job, Managed, Outcome, program};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part_with(name: &str, options: &[&str]) -> Option<Outcome> {
    let path = program::compile(name, "fork_lazy")?;
    let managed = Managed::limit(LIMIT).options(options.iter().copied());
    let outcome = managed.equals_bare_swapping(&Job::new(path).arg(name));
    let absent = outcome.note("absent");
    let stderr = &outcome.stderr;
    assert!(
        absent > 1024,
        "little was out of memory at the fork: {stderr}"
    );
    Some(outcome)
}

#[track_caller]
fn part(name: &str) {
    part_with(name, &[]);
}

/// Children that execute or exit at once have no engine (except for some, on a busy machine).
#[test]
fn storm() {
    let Some(outcome) = part_with("storm", &[]) else {
        return;
    };
    let managed = outcome.stats().count("processes");
    assert!(managed < 30, "{managed} processes had an engine");
}

#[test]
fn parent_discards() {
    part("parent_discards");
}

#[test]
fn child_changes() {
    part("child_changes");
}

#[test]
fn kept_from_children() {
    part("kept_from_children");
}

#[test]
fn child_grows() {
    part("child_grows");
}

#[test]
fn all_is_copied() {
    part("all_is_copied");
}

#[test]
fn killed_at_any_time() {
    let options = ["--swap-size", "224M", "--full-timeout", "5s"];
    part_with("killed_at_any_time", &options);
}

/// What a parent and its workers share exists once: nothing has to leave, however long they share it.
#[test]
fn workers_read() {
    let Some(path) = program::compile("workers_read", "fork_lazy") else {
        return;
    };
    let job = Job::new(path).arg("workers_read");
    let outcome = Managed::limit(LIMIT).equals_bare(&job).succeeded();
    let out = outcome.stats().count("swap_out_bytes") >> 20;
    assert!(
        out < 8,
        "{out} MiB left memory that fits: {}",
        outcome.stderr
    );
}

/// Pages that a parent copies are held to the limit soon after, like those that a child copies.
#[test]
fn parent_writes() {
    let Some(outcome) = part_with("parent_writes", &[]) else {
        return;
    };
    // Until the child's engine is up, nothing holds the copies back.
    let most = outcome.note("most_kib") / 1024;
    assert!(
        most <= LIMIT + LIMIT / 2,
        "both held {most} MiB for a moment"
    );
    let held = outcome.note("held_kib") / 1024;
    assert!(held <= LIMIT + LIMIT / 8, "both held {held} MiB");
}

/// Threads get their pages while a fork waits for a supervisor that is busy or stopped.
#[test]
fn supervisor_is_slow() {
    let Some(outcome) = part_with("supervisor_is_slow", &[]) else {
        return;
    };
    let [fork, longest] = ["fork_us", "longest_us"].map(|name| outcome.note(name) / 1000);
    assert!(
        fork >= 900,
        "the fork did not need the supervisor: {fork} ms"
    );
    assert!(longest < 400, "a page took {longest} ms");
}
