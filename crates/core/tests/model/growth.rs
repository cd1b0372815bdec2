//! Which new memory of a managed process is managed.

use std::ops::Range;

use crate::directed::Machine;

/// A mapping apart from managed memory is worth a registration if it is large; one between managed parts joins them.
#[test]
fn a_small_new_mapping_is_managed_beside_managed_memory_only() {
    let mut m = Machine::new(100, &[512], 100);
    m.p.unmap(20..80);
    while !m.p.settled() {
        m.p.round(&mut m.sys, true);
    }
    let managed = |m: &mut Machine, range: Range<usize>| {
        m.p.map(range.clone());
        m.p.ring(&mut m.sys, range.clone());
        range
            .into_iter()
            .all(|at| m.p.mm.manages(m.p.space.vpn(at)))
    };
    assert!(!managed(&mut m, 30..45));
    assert!(managed(&mut m, 20..22));
    assert!(managed(&mut m, 79..80));
    assert!(managed(&mut m, 50..66));
    // It goes beside managed memory; the one next to it then is, too.
    assert!(managed(&mut m, 45..50) && managed(&mut m, 30..45));
}
