//! The engine is a process beside the program. Changes to the program's threads or descriptors do not affect it. It
//! ends with the program, and the program never continues without it.

use std::time::{Duration, Instant};

use foreswap_e2e::process::{Running, Scratch, processes_with_tag};
use foreswap_e2e::{Job, Managed, program, requirement};
use rustix::process::{Signal, kill_process};

/// Mebibytes.
const LIMIT: u64 = 64;

/// Runs this kind of the program bare and managed.
fn as_bare(kind: &str) {
    let Some(path) = program::compile(kind, "beside") else {
        return;
    };
    let job = Job::new(path).arg(kind).timeout(120);
    Managed::limit(LIMIT).equals_bare_swapping(&job);
}

/// Starts this kind and waits until its memory is full.
fn full(kind: &str, scratch: &Scratch) -> Option<Running> {
    let path = program::compile(kind, "beside")?;
    let job = Job::new(path).arg(kind).timeout(120);
    let stats = scratch.join("stats.json");
    let mut running = Managed::limit(LIMIT).start(&job, &stats);
    running.wait_for_output("full");
    Some(running)
}

#[track_caller]
fn soon(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(5);
    while !done() {
        assert!(Instant::now() < end, "not within five seconds: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn its_threads_descriptors_and_children_are_its_own() {
    as_bare("counts");
}

#[test]
fn a_filter_for_all_its_threads_is_not_for_the_engine() {
    as_bare("filtered");
    as_bare("filtered_or_killed");
}

#[test]
fn it_may_take_a_user_namespace() {
    as_bare("namespace");
}

#[test]
fn it_is_served_as_another_user() {
    if requirement::root("it_is_served_as_another_user") {
        as_bare("dropped");
    }
}

#[test]
fn it_is_served_in_another_root() {
    if requirement::root("it_is_served_in_another_root") {
        as_bare("rooted");
    }
}

/// A child's engine gets from its parent's engine the rights that it lacks.
#[test]
fn it_may_fork_in_another_network() {
    if requirement::root("it_may_fork_in_another_network") {
        as_bare("elsewhere");
        as_bare("confined");
    }
}

#[test]
fn a_program_that_stops_all_its_threads_may_read_its_memory() {
    as_bare("spied");
}

/// The first process of a PID namespace gets orphans as its children; the engine is not among those that it sees.
#[test]
fn the_first_process_of_a_pid_namespace_has_no_child_that_it_sees() {
    let test = "the_first_process_of_a_pid_namespace_has_no_child_that_it_sees";
    let Some(path) = program::compile(test, "beside") else {
        return;
    };
    if !requirement::root(test) {
        return;
    }
    let unshare = ["--pid", "--fork", "--mount-proc", "--kill-child"];
    let job = Job::new("unshare").args(unshare).arg(path).arg("first");
    Managed::limit(LIMIT).equals_bare_swapping(&job.timeout(120));
}

/// Whether the preload object sees the exec or not.
#[test]
fn exec_returns_the_resources_of_the_process() {
    for kind in ["executes", "executes_unseen"] {
        let scratch = Scratch::new(kind);
        let Some(mut running) = full(kind, &scratch) else {
            return;
        };
        running.wait_for_output("executed");
        soon("the engine's end", || running.engines().is_empty());
        let [pid] = running.processes_named("beside")[..] else {
            panic!("the program goes on");
        };
        kill_process(pid, Signal::KILL).expect("a kill");
        let outcome = running.wait();
        assert_eq!(outcome.code(), 128 + 9);
        assert!(!outcome.stderr.contains("engine"), "{}", outcome.stderr);
    }
}

#[test]
fn it_outlives_it_for_whoever_shares_its_memory() {
    as_bare("inherits");
}

#[test]
fn the_engine_ends_with_it() {
    let scratch = Scratch::new("ends");
    let Some(running) = full("for_ever", &scratch) else {
        return;
    };
    assert_eq!(running.engines().len(), 1);
    for pid in running.processes_named("beside") {
        kill_process(pid, Signal::KILL).expect("a kill");
    }
    let tag = running.tag().to_owned();
    let outcome = running.wait();
    assert_eq!(outcome.code(), 128 + 9);
    assert!(!outcome.stderr.contains("engine"), "{}", outcome.stderr);
    soon("the engine's end", || processes_with_tag(&tag).is_empty());
}

/// Without the engine it would find zeros where its memory was.
#[test]
fn it_ends_with_the_engine() {
    for io in ["uring", "threads"] {
        let scratch = Scratch::new("engine");
        let Some(path) = program::compile("it_ends_with_the_engine", "beside") else {
            return;
        };
        let job = Job::new(path).arg("for_ever").timeout(120);
        let managed = Managed::limit(LIMIT).options(["--io", io]);
        let mut running = managed.start(&job, &scratch.join("stats.json"));
        running.wait_for_output("full");
        for pid in running.engines() {
            kill_process(pid, Signal::KILL).expect("a kill");
        }
        let outcome = running.wait();
        assert_eq!(outcome.code(), 128 + 9, "{}", outcome.stderr);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "full\n");
        assert!(
            outcome.stderr.contains("the engine of process"),
            "{}",
            outcome.stderr
        );
    }
}

/// A child that the engine serves too has a parent that is ended, and memory that nobody can bring any more.
#[test]
fn a_child_past_libc_reads_nothing_wrong_without_the_engine() {
    let test = "a_child_past_libc_reads_nothing_wrong_without_the_engine";
    let Some(path) = program::compile(test, "fork_past_libc") else {
        return;
    };
    let scratch = Scratch::new("guest");
    let job = Job::new(path).arg("engine_is_killed").timeout(120);
    let mut running = Managed::limit(LIMIT).start(&job, &scratch.join("stats.json"));
    running.wait_for_output("forked");
    // The child runs as soon as the engine has read of the fork, and not only once the supervisor has its memory: in that
    // instant nothing protects it (docs/LIMITS.md).
    std::thread::sleep(Duration::from_millis(500));
    let engines = running.engines();
    assert_eq!(engines.len(), 1);
    for pid in engines {
        kill_process(pid, Signal::KILL).expect("a kill");
    }
    let tag = running.tag().to_owned();
    let outcome = running.wait();
    assert_eq!(outcome.code(), 128 + 9, "{}", outcome.stderr);
    let printed = String::from_utf8_lossy(&outcome.stdout);
    assert_eq!(printed, "forked\n", "{}", outcome.stderr);
    let told = "its child has lost its swapped pages";
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
    soon("the child's end", || processes_with_tag(&tag).is_empty());
}

/// No process is left to end it: it waits, and never finds zeros.
#[test]
fn it_reads_nothing_wrong_when_the_supervisor_is_killed_with_the_engine() {
    let test = "it_reads_nothing_wrong_when_the_supervisor_is_killed_with_the_engine";
    let Some(path) = program::compile(test, "beside") else {
        return;
    };
    for io in ["uring", "threads"] {
        let scratch = Scratch::new("both");
        // The command dies with the supervisor; its child does not.
        let job = Job::shell("\"$0\" for_ever & wait").arg(&path).timeout(120);
        let managed = Managed::limit(LIMIT).options(["--io", io]);
        let mut running = managed.start(&job, &scratch.join("stats.json"));
        running.wait_for_output("full");
        let engines = running.engines();
        assert_eq!(engines.len(), 1);
        kill_process(running.pid(), Signal::KILL).expect("a kill");
        for pid in engines {
            kill_process(pid, Signal::KILL).expect("a kill");
        }
        // Long enough to touch a thousand evicted pages.
        std::thread::sleep(Duration::from_secs(1));
        assert_eq!(running.processes_named("beside").len(), 1, "it waits");
        assert_eq!(running.stdout_so_far(), "full\n");
        drop(running);
    }
}
