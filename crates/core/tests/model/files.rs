//! Mapped files: what is read, dropped, written to and discarded.

use foreswap_core::Entry;
use foreswap_core::readahead::Policy;
use foreswap_model::{Fork, System};

use crate::directed::Machine;

/// The page of the file at the start of the mapping.
const FIRST: u32 = 100;
const PAGES: usize = 400;

/// A file is mapped at the first half of the pages.
fn machine() -> Machine {
    let mut m = Machine::with(Policy::Streams(64), 100, &[4096], PAGES);
    m.p.unmap(0..PAGES / 2);
    m.rest();
    m.p.map_file(&mut m.sys, 0..PAGES / 2, FIRST);
    m
}

fn content(at: usize) -> u64 {
    System::file_content(FIRST + at as u32)
}

#[test]
fn a_file_is_read_and_never_written() {
    let mut m = machine();
    for _ in 0..3 {
        for at in 0..PAGES / 2 {
            assert_eq!(m.touch(at, None), Some(content(at)), "page {at}");
        }
    }
    let stats = &m.p.mm.stats;
    assert!(stats.swap_in > 400, "{} pages were read", stats.swap_in);
    assert_eq!(stats.swap_out, 0);
    assert!(
        stats.ahead.used > 0,
        "readahead: {:?}, {} read",
        stats.ahead,
        stats.swap_in
    );
    m.p.check(&mut m.sys);
}

#[test]
fn what_was_written_goes_to_an_area_and_comes_back_until_it_is_discarded() {
    let mut m = machine();
    for at in (0..PAGES / 2).step_by(3) {
        m.touch(at, Some(7_000 + at as u64));
    }
    // One is written to with zeros, one with what the file has.
    m.touch(9, Some(0));
    m.touch(12, Some(content(12)));
    for at in PAGES / 2..PAGES {
        m.touch(at, Some(1));
    }
    let written = m.p.mm.stats.swap_out;
    assert!(
        written >= (PAGES / 6) as u64 - 2,
        "{written} pages were written"
    );
    for at in 0..PAGES / 2 {
        let expected = match at {
            9 => 0,
            12 => content(12),
            _ if at % 3 == 0 => 7_000 + at as u64,
            _ => content(at),
        };
        assert_eq!(m.touch(at, None), Some(expected), "page {at}");
    }
    m.p.discard(0..30);
    m.rest();
    for at in 0..30 {
        assert_eq!(m.touch(at, None), Some(content(at)), "page {at}");
    }
    m.p.check(&mut m.sys);
}

#[test]
fn a_file_moves_and_its_parts_stay_its_parts() {
    let mut m = machine();
    m.touch(20, Some(5));
    m.p.unmap(300..400);
    m.rest();
    m.p.map(300..400);
    m.rest();
    m.p.adopt(&mut m.sys, 300..400);
    m.p.remap(10..60, 310);
    m.rest();
    for at in 0..50 {
        let expected = if at == 10 { 5 } else { content(10 + at) };
        assert_eq!(m.touch(310 + at, None), Some(expected), "page {at}");
    }
    for at in 60..70 {
        assert_eq!(m.touch(at, None), Some(content(at)));
    }
    m.p.discard(310..360);
    m.rest();
    assert_eq!(m.touch(320, None), Some(content(20)));
    m.p.check(&mut m.sys);
}

#[test]
fn a_child_has_the_file_and_what_its_parent_wrote() {
    let mut m = machine();
    for at in (0..PAGES / 2).step_by(5) {
        m.touch(at, Some(9_000 + at as u64));
    }
    for at in 0..PAGES {
        m.touch(at, None);
    }
    m.p.hold(&mut m.sys);
    while !matches!(m.p.fork, Fork::Taken(_)) {
        m.p.try_snapshot(&mut m.sys);
        m.p.round(&mut m.sys, true);
    }
    if let Fork::Taken(pages) = &m.p.fork {
        let untouched = pages.iter().filter(|(page, _)| {
            let at = m.p.space.at(*page);
            at < PAGES / 2 && !at.is_multiple_of(5) && content(at) != 0
        });
        assert_eq!(untouched.count(), 0, "a page of the file was handed over");
    }
    let mut child = m.p.forked(&mut m.sys).expect("a child");
    m.rest();
    std::mem::swap(&mut m.p, &mut child);
    for at in 0..PAGES / 2 {
        let expected = if at % 5 == 0 {
            9_000 + at as u64
        } else {
            content(at)
        };
        assert_eq!(m.touch(at, None), Some(expected), "page {at}");
    }
    m.p.check(&mut m.sys);
}

#[test]
fn a_guard_hides_the_file_and_its_removal_shows_it() {
    let mut m = machine();
    m.touch(5, Some(3));
    m.p.guard(&mut m.sys, &(0..10), true, true);
    assert_eq!(m.p.mm.entry(m.p.space.vpn(5)), Entry::Guarded);
    m.p.guard(&mut m.sys, &(0..10), false, true);
    assert_eq!(m.touch(5, None), Some(content(5)));
}

/// A page that cannot be read raises SIGBUS; its neighbours are read.
#[test]
fn a_read_error_is_that_pages_alone() {
    let mut m = machine();
    m.sys.chaos.read_error = 1000;
    assert_eq!(m.touch(50, None), None);
    m.sys.chaos.read_error = 0;
    assert_eq!(m.touch(150, None), Some(content(150)));
    m.p.discard(50..51);
    m.rest();
    assert_eq!(m.touch(50, None), Some(content(50)));
}
