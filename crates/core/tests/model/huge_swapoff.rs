//! swapoff of areas that hold huge pages: whole units are mapped, or go to another area, whole.

use foreswap_core::{Entry, Thp};

use super::directed::Machine;
use super::huge::{LIMIT, PAGES, UNIT, emptied, filled, machine_with, pause, touch_all};

#[test]
fn an_area_is_emptied_by_units() {
    let mut m = filled(Thp::Adaptive);
    let limit = (PAGES + 4 * UNIT) as u64;
    m.sys.limit = limit;
    m.p.mm.on_limit(limit);
    let away = m.sys.areas[0].used;
    let before = m.p.mm.stats.clone();
    emptied(&mut m);
    let units = away / UNIT as u64;
    let reads = m.p.mm.stats.swap_read_ios - before.swap_read_ios;
    let whole = m.p.mm.stats.huge_swap_in - before.huge_swap_in;
    assert!(
        reads <= units + units / 4,
        "{reads} reads for {units} units"
    );
    assert!(
        whole * 10 >= units * 8,
        "{whole} of {units} units came whole"
    );
    let stats = touch_all(&mut m, 0..PAGES);
    assert_eq!(stats.faults_major + stats.faults_minor, 0);
    // They are huge pages still, and are evicted as such.
    m.sys.draining = None;
    m.sys.order = vec![0];
    m.p.call(&mut m.sys, |mm, _| mm.use_area(0));
    m.sys.limit = LIMIT;
    m.p.mm.on_limit(LIMIT);
    m.sys.excuse();
    m.rest();
    let whole = m.p.mm.stats.huge_swap_out - before.huge_swap_out;
    assert!(whole >= 20, "{whole} units went whole");
    touch_all(&mut m, 0..PAGES);
}

#[test]
fn units_move_to_another_area_whole() {
    let mut m = machine_with(Thp::Adaptive, &[65_536, 65_536]);
    m.fill();
    pause(&mut m);
    let before = m.p.mm.stats.clone();
    emptied(&mut m);
    let whole = m.p.mm.stats.huge_swap_out - before.huge_swap_out;
    assert!(whole >= 20, "{whole} units went whole");
    touch_all(&mut m, 0..PAGES);
}

/// All pages of a leaf are on areas, but not all on one. The walk of swapoff finds as many pages on its area as a leaf
/// has, some of them of the next leaf. They are no unit, and are read one by one, even if all available memory is in
/// clusters.
#[test]
fn a_leaf_on_two_areas_is_no_unit() {
    for limit in [LIMIT, (PAGES + 4 * UNIT) as u64] {
        empties_a_leaf_on_two_areas(limit);
    }
}

fn empties_a_leaf_on_two_areas(limit: u64) {
    let mut m = machine_with(Thp::Adaptive, &[65_536, 65_536]);
    m.sys.order = vec![0];
    m.fill();
    let leaf = 28 * UNIT - m.p.space.vpn(0).0 as usize % UNIT;
    let push_out = |m: &mut Machine| {
        for _ in 0..20 {
            pause(m);
            // Towards the ends, so that readahead does not reach the pages in between.
            touch_all(m, (0..12 * UNIT).rev().chain(34 * UNIT..PAGES));
            let entry = |at| m.p.mm.entry(m.p.space.vpn(at));
            let away = |at| matches!(entry(at), Entry::Unmapped | Entry::Swapped { .. });
            if (leaf..leaf + 2 * UNIT).all(away) {
                return pause(m);
            }
        }
        panic!("pages stay in memory: {}", m.p.state(&m.sys));
    };
    push_out(&mut m);
    // Some pages of a leaf go to the other area, and the next leaf is not whole.
    let elsewhere = leaf + 10..leaf + 14;
    let missing = leaf + UNIT + 200;
    m.sys.order = vec![1];
    m.p.discard(elsewhere.clone());
    m.p.discard(missing..missing + 1);
    for at in elsewhere.clone() {
        m.touch(at, Some(1000 + at as u64));
    }
    push_out(&mut m);
    for at in leaf..leaf + 2 * UNIT {
        let area = match m.p.mm.entry(m.p.space.vpn(at)) {
            Entry::Swapped { slot, .. } => Some(slot.area),
            _ => None,
        };
        let expected = (at != missing).then_some(u8::from(elsewhere.contains(&at)));
        assert_eq!(area, expected, "page {at}");
    }
    m.sys.limit = limit;
    m.p.mm.on_limit(limit);
    emptied(&mut m);
    touch_all(&mut m, (0..PAGES).filter(|&at| at != missing));
    m.end();
}
