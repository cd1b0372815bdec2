use std::ops::Range;

use foreswap_core::readahead::Policy;
use foreswap_core::{Config, ReclaimPolicy, Swapoff, Thp};

use super::*;
use crate::changes::give_back;
use crate::process::Access;
use crate::setup::Setup;
use crate::step::Act;
use crate::system::Chaos;

const PAGES: usize = 1200;

fn setup() -> Setup {
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
    Setup::new(config, PAGES)
}

/// A machine on which all pages of a process fit, with `room` pages more.
fn machine(room: u64) -> System {
    let mut sys = System::new(PAGES as u64 + room, &[4096], Chaos::default());
    sys.ordinary = u64::MAX;
    sys.families = true;
    sys
}

/// A process that has written to all its pages, and its machine.
fn parent(room: u64) -> (System, Process) {
    let mut sys = machine(room);
    let mut parent = Process::new(&mut sys, setup());
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

/// A process that was asked to pay ends before it looks at that: the others pay.
#[test]
fn what_an_ended_process_was_asked_for_others_pay() {
    let (mut sys, parent) = parent(400);
    let mut family = vec![parent];
    fork(&mut sys, &mut family);
    meet(&mut sys, &mut family);
    fork(&mut sys, &mut family);
    meet(&mut sys, &mut family);
    // Both children owe for all. The parent lets most pages go, and asks the first child.
    let (asks, rest) = family.split_at_mut(1);
    give_back(&mut asks[0], &mut sys, 0..PAGES / 2);
    assert!(sys.ledger[rest[0].space.pid].asked >= 600);
    charged_for(&sys, &family);
    family.remove(1).exit(&mut sys);
    charged_for(&sys, &family);
}

/// A process that is not managed yet lets pages go that its child shares. Its grant paid for them, and goes with them.
#[test]
fn what_a_process_lets_go_before_it_is_managed_its_child_pays_for() {
    let (mut sys, mut family) = (machine(400), Vec::new());
    let mut first = Process::new(&mut sys, setup());
    first.begin_bare(&mut sys, 0..PAGES);
    family.push(first);
    write(&mut sys, &mut family, 0..PAGES, 1);
    fork(&mut sys, &mut family);
    assert!(family[0].is_bare());
    family[0].change_bare(&mut sys, Act::Discard { page: 0, n: 600 }, 0..600);
    meet(&mut sys, &mut family);
    assert!(!family[0].is_bare());
    charged_for(&sys, &family);
}
