//! Same-filled pages: they take no slot and no I/O, and their content is restored, wherever they move meanwhile.

use foreswap_core::readahead::Policy;
use foreswap_core::{Config, Entry, ReclaimPolicy, Swapoff, Thp};

use super::directed::Machine;

const UNIT: usize = 512;
/// Pages with this content are one word from end to end.
const WORD: u64 = 4000;

fn machine(limit: u64, pages: usize, thp: Thp) -> Machine {
    let config = Config {
        frames: 2 * limit as u32,
        depth: 64,
        readahead: Policy::Streams(UNIT as u32),
        reclaim: ReclaimPolicy::default(),
        full_timeout: 1_000_000,
        first_touch: 256,
        swapoff: Swapoff::Stream,
        thp,
        clusters: if thp == Thp::Never { 0 } else { 8 },
    };
    let mut m = Machine::configured(config, limit, &[65_536], pages);
    m.p.space.depth = 64;
    m.sys.ordinary = 3;
    m
}

fn filled(m: &Machine) -> usize {
    let entries = (0..m.p.cells.len()).map(|at| m.p.mm.entry(m.p.space.vpn(at)));
    entries
        .filter(|entry| matches!(entry, Entry::SameFilled(_)))
        .count()
}

#[test]
fn they_are_never_written_or_read_and_come_back_many_at_a_time() {
    for thp in [Thp::Never, Thp::Adaptive] {
        let (limit, pages) = (16 * UNIT as u64, 40 * UNIT);
        let mut m = machine(limit, pages, thp);
        for at in 0..pages {
            m.touch(at, Some(WORD));
        }
        m.rest();
        assert!(filled(&m) > pages / 2, "{} with {thp:?}", filled(&m));
        let faults = |m: &Machine| {
            let stats = &m.p.mm.stats;
            stats.faults_minor + stats.faults_zero + stats.faults_major
        };
        let before = faults(&m);
        for at in 0..pages {
            assert_eq!(m.touch(at, None), Some(WORD));
        }
        let stats = &m.p.mm.stats;
        assert_eq!(
            (stats.swap_write_ios, stats.swap_read_ios),
            (0, 0),
            "{thp:?}"
        );
        assert!(stats.filled_drops > pages as u64, "{}", stats.filled_drops);
        // As many at a time as the reserve has frames for, or a huge page.
        let most = match thp {
            Thp::Never => pages / 10,
            _ => 3 * pages / UNIT,
        };
        let faults = faults(&m) - before;
        assert!(
            faults <= most as u64,
            "{faults} faults, {most} at most, with {thp:?}"
        );
        m.end();
    }
}

/// A same-filled page that is written to is an ordinary page; each word is told from the others.
#[test]
fn each_has_its_own_word() {
    let pages = 600;
    let mut m = machine(64, pages, Thp::Never);
    let value = |at: usize| 1000 + 4 * at as u64 + u64::from(at.is_multiple_of(3));
    for at in 0..pages {
        m.touch(at, Some(value(at)));
    }
    assert!(m.read_all().is_empty());
    assert!(filled(&m) > pages / 2);
    let written = m.p.mm.stats.swap_out;
    for at in (0..pages).step_by(3) {
        m.touch(at, Some(WORD + 4 * at as u64));
        m.touch(at + 1, Some(2 * at as u64 + 1));
    }
    for at in (0..pages).rev() {
        let wanted = match at % 3 {
            0 => WORD + 4 * at as u64,
            1 => 2 * (at as u64 - 1) + 1,
            _ => value(at),
        };
        assert_eq!(m.touch(at, None), Some(wanted), "page {at}");
    }
    assert!(m.p.mm.stats.swap_out > written);
    m.end();
}

/// More words than the list can hold: the other pages are evicted as ordinary pages.
#[test]
fn pages_of_too_many_words_are_written() {
    let pages = 6000;
    let mut m = machine(64, pages, Thp::Never);
    for at in 0..pages {
        m.touch(at, Some(4 + 4 * at as u64));
    }
    m.rest();
    assert!((4000..=4096).contains(&filled(&m)), "{}", filled(&m));
    assert!(m.p.mm.stats.swap_write_ios > 0);
    for at in 0..pages {
        assert_eq!(m.touch(at, None), Some(4 + 4 * at as u64));
    }
    // Their words leave the list when they are gone.
    for at in 0..pages {
        m.touch(at, Some(WORD));
    }
    for at in 0..pages {
        m.touch(at, Some(1_000_000 + 4 * at as u64));
    }
    assert!(filled(&m) > 3000, "{}", filled(&m));
    m.end();
}

#[test]
fn they_move_and_go_with_their_memory() {
    let pages = 400;
    let mut m = machine(64, pages, Thp::Never);
    for at in 0..200 {
        m.touch(at, Some(WORD + 4 * at as u64));
    }
    m.rest();
    assert!(filled(&m) > 100);
    m.p.discard(0..20);
    m.rounds_without_io();
    assert_eq!(m.touch(3, None), Some(0));
    m.p.remap(20..120, 250);
    m.rounds_without_io();
    for at in 20..120 {
        assert_eq!(m.touch(at + 230, None), Some(WORD + 4 * at as u64));
    }
    for at in 120..200 {
        assert_eq!(m.touch(at, None), Some(WORD + 4 * at as u64));
    }
    m.end();
}

#[test]
fn a_child_has_those_of_its_parent() {
    let pages = 400;
    let mut m = machine(128, pages, Thp::Never);
    for at in 0..pages {
        m.touch(at, Some(WORD + 4 * (at as u64 % 50)));
    }
    m.rest();
    assert!(filled(&m) > 200);
    m.p.hold(&mut m.sys);
    for _ in 0..20 {
        m.p.round(&mut m.sys, true);
    }
    // One is mapped again, and becomes a different page in the parent and the child.
    let back =
        (0..pages).find(|&at| matches!(m.p.mm.entry(m.p.space.vpn(at)), Entry::SameFilled(_)));
    let back = back.expect("a page that is filled");
    m.p.touch(&mut m.sys, 0, back, Some(78));
    for _ in 0..10 {
        m.p.round(&mut m.sys, true);
    }
    let child = m.p.forked(&mut m.sys).expect("a child");
    let mut child = Machine {
        sys: m.sys,
        p: child,
    };
    assert!(filled(&child) > 100, "{}", filled(&child));
    assert_eq!(child.touch(back, None), Some(78));
    assert!(child.read_all().is_empty());
    child.fill();
    m.sys = child.sys;
    m.rest();
    assert!(m.read_all().is_empty());
    child.p.exit(&mut m.sys);
    assert!(m.read_all().is_empty());
    m.end();
}
