//! The order of events around a fork of a swapped process. The checks are in `programs/fork_order.c`; each is run bare
//! and at a third of its memory.

use foreswap_e2e::{Job, Managed, program};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part(name: &str, options: &[&str]) {
    let Some(path) = program::compile_with(name, "fork_order", options) else {
        return;
    };
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&Job::new(path).arg(name));
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory at the fork: {}",
        outcome.stderr
    );
}

/// A library of the program registers its handlers when it is loaded, as allocators do: its memory is there when they
/// run in the child.
#[test]
fn library_handlers() {
    let options = ["-DAS_LIBRARY", "-shared", "-fPIC"];
    let Some(library) = program::compile_with("library_handlers", "fork_order", &options) else {
        return;
    };
    let library = library.to_str().expect("a path in UTF-8");
    part("library_handlers", &["-Wl,--no-as-needed", library]);
}

#[test]
fn streams() {
    part("streams", &[]);
}

#[test]
fn threads_of_allocators() {
    part("threads_of_allocators", &[]);
}

#[test]
fn early_signals() {
    part("early_signals", &[]);
}

#[test]
fn forks_of_threads() {
    part("forks_of_threads", &[]);
}

#[test]
fn pressure_while_a_bare_fork_is_held() {
    part("pressure_while_a_bare_fork_is_held", &[]);
}
