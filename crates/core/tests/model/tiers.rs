//! Areas of several tiers: pages that are read move to the near one, and those that are not move away.

use foreswap_core::Entry;
use foreswap_core::readahead::Policy;

use super::directed::Machine;

/// A near area of 1024 slots and a far one.
fn machine(pages: usize) -> Machine {
    Machine::of(Policy::None, 200, 100, &[1024, 8192], pages)
}

fn read(m: &mut Machine, pages: std::ops::Range<usize>) {
    for at in pages {
        assert!(m.touch(at, None).is_some(), "page {at} is lost");
    }
}

/// Pages of a range that are on an area only.
fn on_area(m: &Machine, area: u8, pages: std::ops::Range<usize>) -> usize {
    let entries = pages.map(|at| m.p.mm.entry(m.p.space.vpn(at)));
    entries
        .filter(|entry| matches!(entry, Entry::Swapped { slot, .. } if slot.area == area))
        .count()
}

#[test]
fn pages_that_are_read_move_nearer_and_others_away() {
    let mut m = machine(3000);
    m.fill();
    m.rest();
    // What was written last is far, however often it is read.
    let hot = 2200..2800;
    assert!(on_area(&m, 1, hot.clone()) > 500);
    assert!(on_area(&m, 0, 0..1000) > 800);
    for _ in 0..8 {
        read(&mut m, hot.clone());
        m.rest();
    }
    let near = on_area(&m, 0, hot.clone());
    assert!(near > 350, "{near} of 600 are near");
    // They stay, and so do cold ones beyond.
    for _ in 0..4 {
        read(&mut m, hot.clone());
        m.rest();
    }
    let stay = on_area(&m, 0, hot);
    assert!(stay > 350, "{stay} of 600 are near");
    assert!(on_area(&m, 0, 0..1000) < 700);
    assert!(m.read_all().is_empty(), "pages are lost");
}

/// A scan of all pages reads none more often than others.
#[test]
fn a_scan_moves_nothing() {
    let mut m = machine(3000);
    m.fill();
    m.rest();
    m.read_all();
    m.rest();
    let far =
        |m: &Machine| -> Vec<bool> { (0..3000).map(|at| on_area(m, 1, at..at + 1) == 1).collect() };
    let before = far(&m);
    for _ in 0..4 {
        assert!(m.read_all().is_empty(), "pages are lost");
        m.rest();
    }
    let after = far(&m);
    let moved = before.iter().zip(&after).filter(|(a, b)| a != b).count();
    assert!(moved < 100, "{moved} of 3000 pages moved in four scans");
}
