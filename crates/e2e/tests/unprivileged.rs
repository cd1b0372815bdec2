//! An ordinary user: with access to `/dev/userfaultfd` everything works; without it the error names the remedy. The
//! copy of the device with other permissions is in its own mount namespace.

use std::fs;
use std::path::Path;

use foreswap_e2e::copies::Copies;
use foreswap_e2e::{Job, Managed, Outcome, requirement};

/// Mebibytes.
const LIMIT: u64 = 64;

fn managed(copies: &Copies, access: &str, options: &[&str]) -> Managed {
    Managed::limit(LIMIT)
        .binary(copies.join("foreswap"))
        .started_by([copies.join("as_ordinary_user").as_os_str(), access.as_ref()])
        .options(options)
}

fn job(copies: &Copies, program: &str, part: &str) -> Job {
    Job::new(copies.join(program))
        .arg(part)
        .cwd(copies.join("work"))
        .env("TMPDIR", copies.join("work"))
}

/// The kernel must not allow userfaultfd to all users, or these tests show nothing.
fn restricted(test: &str) -> bool {
    let setting = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd").unwrap_or_default();
    requirement::root(test)
        && requirement::required(
            setting.trim() == "0" && Path::new("/dev/userfaultfd").exists(),
            test,
            "/dev/userfaultfd with vm.unprivileged_userfaultfd = 0",
        )
}

#[track_caller]
fn same_as_bare(managed: &Managed, job: &Job) -> Outcome {
    let outcome = managed.equals_bare(job).succeeded();
    outcome.swapped();
    outcome
}

fn access_is_enough(test: &str, options: &[&str], parts: &[(&str, &str)]) {
    if !restricted(test) {
        return;
    }
    let programs = parts.iter().map(|(program, _)| *program);
    let programs: Vec<&str> = programs.chain(["as_ordinary_user"]).collect();
    let Some(copies) = Copies::new(test, &programs) else {
        return;
    };
    let managed = managed(&copies, "with", options);
    for (program, part) in parts {
        same_as_bare(&managed, &job(&copies, program, part));
    }
}

#[test]
fn access_to_the_device_is_enough_for_forks() {
    let parts = [
        ("fork_calls", "child_sees_parent"),
        ("fork_calls", "killed_child"),
    ];
    access_is_enough("access_to_the_device_is_enough_for_forks", &[], &parts);
}

#[test]
fn access_to_the_device_is_enough_for_calls() {
    let parts = [
        ("mapping_calls", "mremap_move"),
        ("system_calls", "direct_files"),
        ("heap_calls", "aligned"),
        ("system_calls", "futexes"),
    ];
    access_is_enough("access_to_the_device_is_enough_for_calls", &[], &parts);
}

#[test]
fn access_to_the_device_is_enough_with_threads() {
    let parts = [
        ("fork_calls", "child_sees_parent"),
        ("mapping_calls", "mremap_move"),
    ];
    let options = ["--io", "threads"];
    access_is_enough(
        "access_to_the_device_is_enough_with_threads",
        &options,
        &parts,
    );
}

#[test]
fn without_access_the_error_says_what_to_do() {
    let test = "without_access_the_error_says_what_to_do";
    if !restricted(test) {
        return;
    }
    let Some(copies) = Copies::new(test, &["as_ordinary_user", "small"]) else {
        return;
    };
    let outcome = managed(&copies, "without", &[]).run(&job(&copies, "small", "tasks"));
    assert_eq!(outcome.text(), "", "the command ran");
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    for word in ["/dev/userfaultfd", "udev", "root"] {
        assert!(
            outcome.stderr.contains(word),
            "no {word:?} in {}",
            outcome.stderr
        );
    }
}

/// The kernel does not report a fork past the C library to an ordinary user: the child lacks memory, and the user is told of
/// it, and of no other child.
#[test]
fn a_fork_that_nobody_sees_is_named() {
    let test = "a_fork_that_nobody_sees_is_named";
    if !restricted(test) {
        return;
    }
    let Some(copies) = Copies::new(test, &["as_ordinary_user", "fork_past_libc"]) else {
        return;
    };
    let managed = managed(&copies, "with", &[]).talkative();
    let outcome = managed.run(&job(&copies, "fork_past_libc", "nobody_is_told"));
    let outcome = outcome.succeeded();
    let told = |name: &str| format!("its child {} has none", outcome.note(name));
    assert!(
        outcome.stderr.contains(&told("unknown")),
        "{}",
        outcome.stderr
    );
    assert!(
        !outcome.stderr.contains(&told("known")),
        "{}",
        outcome.stderr
    );
}

/// Nor does such a child read a wrong byte: what is swapped out in its parent is not there. Children by the C library have
/// everything but what the program itself keeps from them.
#[test]
fn no_child_of_an_ordinary_user_reads_zeros() {
    let test = "no_child_of_an_ordinary_user_reads_zeros";
    if !restricted(test) {
        return;
    }
    let Some(copies) = Copies::new(test, &["as_ordinary_user", "fork_past_libc"]) else {
        return;
    };
    let managed = managed(&copies, "with", &[]);
    for part in ["no_child_reads_zeros", "own_advice"] {
        same_as_bare(&managed, &job(&copies, "fork_past_libc", part));
    }
}

/// The command of a run by root changes to another user before it needs an engine, as the entry points of containers do.
#[test]
fn other_users_of_a_run() {
    let test = "other_users_of_a_run";
    let Some(setpriv) = requirement::command(test, "setpriv").filter(|_| restricted(test)) else {
        return;
    };
    let Some(copies) = Copies::new(test, &["mapping_calls", "fork_calls"]) else {
        return;
    };
    for (program, part) in [
        ("mapping_calls", "dontneed"),
        ("fork_calls", "child_sees_parent"),
        ("fork_calls", "grandchildren"),
    ] {
        let job = Job::new(&setpriv)
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(copies.join(program))
            .arg(part)
            .cwd(copies.join("work"));
        let managed = Managed::limit(LIMIT).binary(copies.join("foreswap"));
        same_as_bare(&managed.clone().options(["--other-users"]), &job);
        let outcome = managed.talkative().run(&job).succeeded();
        assert!(
            outcome.stderr.contains("--other-users"),
            "{}",
            outcome.stderr
        );
    }
}
