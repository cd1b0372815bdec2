//! From the window of a policy to the reads.

use std::ops::Range;

use foreswap_core::readahead::Policy;

use super::swapped::Swapped;

/// Two regions whose pages take turns in the slots from 1024 on.
fn mixed(policy: Policy) -> Swapped {
    mixed_with(policy, &[])
}

/// As above; `files` is memory of files.
fn mixed_with(policy: Policy, files: &[Range<usize>]) -> Swapped {
    let slots: Vec<(usize, u32)> = (0..512)
        .map(|n| (n / 2 + n % 2 * 1024, 1024 + n as u32))
        .collect();
    Swapped::with_files(policy, &[0..256, 1024..1280], files, &slots)
}

/// The kernel reads ahead by slot in memory of files, and by address in other memory.
#[test]
fn memory_of_files_is_read_by_slot() {
    let by_slot = [8, 9, 10, 11, 1032, 1033, 1034, 1035];
    let mut machine = mixed_with(Policy::Vma(8), std::slice::from_ref(&(0..256)));
    assert_eq!(machine.touch(10), by_slot);
    let by_address = machine.touch(1200);
    assert!(by_address.len() > 3 && by_address.iter().all(|at| *at > 1024));
    machine.check();
    let mut other = mixed(Policy::Vma(8));
    assert_ne!(other.touch(10), by_slot);
    other.check();
}

#[test]
fn neighbours_by_slot_may_be_in_another_region() {
    let mut machine = mixed(Policy::Cluster(8));
    assert_eq!(
        machine.touch(10),
        [8, 9, 10, 11, 1032, 1033, 1034, 1035],
        "slots 1040 to 1047"
    );
    // Hits in one region widen the window of a miss in the other; each counts its own pages.
    for at in [8, 9, 11, 1032] {
        assert!(machine.touch(at).is_empty());
    }
    assert_eq!(machine.touch(1200).len(), 8);
    let counts = |at: usize| {
        let page = machine.p.space.vpn(at);
        let mut regions = machine.p.mm.regions();
        let vma = regions.find(|vma| vma.range.contains(&page)).expect("one");
        (vma.ahead.pages, vma.ahead.hits())
    };
    assert_eq!(counts(0), (3 + 4, 3));
    assert_eq!(counts(1024), (4 + 3, 1));
    machine.check();
}

#[test]
fn a_page_that_moved_is_found_by_its_slot() {
    let mut machine = mixed(Policy::Cluster(8));
    machine.remap(1024..1034, 2000);
    assert_eq!(machine.touch(2009), [8, 9, 10, 11, 1034, 1035, 2008, 2009]);
    machine.check();
}

#[test]
fn a_page_that_left_its_slot_is_not_read() {
    let mut machine = mixed(Policy::Cluster(8));
    machine.p.discard(1033..1035);
    for _ in 0..8 {
        machine.p.round(&mut machine.sys, true);
    }
    assert_eq!(machine.touch(10), [8, 9, 10, 11, 1032, 1035]);
    machine.check();
}

#[test]
fn a_stride_is_read_along_its_trend() {
    let slots: Vec<(usize, u32)> = (0..4096).map(|at| (at, at as u32)).collect();
    let mut machine = Swapped::new(Policy::Trend(32), std::slice::from_ref(&(0..4096)), &slots);
    let reads: Vec<usize> = (0..4096)
        .step_by(7)
        .map(|at| machine.touch(at).len())
        .collect();
    let misses = reads.iter().filter(|&&n| n > 0).count();
    let useful = reads.len();
    let read: usize = reads.iter().sum();
    assert!(misses < useful / 16, "{misses} misses for {useful} pages");
    assert!(read < useful + useful / 8, "{read} read for {useful} pages");
    machine.check();
}

#[test]
fn two_touches_of_a_page_on_its_way_are_one_hit() {
    let mut machine = mixed(Policy::Vma(8));
    let page = |at: usize| machine.p.space.vpn(at);
    let (wanted, ahead) = (page(10), page(11));
    for page in [wanted, ahead, ahead] {
        machine.call(|mm, view| mm.on_fault(view, page.address()));
    }
    machine.finish();
    let ahead = &machine.p.mm.stats.ahead;
    assert!(ahead.pages > 1);
    assert_eq!(ahead.hits(), 1);
    machine.check();
}
