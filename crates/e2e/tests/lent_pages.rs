//! Pages that the kernel holds by a plain reference while their memory is reused. The checks are in
//! `programs/lent_pages.c`; each is run bare and at a third of its memory.

use foreswap_e2e::{Job, Managed, program};

/// Mebibytes.
const LIMIT: u64 = 64;

#[track_caller]
fn part_with(name: &str, managed: &Managed) {
    let Some(path) = program::compile(name, "lent_pages") else {
        return;
    };
    let outcome = managed.equals_bare_swapping(&Job::new(path).arg(name));
    assert!(
        outcome.note("absent") > 1024,
        "little was out of memory: {}",
        outcome.stderr
    );
}

macro_rules! parts {
    ($($name:ident)*) => {
        $(
            #[test]
            fn $name() {
                part_with(stringify!($name), &Managed::limit(LIMIT));
            }
        )*
    };
}

parts!(
    zero_copy_send
    zero_copy_message_by_number
    splice_to_pipe
    splice_of_huge_pages
    splice_from_huge_pages
    ring_send
    read_by_others
    lends_all_the_time
);

/// Reads into more adjacent lent frames at a time than one release covers. Without huge pages, frames are adjacent.
#[test]
fn lends_much() {
    let managed = Managed::limit(LIMIT).options(["--thp", "never"]);
    part_with("lends_much", &managed);
}

/// Compressed memory writes to frames as disks do.
#[test]
fn lends_beside_a_ram_area() {
    for name in ["zero_copy_send", "lends_all_the_time"] {
        part_with(name, &Managed::limit(LIMIT).options(["--swap", "ram:256M"]));
    }
}
