//! A device that reports completions only when it has no I/O left gets its I/O in batches.

use foreswap_core::readahead::Policy;
use foreswap_model::Access;

use super::directed::Machine;

const PAGES: usize = 14_000;

fn filled(at_once: bool) -> Machine {
    let mut m = Machine::of(Policy::Streams(512), 4_096, 5_000, &[32_768], PAGES);
    m.p.space.depth = 128;
    m.p.space.at_once = at_once;
    m.fill();
    m
}

/// Write to all pages in order, and check each. Returns how many I/Os began, and how many of them while others were in
/// flight.
fn scan(m: &mut Machine) -> (u64, u64) {
    let before = (m.p.space.begun, m.p.space.added);
    for at in 0..PAGES {
        let value = 1000 + at as u64;
        assert_eq!(m.touch(at, None), Some(value));
        m.touch(at, Some(value));
    }
    (m.p.space.begun - before.0, m.p.space.added - before.1)
}

#[test]
fn it_gets_batches() {
    let mut m = filled(true);
    scan(&mut m);
    let (begun, added) = scan(&mut m);
    assert!(added * 75 <= begun, "{added} of {begun}");
    m.end();
}

#[test]
fn any_other_gets_more_while_it_has_some() {
    let mut m = filled(false);
    scan(&mut m);
    let (begun, added) = scan(&mut m);
    assert!(added * 50 >= begun, "{added} of {begun}");
    m.end();
}

/// While it has a batch, a scan continues over pages in memory, which are mapped ahead.
#[test]
fn pages_in_memory_are_mapped_ahead_meanwhile() {
    let mut m = filled(true);
    scan(&mut m);
    let pages = 1_500;
    m.p.unmap(pages..PAGES);
    m.rest();
    for at in 0..pages {
        m.touch(at, Some(at as u64));
    }
    m.rest();
    m.sys.pressure[0] = 5_000;
    for _ in 0..20 {
        m.rounds_without_io();
    }
    m.sys.pressure[0] = 0;
    assert!(!m.p.space.flights.is_empty(), "no batch");
    let before = m.p.mm.stats.faults_minor;
    for at in 0..pages {
        if m.p.touch(&mut m.sys, 0, at, None) == Access::Waits {
            m.rounds_without_io();
        }
        assert!(m.p.threads[0].is_none(), "page {at} is not in memory");
    }
    let faults = m.p.mm.stats.faults_minor - before;
    assert!(faults < 300, "{faults} faults for {pages} pages");
    m.rest();
    m.end();
}
