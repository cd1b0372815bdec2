//! An area whose writes fail, and one that is mended.

use foreswap_core::world::Notice;

use super::directed::Machine;

/// An area whose writes all fail is left alone, and used again when it was mended: later by at most the time that it was away.
#[test]
fn an_area_that_is_mended_is_used_again() {
    let mut m = Machine::new(48, &[2048, 4096], 100);
    m.sys.areas[0].dead = true;
    for round in 0..20 {
        for at in 0..100 {
            m.touch(at, Some(100 * round + at as u64));
        }
    }
    let failed = m.told(|n| matches!(n, Notice::WriteFailed { error: 5, .. }));
    assert!(failed >= 16, "{failed}");
    // Nothing is tried in this time.
    for at in 0..100 {
        m.touch(at, Some(at as u64));
    }
    assert_eq!(m.told(|n| matches!(n, Notice::WriteFailed { .. })), failed);
    m.sys.areas[0].dead = false;
    m.sys.now += 64_000_000_000;
    for at in 0..100 {
        m.touch(at, Some(7 + at as u64));
    }
    m.rest();
    let (_, slot) = m.swapped();
    assert_eq!(slot.area, 0, "the first area has all that was written last");
    assert!(m.read_all().is_empty());
    m.end();
}
