//! Memory calls of a program on memory that is swapped out: each must have the same effect as without foreswap. The
//! checks are in the C programs; they are run bare and at a third of their memory, and must have the same output.

use foreswap_e2e::{Job, MIB, Managed, Outcome, program};

/// Mebibytes; every part uses about three times as much.
const LIMIT: u64 = 64;

/// Memory of the process beyond the limit, by its own peak: foreswap's fixed part and 1 % of the managed bytes, and the
/// program's own text, libraries and page tables' rounding.
const BESIDE_LIMIT: u64 = (16 + 2 + 6) * MIB;

#[track_caller]
fn part(program: &str, name: &str) -> Option<Outcome> {
    let path = program::compile(name, program)?;
    let outcome = Managed::limit(LIMIT).equals_bare_swapping(&Job::new(path).arg(name));
    Some(outcome)
}

/// As [`part`]; the region must have been evicted when it was checked, and the process' own peak, as the kernel counts
/// it, must be near the limit.
#[track_caller]
fn swapped_part(program: &str, name: &str) {
    let Some(outcome) = part(program, name) else {
        return;
    };
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory when it was checked: {}",
        outcome.stderr
    );
    let peak = outcome.note("peak_kib") * 1024;
    assert!(
        peak <= LIMIT * MIB + BESIDE_LIMIT,
        "the process' own peak was {peak}"
    );
}

macro_rules! parts {
    ($run:ident of $program:literal: $($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                $run($program, stringify!($name));
            }
        )*
    };
}

parts!(swapped_part of "mapping_calls":
    munmap_partial
    dontneed
    dontneed_single_pages
    madv_free
    mremap_grow
    mremap_shrink
    mremap_move
    above_a_guard
    mremap_dontunmap
    map_fixed
    mprotect_read
    mprotect_none
    segv
    beside_shared_and_file
    map_populate
);

/// Memory that a program maps past every wrapper of libc is noticed late. The limit may be exceeded until then, and is
/// not checked here.
#[track_caller]
fn raw(name: &str) -> Option<Outcome> {
    let path = program::compile(name, "mapping_calls")?;
    let job = Job::new(path).arg(name);
    let outcome = Managed::limit(LIMIT).run(&job).succeeded();
    outcome.equals(&job.run());
    outcome.swapped();
    Some(outcome)
}

#[test]
fn raw_calls() {
    raw("raw_calls");
}

#[test]
fn raw_mremap() {
    raw("raw_mremap");
}

#[test]
fn raw_replaced() {
    if let Some(outcome) = raw("raw_replaced") {
        assert!(outcome.note("absent") > 1024, "{}", outcome.stderr);
    }
}

#[test]
fn joins_after_fork() {
    raw("joins_after_fork");
}

// These keep more than the limit in memory by their nature (locked or populated pages, page tables of a huge region,
// stacks, which are not managed), so only their output is compared.
parts!(part of "mapping_calls":
    reserve_and_commit
    mlock_part
    mlock_all
    advice
    sparse
    thread_stack
    unmap_everything
);

parts!(swapped_part of "heap_calls":
    brk_grow_and_shrink
    word_of_a_thread
);

parts!(part of "heap_calls":
    malloc_small
    thread_arenas
    calloc_zeroes
    realloc_growth
    aligned
    trim
);

/// A heap that grows by small blocks, is freed, and grows again is managed at each step, long before a look at the maps
/// could find it.
#[test]
fn shrinks_and_grows() {
    let Some(path) = program::compile("shrinks_and_grows", "heap_calls") else {
        return;
    };
    let outcome =
        Managed::limit(LIMIT).equals_bare_swapping(&Job::new(path).arg("shrinks_and_grows"));
    let (present, most) = (outcome.note("present"), LIMIT * MIB / 4096);
    assert!(
        present <= most,
        "{present} pages of the heap in memory, {most} are allowed"
    );
}

/// The calls go through a library that defines them too, as tcmalloc does.
#[test]
fn through_another_object() {
    let test = "through_another_object";
    let Some(library) = program::compile_with(test, "interposer", &["-shared", "-fPIC"]) else {
        return;
    };
    for (program, name) in [
        ("mapping_calls", "munmap_partial"),
        ("mapping_calls", "dontneed"),
        ("mapping_calls", "mremap_grow"),
        ("mapping_calls", "mremap_move"),
        ("mapping_calls", "map_fixed"),
        ("mapping_calls", "mlock_all"),
        ("mapping_calls", "advice"),
        ("fork_calls", "child_sees_parent"),
        ("system_calls", "own_proc_mem"),
    ] {
        let Some(path) = program::compile(test, program) else {
            return;
        };
        let job = Job::new(path).arg(name).env("LD_PRELOAD", &library);
        Managed::limit(LIMIT).equals_bare_swapping(&job);
    }
}
