//! The effect of each kind of advice, alone.

use foreswap_core::readahead::Policy;
use foreswap_core::{Advice, Entry, Hint};

use super::directed::Machine;

/// 600 pages in 200, all filled.
fn machine() -> Machine {
    let mut m = Machine::with(Policy::Vma(8), 200, &[4096], 600);
    m.fill();
    m.rest();
    m
}

/// Pages of the range that are on an area only.
fn swapped(m: &Machine, range: std::ops::Range<usize>) -> usize {
    let is = |&at: &usize| matches!(m.p.mm.entry(m.p.space.vpn(at)), Entry::Swapped { .. });
    range.filter(is).count()
}

/// The first of `n` pages in a row that are all on the area.
fn swapped_run(m: &Machine, n: usize) -> usize {
    (0..600 - n)
        .find(|&at| swapped(m, at..at + n) == n)
        .expect("a run")
}

#[test]
fn pageout_evicts_pages_that_read_back() {
    let mut m = machine();
    let mapped = m.resident();
    let (first, last) = (mapped[0], mapped[mapped.len() - 1] + 1);
    assert!(mapped.len() > 100);
    let before = (m.sys.charged, m.p.mm.stats.swap_out);
    m.p.advise(&mut m.sys, first..last, Advice::PageOut);
    m.rest();
    assert!(m.resident().is_empty());
    assert_eq!(swapped(&m, first..last), last - first);
    assert!(m.p.mm.stats.swap_out > before.1);
    // The rest are the frames reserved for coming faults.
    assert!(m.sys.charged < before.0 - 100, "{} pages", m.sys.charged);
    for at in first..last {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    m.end();
}

#[test]
fn paging_out_passes_over_what_cannot_be_moved() {
    let mut m = machine();
    let mapped = m.resident();
    for &at in mapped.iter().step_by(10) {
        m.p.space.pages[at].locked = true;
    }
    m.p.advise(&mut m.sys, 0..600, Advice::PageOut);
    m.rest();
    let left: Vec<usize> = mapped.iter().copied().step_by(10).collect();
    assert_eq!(m.resident(), left);
    assert!(m.read_all().is_empty());
    for page in &mut m.p.space.pages {
        page.locked = false;
    }
    m.end();
}

#[test]
fn paging_out_goes_on_after_a_change_of_the_address_space() {
    let mut m = machine();
    let mapped = m.resident();
    let at = mapped[mapped.len() / 2];
    // The event was read, but its thread has not continued yet: nothing can be moved.
    m.p.discard(at..at + 1);
    m.p.read_event(&mut m.sys);
    m.p.advise(&mut m.sys, 0..600, Advice::PageOut);
    for _ in 0..20 {
        m.p.run(&mut m.sys);
    }
    assert_eq!(m.resident(), mapped);
    m.rest();
    assert!(m.resident().is_empty());
    m.end();
}

#[test]
fn paging_out_to_a_full_area_gives_up() {
    let mut m = Machine::with(Policy::None, 200, &[32], 150);
    m.fill();
    m.p.advise(&mut m.sys, 0..150, Advice::PageOut);
    m.rest();
    assert!(!m.resident().is_empty());
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn new_memory_in_the_place_of_what_was_to_leave_stays() {
    let mut m = machine();
    m.p.advise(&mut m.sys, 0..600, Advice::PageOut);
    m.p.unmap(0..600);
    while !m.p.settled() {
        m.p.read_event(&mut m.sys);
        m.p.acknowledge();
    }
    m.p.map(0..100);
    m.p.adopt(&mut m.sys, 0..100);
    for at in 0..100 {
        m.touch(at, Some(7));
    }
    m.rest();
    assert_eq!(m.resident().len(), 100);
    m.end();
}

#[test]
fn willneed_pages_are_found_in_memory() {
    let mut m = machine();
    let at = swapped_run(&m, 8);
    let stats = m.p.mm.stats.clone();
    m.p.advise(&mut m.sys, at..at + 8, Advice::WillNeed);
    m.rest();
    assert_eq!(swapped(&m, at..at + 8), 0);
    assert_eq!(m.p.mm.stats.ahead.pages, stats.ahead.pages + 8);
    let ios = m.p.mm.stats.swap_read_ios - stats.swap_read_ios;
    assert!(ios < 4, "{ios} reads");
    for at in at..at + 8 {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    assert_eq!(m.p.mm.stats.faults_major, stats.faults_major);
    assert_eq!(m.p.mm.stats.ahead.hits(), stats.ahead.hits() + 8);
    m.end();
}

#[test]
fn pages_that_do_not_fit_are_not_read() {
    let mut m = machine();
    let mapped = m.resident();
    let reads = m.p.mm.stats.swap_in;
    m.p.advise(&mut m.sys, 0..600, Advice::WillNeed);
    m.rest();
    // No more was evicted than fills the reserve again, and no page was read twice.
    let left = mapped.len() - m.resident().len();
    assert!(left <= 32, "{left} pages moved out");
    let read = m.p.mm.stats.swap_in - reads;
    assert!((1..=32).contains(&read), "{read} pages in 32 frames");
    assert!(m.read_all().is_empty());
    m.end();
}

#[test]
fn a_page_on_its_way_out_comes_back_if_it_is_needed() {
    let mut m = machine();
    let at = m.resident()[20];
    m.p.advise(&mut m.sys, at..at + 4, Advice::PageOut);
    m.p.run(&mut m.sys);
    assert!(!m.p.space.flights.is_empty());
    m.p.advise(&mut m.sys, at..at + 4, Advice::WillNeed);
    m.rest();
    let major = m.p.mm.stats.faults_major;
    for at in at..at + 4 {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    assert_eq!(m.p.mm.stats.faults_major, major);
    m.end();
}

#[test]
fn cold_pages_are_evicted_first() {
    let mut m = Machine::with(Policy::None, 200, &[4096], 600);
    for at in 0..150 {
        m.touch(at, Some(1000 + at as u64));
    }
    let cold = 100..130;
    m.p.advise(&mut m.sys, cold.clone(), Advice::Cold);
    m.rest();
    let out = |m: &Machine| -> Vec<usize> {
        let resident = m.resident();
        (0..150).filter(|at| !resident.contains(at)).collect()
    };
    assert!(
        out(&m).is_empty(),
        "nothing leaves as long as there is room"
    );
    let mut at = 150;
    while out(&m).is_empty() {
        m.touch(at, Some(5));
        at += 1;
    }
    assert!(out(&m).iter().all(|at| cold.contains(at)), "{:?}", out(&m));
    while out(&m).len() < 30 {
        m.touch(at, Some(5));
        at += 1;
    }
    assert!(
        cold.clone().all(|at| out(&m).contains(&at)),
        "{:?}",
        out(&m)
    );
    m.end();
}

#[test]
fn random_reads_one_page_and_sequential_the_largest_window_at_once() {
    let mut m = machine();
    let at = swapped_run(&m, 40);
    m.p.advise(&mut m.sys, 0..600, Advice::Use(Hint::Random));
    m.sys.limit += 100;
    let ahead = m.p.mm.stats.ahead.pages;
    for at in at..at + 8 {
        assert!(m.touch(at, None).is_some());
    }
    assert_eq!(m.p.mm.stats.ahead.pages, ahead);
    m.p.advise(&mut m.sys, 0..600, Advice::Use(Hint::Sequential));
    let major = m.p.mm.stats.faults_major;
    assert!(m.touch(at + 16, None).is_some());
    assert_eq!(m.p.mm.stats.ahead.pages, ahead + 7);
    assert_eq!(swapped(&m, at + 8..at + 16), 8, "forward only");
    for at in at + 17..at + 24 {
        assert!(m.touch(at, None).is_some());
    }
    assert_eq!(m.p.mm.stats.faults_major, major + 1);
    m.end();
}

#[test]
fn hints_stay_with_their_memory() {
    let mut m = machine();
    let hint = |m: &Machine, at: usize| {
        let page = m.p.space.vpn(at);
        let vma = m.p.mm.regions().find(|vma| vma.range.contains(&page));
        vma.map(|vma| vma.hint)
    };
    m.p.advise(&mut m.sys, 100..200, Advice::Use(Hint::Random));
    m.p.advise(&mut m.sys, 150..160, Advice::Use(Hint::Sequential));
    m.p.remap(140..170, 300);
    m.rest();
    assert_eq!(hint(&m, 139), Some(Hint::Random));
    assert_eq!(hint(&m, 140), None);
    assert_eq!(hint(&m, 300), Some(Hint::Random));
    assert_eq!(hint(&m, 310), Some(Hint::Sequential));
    assert_eq!(hint(&m, 330), Some(Hint::Normal));
    m.p.discard(300..330);
    m.rest();
    assert_eq!(hint(&m, 310), Some(Hint::Sequential));
    m.p.unmap(310..320);
    m.rest();
    m.p.map(310..320);
    m.p.adopt(&mut m.sys, 310..320);
    assert_eq!(hint(&m, 310), Some(Hint::Normal));
    m.p.hold(&mut m.sys);
    for _ in 0..100 {
        m.p.round(&mut m.sys, true);
    }
    let child = m.p.forked(&mut m.sys).expect("a child");
    let child = Machine {
        sys: m.sys,
        p: child,
    };
    assert_eq!(hint(&child, 305), Some(Hint::Random));
    assert_eq!(hint(&child, 315), Some(Hint::Normal));
    child.end();
}
