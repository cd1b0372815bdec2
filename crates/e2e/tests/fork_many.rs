//! Many forked children at a time, and children whose parent ends at once. The checks are in `programs/fork_many.c`.

use std::path::Path;
use std::time::{Duration, Instant};

use foreswap_e2e::process::Scratch;
use foreswap_e2e::{Job, Managed, Outcome, program, requirement};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part_with(name: &str, managed: &Managed) -> Option<Outcome> {
    let path = program::compile(name, "fork_many")?;
    let outcome = managed.equals_bare_swapping(&Job::new(path).arg(name));
    let absent = outcome.note("absent");
    assert!(absent > 1024, "little was out: {}", outcome.stderr);
    Some(outcome)
}

/// More than four hundred engines of one family at a time.
#[test]
fn many_children_alive() {
    if let Some(outcome) = part_with("many_children_alive", &Managed::limit(LIMIT)) {
        let managed = outcome.stats().count("processes");
        assert!(managed > 400, "only {managed} processes were managed");
    }
}

/// Beyond the bound a fork fails, as it does when the system has no process left, and one line says why. A supervisor that
/// may have 800 descriptors has room for 118 processes.
#[test]
fn children_beyond_the_bound() {
    let room = ["sh", "-c", "ulimit -n 800 && exec \"$@\"", "sh"];
    let managed = Managed::limit(LIMIT).started_by(room).talkative();
    let Some(outcome) = part_with("children_beyond_the_bound", &managed) else {
        return;
    };
    let born = outcome.note("born");
    assert!((50..200).contains(&born), "{born} children");
    let said = "cannot fork, as its child could not have the memory that is swapped out";
    assert_eq!(
        outcome.stderr.matches(said).count(),
        1,
        "{}",
        outcome.stderr
    );
}

/// The parent, whose memory fits, is the last process of the run, and ends before its child has an engine.
#[test]
fn daemon_of_a_parent_whose_memory_fits() {
    let test = "daemon_of_a_parent_whose_memory_fits";
    let Some(path) = program::compile(test, "fork_many").filter(|_| requirement::root(test)) else {
        return;
    };
    let scratch = Scratch::new(test);
    let verdict = scratch.join("verdict");
    let job = Job::new(path).arg("leaves_a_late_daemon").arg(&verdict);
    the_daemon_is_managed(&job, &scratch, &verdict);
}

/// The command needs no engine, starts a program that needs one, and ends at once.
#[test]
fn daemon_of_a_shell() {
    let test = "daemon_of_a_shell";
    let Some(path) = program::compile(test, "fork_many").filter(|_| requirement::root(test)) else {
        return;
    };
    let scratch = Scratch::new(test);
    for turn in 0..10 {
        let verdict = scratch.join(format!("verdict-{turn}"));
        let script = format!("{} is_a_daemon {} &", path.display(), verdict.display());
        let job = Job::new("/bin/sh").arg("-c").arg(script);
        the_daemon_is_managed(&job, &scratch, &verdict);
    }
}

/// A descendant outlives the command, fills more than the limit, and writes its `verdict`.
#[track_caller]
fn the_daemon_is_managed(job: &Job, scratch: &Scratch, verdict: &Path) {
    let running = Managed::limit(LIMIT).start(job, &scratch.join("stats.json"));
    let deadline = Instant::now() + Duration::from_secs(60);
    let text = loop {
        let text = std::fs::read_to_string(verdict).unwrap_or_default();
        if text.ends_with('\n') {
            break text;
        }
        assert!(Instant::now() < deadline, "the daemon never finished");
        std::thread::sleep(Duration::from_millis(20));
    };
    running.wait().succeeded();
    let held = text
        .strip_prefix("0 words wrong, ")
        .and_then(|rest| rest.split(' ').next());
    let held: u64 = held.and_then(|held| held.parse().ok()).expect(&text);
    assert!(held <= LIMIT + 4, "{text}");
}
