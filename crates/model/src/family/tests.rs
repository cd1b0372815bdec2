use std::ops::Range;

use foreswap_core::readahead::Policy;
use foreswap_core::{Config, ReclaimPolicy, Swapoff, Thp};

use super::*;
use crate::process::Access;
use crate::setup::Setup;
use crate::system::Chaos;

const PAGES: usize = 1200;

/// A process that has written to all its pages, and its machine: all fits, with `room` pages more.
fn parent(room: u64) -> (System, Process) {
    let config = Config {
        frames: 64,
        depth: 128,
        readahead: Policy::None,
        reclaim: ReclaimPolicy::default(),
        full_timeout: 1_000_000_000,
        first_touch: 1,
        thp: Thp::Never,
        clusters: 0,
        swapoff: Swapoff::Stream,
    };
    let mut sys = System::new(PAGES as u64 + room, &[4096], Chaos::default());
    sys.ordinary = u64::MAX;
    sys.families = true;
    let mut parent = Process::new(&mut sys, Setup::new(config, PAGES));
    parent.map(0..PAGES);
    parent.adopt(&mut sys, 0..PAGES);
    let mut family = vec![parent];
    write(&mut sys, &mut family, 0..PAGES, 1);
    let parent = family.remove(0);
    (sys, parent)
}

fn look(sys: &mut System, family: &mut [Process]) {
    sys.pass(2_000_000);
    for process in family {
        process.settle_debts(sys);
        process.round(sys, true);
    }
}

/// All members know of each other.
fn meet(sys: &mut System, family: &mut [Process]) {
    for _ in 0..3 {
        look(sys, family);
    }
}

/// The first process writes to pages, however long each takes.
fn write(sys: &mut System, family: &mut [Process], pages: Range<usize>, first: u64) {
    for at in pages {
        let value = first + at as u64;
        let got = family[0].touch(sys, 0, at, Some(value));
        for _ in 0..1000 {
            if got == Access::Done || family[0].waiting() == 0 {
                break;
            }
            look(sys, family);
        }
        assert_eq!(family[0].space.pages[at].present, Some(value), "page {at}");
    }
}

fn fork(sys: &mut System, family: &mut Vec<Process>) {
    family[0].hold(sys);
    for _ in 0..100 {
        family[0].try_snapshot(sys);
        if let Some(child) = family[0].forked(sys) {
            return family.push(child);
        }
        family[0].round(sys, true);
    }
    panic!("no fork");
}

/// What a parent has copied for one child is shared anew by the next fork: its writes must wait again.
#[test]
fn a_second_fork_protects_what_the_first_had_opened() {
    let (mut sys, parent) = parent(PAGES as u64 + 400);
    let mut family = vec![parent];
    fork(&mut sys, &mut family);
    meet(&mut sys, &mut family);
    write(&mut sys, &mut family, 0..PAGES / 2, 10_000);
    charged_for(&sys, &family);
    let owed = family[1].space.account.debt().covered();
    assert!(
        owed > 0,
        "the first child still owes, and the parent is protected"
    );
    fork(&mut sys, &mut family);
    meet(&mut sys, &mut family);
    write(&mut sys, &mut family, 0..PAGES / 2, 20_000);
    charged_for(&sys, &family);
}
