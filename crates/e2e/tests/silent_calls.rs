//! Calls that change memory without a userfaultfd event: guards, advice by a pidfd, locks, seals, merging. The checks
//! are in `programs/silent_calls.c`; each is run bare and at a third of its memory.

use foreswap_e2e::{Job, Managed, parts, program};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part(name: &str) {
    let Some(path) = program::compile(name, "silent_calls") else {
        return;
    };
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&Job::new(path).arg(name));
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory when it was checked: {}",
        outcome.stderr
    );
}

parts!(
    part:
    guards
    guards_removed_from_all
    guards_alone
    guards_by_number
    guards_by_pidfd
    guards_beside_first_touches
    guards_before_pressure
    guards_and_forks
    guards_move
    guards_in_huge_pages
    refused_guards
    guards_beside_threads
    discards_by_pidfd
    discard_locked
    collapse_and_populate
    mergeable
    offlined
    sealed
    not_for_children
    changes_by_a_vfork_child
);
