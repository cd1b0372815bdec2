//! An area that compresses: refused pages go to the next one, and so do its coldest pages when it fills up.

use foreswap_core::Entry;
use foreswap_core::readahead::Policy;
use foreswap_core::world::Notice;
use foreswap_model::FOREIGN;

use super::directed::Machine;

/// Area 0 compresses, and refuses part of `refuse` writes of 1000.
fn machine(areas: &[u32], pages: usize, refuse: u32) -> Machine {
    let mut m = Machine::of(Policy::None, 200, 100, areas, pages);
    m.sys.chaos.refuse = refuse;
    m.sys.compressing = true;
    m
}

/// Pages of a range that are on an area only.
fn on_area(m: &Machine, area: u8, pages: std::ops::Range<usize>) -> usize {
    let entries = pages.map(|at| m.p.mm.entry(m.p.space.vpn(at)));
    entries
        .filter(|entry| matches!(entry, Entry::Swapped { slot, .. } if slot.area == area))
        .count()
}

#[test]
fn cold_pages_leave_an_area_that_fills_up() {
    let mut m = machine(&[512, 4096], 900, 1);
    m.fill();
    m.rest();
    let used = m.sys.areas[0].used;
    assert!((300..=460).contains(&used), "{used} of 512 are taken");
    let (old, new) = (on_area(&m, 1, 0..250), on_area(&m, 1, 500..750));
    assert!(old > 2 * new, "{old} of the oldest, {new} of newer ones");
    assert!(m.read_all().is_empty(), "pages are lost");
    assert!(m.sys.told.is_empty(), "{:?}", m.sys.told);
}

/// Where the next area has no room either, pages stay where they are.
#[test]
fn nothing_leaves_where_nothing_has_room() {
    let mut m = machine(&[512, 256], 800, 1);
    m.fill();
    m.rest();
    assert!(m.sys.areas[0].used > 448, "{}", m.sys.areas[0].used);
    assert!(m.read_all().is_empty(), "pages are lost");
}

/// Slots may be free on the next area but lie in clusters that other processes have claimed. Pages that were read to be
/// moved there would be written to their old slots and read again, without end.
#[test]
fn nothing_leaves_where_others_have_claimed_all_that_is_free() {
    let mut m = machine(&[512, 512], 560, 1);
    m.sys.areas[1].claims[0] = Some(FOREIGN);
    m.fill();
    assert!(m.sys.areas[0].used >= 448, "{}", m.sys.areas[0].used);
    let reads = m.p.mm.stats.swap_in;
    m.rest();
    assert_eq!(m.p.mm.stats.swap_in, reads);
    // The claim is released: now they leave.
    m.sys.areas[1].claims[0] = None;
    for _ in 0..50 {
        m.rest();
    }
    assert!(on_area(&m, 1, 0..560) > 16);
    assert!(m.read_all().is_empty(), "pages are lost");
}

#[test]
fn a_refused_page_goes_to_the_next_area() {
    let mut m = machine(&[4096, 4096], 600, 1000);
    m.fill();
    m.rest();
    assert!(on_area(&m, 1, 0..600) > 50);
    assert!(m.read_all().is_empty(), "pages are lost");
    assert_eq!(
        m.told(|notice| matches!(notice, Notice::WriteFailed { .. })),
        0
    );
}

/// If there is no other area, incompressible pages are accepted as they are.
#[test]
fn a_refused_page_is_stored_uncompressed_without_another_area() {
    let mut m = machine(&[4096], 600, 1000);
    m.fill();
    m.rest();
    assert!(on_area(&m, 0, 0..600) > 300);
    assert!(m.read_all().is_empty(), "pages are lost");
    assert_eq!(
        m.told(|notice| matches!(notice, Notice::WriteFailed { .. })),
        0
    );
}
