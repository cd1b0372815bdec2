//! swapoff, alone: every page leaves the area, nothing is lost, faults come first.

use foreswap_core::readahead::Policy;
use foreswap_core::world::Notice;
use foreswap_core::{Advice, Config, Entry, ReclaimPolicy, Swapoff};
use foreswap_model::Access;

use super::directed::{Machine, TIMEOUT};

const ALL: [Swapoff; 3] = [Swapoff::Stream, Swapoff::Readahead, Swapoff::LegacyStats];

fn machine(how: Swapoff, limit: u64, areas: &[u32], pages: usize) -> Machine {
    let config = Config {
        frames: 64,
        depth: 128,
        readahead: Policy::Vma(8),
        reclaim: ReclaimPolicy::default(),
        full_timeout: TIMEOUT,
        first_touch: 1,
        thp: foreswap_core::Thp::Never,
        clusters: 0,
        swapoff: how,
    };
    Machine::configured(config, limit, areas, pages)
}

impl Machine {
    fn begin(&mut self, area: u8) {
        self.sys.begin_drain(area);
        self.p.call(&mut self.sys, |mm, w| mm.drain(w, area));
    }

    /// Run until nothing is on the area; false if that never happens.
    fn drained(&mut self, area: u8) -> bool {
        for _ in 0..20_000 {
            self.p.round(&mut self.sys, true);
            if self.sys.areas[usize::from(area)].used == 0 && !self.p.mm.has_io(area) {
                return true;
            }
        }
        false
    }

    fn unchanged(&mut self) {
        for at in 0..self.p.cells.len() {
            assert_eq!(self.touch(at, None), Some(1000 + at as u64));
        }
    }
}

#[test]
fn everything_comes_back_into_memory_when_the_limit_is_raised() {
    for how in ALL {
        let mut m = machine(how, 48, &[1024], 300);
        m.fill();
        assert!(m.sys.areas[0].used > 200);
        m.sys.limit = 420;
        m.p.mm.on_limit(420);
        m.begin(0);
        assert!(m.drained(0), "{how:?}: {}", m.p.state(&m.sys));
        let reads = m.p.mm.stats.swap_read_ios;
        m.unchanged();
        assert_eq!(m.p.mm.stats.swap_read_ios, reads, "all is in memory");
        m.sys.draining = None;
        m.p.call(&mut m.sys, |mm, _| mm.forget_area(0));
        m.end();
    }
}

#[test]
fn pages_that_do_not_fit_move_to_another_area() {
    for how in ALL {
        let mut m = machine(how, 64, &[512, 1024], 300);
        m.fill();
        assert!(m.sys.areas[0].used > 150);
        m.begin(0);
        assert!(m.drained(0), "{how:?}: {}", m.p.state(&m.sys));
        assert!(m.sys.areas[1].used > 150);
        m.unchanged();
        assert_eq!(m.sys.areas[0].used, 0, "nothing goes there any more");
        m.end();
    }
}

#[test]
fn reads_are_large_and_moves_few() {
    let mut m = machine(Swapoff::Stream, 48, &[1024], 300);
    m.fill();
    m.rest();
    m.sys.limit = 420;
    m.p.mm.on_limit(420);
    let (pages, before) = (m.sys.areas[0].used, m.p.mm.stats.swap_read_ios);
    m.begin(0);
    assert!(m.drained(0));
    let reads = m.p.mm.stats.swap_read_ios - before;
    assert!(reads * 8 <= pages, "{reads} reads for {pages} pages");
}

#[test]
fn pages_that_fit_nowhere_stay_and_no_fault_fails() {
    let mut m = machine(Swapoff::Stream, 64, &[512], 300);
    m.fill();
    m.begin(0);
    assert!(!m.drained(0));
    // The program continues; if nothing else helps, swapoff is given up.
    for at in 0..300 {
        if m.p.touch(&mut m.sys, 0, at, Some(5000 + at as u64)) == Access::Waits {
            for _ in 0..10_000 {
                let done = m.p.round(&mut m.sys, true);
                if m.p.mm.starved() == Some(0) {
                    m.sys.draining = None;
                    m.sys.order.push(0);
                    m.p.call(&mut m.sys, |mm, _| mm.use_area(0));
                }
                if done {
                    break;
                }
            }
        }
    }
    assert_eq!(m.sys.draining, None, "it was given up");
    assert_eq!(m.told(|n| matches!(n, Notice::OutOfMemory { .. })), 0);
    m.rest();
    for at in 0..300 {
        assert_eq!(m.touch(at, None), Some(5000 + at as u64));
    }
    m.end();
}

#[test]
fn an_interrupted_swapoff_leaves_a_working_area() {
    for how in ALL {
        let mut m = machine(how, 48, &[1024], 300);
        m.fill();
        m.sys.limit = 420;
        m.p.mm.on_limit(420);
        m.begin(0);
        for _ in 0..3 {
            m.p.round(&mut m.sys, true);
        }
        let left = m.sys.areas[0].used;
        assert!(left > 0);
        m.sys.draining = None;
        m.sys.order = vec![0];
        m.p.call(&mut m.sys, |mm, _| mm.use_area(0));
        m.sys.limit = 48;
        m.p.mm.on_limit(48);
        m.sys.excuse();
        m.rest();
        m.unchanged();
        assert!(m.sys.areas[0].used >= left, "pages go there again");
        m.end();
    }
}

#[test]
fn a_lost_page_does_not_keep_the_area() {
    for how in ALL {
        let mut m = machine(how, 48, &[1024], 300);
        m.fill();
        m.rest();
        let (at, slot) = m.swapped();
        m.sys.bad_sectors.insert(slot);
        m.sys.limit = 420;
        m.p.mm.on_limit(420);
        m.begin(0);
        assert!(m.drained(0), "{how:?}: {}", m.p.state(&m.sys));
        assert_eq!(m.read_all(), [at], "{how:?}");
        m.end();
    }
}

#[test]
fn pages_that_cannot_be_mapped_are_copied_or_wait() {
    let mut m = machine(Swapoff::Stream, 48, &[1024], 300);
    m.fill();
    m.rest();
    let (at, _) = m.swapped();
    m.p.space.pages[at].locked = true;
    m.sys.limit = 420;
    m.p.mm.on_limit(420);
    m.begin(0);
    assert!(m.drained(0), "{}", m.p.state(&m.sys));
    assert!(matches!(
        m.p.mm.entry(m.p.space.vpn(at)),
        Entry::Resident(_)
    ));
    m.unchanged();
}

/// A page is discarded, touched and evicted, and swapoff brings it back before the kernel zaps the discarded range.
#[test]
fn a_page_that_returns_before_a_late_zap_is_not_missed() {
    let mut m = machine(Swapoff::Stream, 48, &[1024], 300);
    m.fill();
    m.rest();
    let (at, _) = m.swapped();
    m.p.discard(at..at + 1);
    m.p.read_event(&mut m.sys);
    m.p.acknowledge();
    let run = |m: &mut Machine| {
        for _ in 0..100 {
            m.p.run(&mut m.sys);
            while !m.p.space.flights.is_empty() {
                m.p.complete(&mut m.sys, 0);
            }
        }
    };
    m.p.touch(&mut m.sys, 0, at, Some(9));
    m.p.read_message(&mut m.sys, 0, 0);
    run(&mut m);
    m.p.advise(&mut m.sys, at..at + 1, Advice::PageOut);
    run(&mut m);
    let entry = m.p.mm.entry(m.p.space.vpn(at));
    assert!(matches!(entry, Entry::Swapped { .. }), "{entry:?}");
    m.sys.limit = 420;
    m.p.mm.on_limit(420);
    m.begin(0);
    run(&mut m);
    assert_eq!(m.p.space.pages[at].present, Some(9));
    m.p.zap();
    m.rest();
    assert_eq!(m.touch(at, None), Some(0));
    assert!(m.sys.told.is_empty(), "{:?}", m.sys.told);
    m.end();
}

/// Seed 003: swapoff that reads pages in memory without a lookup counts no hits, and its readahead windows stay small.
#[test]
fn windows_stay_small_where_hits_are_not_counted() {
    let windows = |how| {
        let mut m = machine(how, 48, &[2048], 900);
        m.fill();
        m.rest();
        m.sys.limit = 1100;
        m.p.mm.on_limit(1100);
        m.sys.windows.clear();
        m.begin(0);
        assert!(m.drained(0), "{how:?}: {}", m.p.state(&m.sys));
        m.sys.windows
    };
    let (fixed, legacy) = (windows(Swapoff::Readahead), windows(Swapoff::LegacyStats));
    println!("with the look {fixed:?}, without {legacy:?}");
    let share = |windows: &std::collections::BTreeMap<u64, u64>, size: u64| {
        let all: u64 = windows.values().sum();
        let some: u64 = windows.range(size..).map(|(_, n)| n).sum();
        some as f64 / all as f64
    };
    // Of the seed's windows 69 % had 8 pages with the lookup, and 94 % one or two without. Of ours, in perfect order,
    // nearly all have 8.
    assert!(share(&fixed, 8) > 0.9, "{fixed:?}");
    assert!(share(&legacy, 4) < 0.1, "{legacy:?}");
    let calls = |windows: &std::collections::BTreeMap<u64, u64>| windows.values().sum::<u64>();
    assert!(calls(&legacy) > 4 * calls(&fixed));
}
