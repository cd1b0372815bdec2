//! Threads that wait: for memory, where each run lets one continue, the first of them first; and for an entry of the
//! queue.

use foreswap_core::readahead::Policy;
use foreswap_core::world::Notice;
use foreswap_core::{Advice, Config, Entry, ReclaimPolicy, Swapoff, Thp};
use foreswap_model::Access;

use super::directed::{Machine, OTHER, TIMEOUT};

fn waiting(m: &Machine) -> usize {
    m.p.threads.iter().flatten().count()
}

/// Other processes hold more than the limit; this process must give back all its memory.
fn without_memory(written: usize, pages: usize) -> Machine {
    let mut m = Machine::new(48, &[512], pages);
    for at in 0..written {
        m.touch(at, Some(1000 + at as u64));
    }
    m.sys.charged += 60;
    m.sys.excuse();
    for _ in 0..200 {
        m.p.round(&mut m.sys, true);
    }
    assert_eq!(m.p.space.charged, 0, "all was given back");
    m
}

fn touch(m: &mut Machine, thread: usize, at: usize) {
    let access = m.p.touch(&mut m.sys, thread, at, None);
    assert_eq!(access, Access::Waits);
    m.p.read_message(&mut m.sys, 0, 0);
    m.sys.now += 10;
}

#[test]
fn a_page_that_a_thread_waited_for_stays_until_it_is_touched() {
    let mut m = without_memory(100, 110);
    // Pages of zeros: each could have the memory of the one before at once.
    for thread in 0..4 {
        touch(&mut m, thread, 100 + thread);
    }
    m.sys.now += TIMEOUT;
    for left in (0..4).rev() {
        m.p.run(&mut m.sys);
        assert!(
            waiting(&m) <= left,
            "{} threads wait, {left} should",
            waiting(&m)
        );
    }
    m.sys.charged -= 60;
    m.rest();
    m.end();
}

#[test]
fn a_fault_that_waits_again_keeps_its_place() {
    let mut m = without_memory(100, 110);
    let began = m.sys.now;
    touch(&mut m, 0, 3);
    touch(&mut m, 1, 105);
    // Room for one: the first one's page is read.
    m.sys.charged -= 60 - 47;
    m.p.run(&mut m.sys);
    assert_eq!(m.p.space.flights.len(), 1);
    m.sys.charged += 60 - 47;
    m.sys.excuse();
    // It cannot be moved in, and there is no memory for a copy.
    m.p.space.pages[3].locked = true;
    m.sys.chaos.no_memory = 1000;
    while !m.p.space.flights.is_empty() {
        m.p.complete(&mut m.sys, 0);
    }
    assert_eq!(m.p.mm.oldest_stalled(), Some(began));
    m.sys.chaos.no_memory = 0;
    m.p.space.pages[3].locked = false;
    m.sys.charged -= 60;
    m.rest();
    m.end();
}

/// Pages that are on an area only.
fn swapped(m: &Machine) -> Vec<usize> {
    let entry = |at: &usize| m.p.mm.entry(m.p.space.vpn(*at));
    let pages = 0..m.p.cells.len();
    pages
        .filter(|at| matches!(entry(at), Entry::Swapped { .. }))
        .collect()
}

#[test]
fn the_next_place_in_the_queue_is_for_a_thread() {
    let mut m = Machine::new(48, &[512], 300);
    for at in 0..200 {
        m.touch(at, Some(1000 + at as u64));
    }
    let wanted = swapped(&m)[0];
    for at in m.resident() {
        m.p.touch(&mut m.sys, OTHER, at, Some(5000 + at as u64));
    }
    m.p.space.depth = 0;
    touch(&mut m, 0, wanted);
    // Other processes need memory as well: changed pages are evicted for them.
    for at in 200..210 {
        m.p.touch(&mut m.sys, OTHER, at, None);
        m.p.read_message(&mut m.sys, 0, 0);
        m.p.run(&mut m.sys);
    }
    m.p.space.depth = 1;
    m.p.run(&mut m.sys);
    let flights = &m.p.space.flights;
    assert!(flights.len() == 1 && !flights[0].write, "its read is next");
    m.p.space.depth = 8;
    m.rest();
    m.end();
}

#[test]
fn a_page_of_a_read_that_waits_is_not_forgotten() {
    let mut m = Machine::new(48, &[512], 200);
    m.fill();
    let away = swapped(&m);
    let run = away.windows(4).find(|run| run[3] == run[0] + 3);
    let run = run.expect("four in a row")[0];
    // The disk serves other processes now, and accepts no more.
    m.sys.others_fault_at_random = true;
    m.p.run(&mut m.sys);
    m.p.space.depth = 0;
    m.p.advise(&mut m.sys, run..run + 4, Advice::WillNeed);
    m.p.run(&mut m.sys);
    let entry = |m: &Machine, at| m.p.mm.entry(m.p.space.vpn(at));
    assert!(
        matches!(entry(&m, run + 2), Entry::Cached(_)),
        "its read waits"
    );
    m.p.discard(run..run + 1);
    m.p.read_event(&mut m.sys);
    m.p.acknowledge();
    m.p.zap();
    touch(&mut m, 0, run + 2);
    m.p.space.depth = 8;
    m.rest();
    assert_eq!(waiting(&m), 0);
    m.sys.others_fault_at_random = false;
    m.end();
}

/// Six threads touch pages of six huge pages, and there is memory for one: each is served, and finds its page.
#[test]
fn a_huge_page_that_a_thread_waited_for_stays_until_it_is_touched() {
    let config = Config {
        frames: 64,
        depth: 128,
        readahead: Policy::None,
        reclaim: ReclaimPolicy::default(),
        full_timeout: TIMEOUT,
        first_touch: 512,
        thp: Thp::Always,
        clusters: 4,
        swapoff: Swapoff::Stream,
    };
    let mut m = Machine::configured(config, 600, &[8192], 6 * 512);
    m.p.space.depth = 8;
    for unit in 0..6 {
        let access = m.p.touch(&mut m.sys, unit, unit * 512 + 7, Some(1));
        assert_eq!(access, Access::Waits);
    }
    for _ in 0..6 {
        m.p.read_message(&mut m.sys, 0, 0);
    }
    let mut left = waiting(&m);
    for _ in 0..200 {
        m.p.run(&mut m.sys);
        m.sys.now += 100;
        while !m.p.space.flights.is_empty() {
            m.p.complete(&mut m.sys, 0);
        }
        left = waiting(&m);
    }
    assert_eq!(left, 0, "threads wait");
    m.rest();
    m.end();
}

#[test]
fn immovable_pages_do_not_delay_movable_ones() {
    const LIMIT: usize = 1500;
    let mut m = Machine::new(LIMIT as u64, &[8192], 3 * LIMIT);
    m.fill();
    for at in m.resident() {
        m.p.space.pages[at].pinned = true;
    }
    let away: Vec<_> = swapped(&m).into_iter().take(200).collect();
    // The limit yields to the first ones, as nothing can be moved. From then on these make room for each other,
    // wherever the sweep is.
    for &at in &away {
        m.touch(at, None);
    }
    let above = m.sys.charged.saturating_sub(LIMIT as u64);
    assert!(above <= 20, "{above} pages above the limit");
    for page in &mut m.p.space.pages {
        page.pinned = false;
    }
    m.end();
}

/// Nor recently faulted pages: the limit yields a moment after each fault, and the driver knows when to look.
#[test]
fn a_fault_waits_a_moment_if_no_page_can_be_moved() {
    const LIMIT: usize = 1500;
    let mut m = Machine::new(LIMIT as u64, &[8192], 3 * LIMIT);
    m.fill();
    let away: Vec<_> = swapped(&m).into_iter().take(60).collect();
    for (n, &at) in away.iter().enumerate() {
        for at in m.resident() {
            m.p.space.pages[at].pinned = true;
        }
        if n < 30 {
            m.touch(at, None);
            continue;
        }
        // The time that the thread needs to touch its next page.
        m.sys.now += 1_000;
        let begun = m.sys.now;
        touch(&mut m, 0, at);
        while waiting(&m) > 0 {
            while !m.p.space.flights.is_empty() {
                m.p.complete(&mut m.sys, 0);
            }
            m.p.run(&mut m.sys);
            if waiting(&m) > 0 && m.p.space.flights.is_empty() {
                let left = m.p.mm.moment_left(m.sys.now);
                m.sys.now += left.expect("it would wait until the driver looks by itself");
            }
        }
        let took = m.sys.now - begun;
        assert!(took < 500_000, "{took} ns");
    }
    for page in &mut m.p.space.pages {
        page.pinned = false;
    }
    m.end();
}

/// An I/O that never ends is no reason to wait for ever: the limit yields, but not before long.
#[test]
fn beside_an_io_that_does_not_end_the_limit_yields() {
    let mut m = Machine::new(48, &[512], 200);
    m.fill();
    let wanted = swapped(&m)[0];
    m.p.touch(&mut m.sys, 1, wanted, None);
    m.p.read_message(&mut m.sys, 0, 0);
    m.p.run(&mut m.sys);
    assert!(!m.p.space.flights.is_empty(), "a read that will not end");
    // No mapped page can be evicted, and the pages in frames are for other processes.
    for at in m.resident() {
        m.p.space.pages[at].locked = true;
    }
    m.sys.charged += 60;
    m.sys.excuse();
    for _ in 0..200 {
        m.p.run(&mut m.sys);
    }
    touch(&mut m, 0, wanted + 1);
    let passed = |m: &Machine| m.told(|notice| matches!(notice, Notice::LimitPassed));
    m.sys.now += 1_000_000_000;
    m.p.run(&mut m.sys);
    assert_eq!((passed(&m), waiting(&m)), (0, 2));
    m.sys.now += 9_000_000_000;
    m.p.run(&mut m.sys);
    assert_eq!(passed(&m), 1);
    for at in m.resident() {
        m.p.space.pages[at].locked = false;
    }
    m.sys.charged -= 60;
    m.rest();
    m.end();
}

/// The most pages that one run evicted while a thread waited for a read.
fn moved_out_at_a_time(ends_show: bool) -> usize {
    let mut m = Machine::new(2048, &[8192], 8192);
    // No neighbours: each is moved by itself.
    for at in (0..8192).step_by(2) {
        m.touch(at, Some(1000 + at as u64));
    }
    m.sys.ends_show = ends_show;
    let (mut most, away) = (0, swapped(&m));
    for &at in away.iter().take(500) {
        if m.p.touch(&mut m.sys, 0, at, None) != Access::Waits {
            continue;
        }
        m.p.read_message(&mut m.sys, 0, 0);
        while m.p.mm.is_awaited() {
            let before = m.resident().len();
            m.p.run(&mut m.sys);
            most = most.max(before - m.resident().len());
            m.p.complete(&mut m.sys, 0);
        }
        m.rest();
    }
    m.sys.ends_show = false;
    m.rest();
    m.end();
    most
}

#[test]
fn a_read_that_has_ended_does_not_wait_for_pages_that_are_moved_out() {
    let most = moved_out_at_a_time(false);
    assert!(most > 1, "nothing to wait for: {most} pages at a time");
    assert_eq!(moved_out_at_a_time(true), 1);
}

/// A write, however short, costs disk time for which the next read waits.
#[test]
fn writes_are_gathered_while_pages_are_missed_at_random() {
    const PAGES: usize = 32_768;
    let config = Config {
        frames: 4096,
        ..Machine::new(48, &[512], 8).p.setup.config
    };
    let mut m = Machine::configured(config, PAGES as u64 / 2, &[65_536], PAGES);
    m.fill();
    let before = m.p.mm.stats.clone();
    for n in 0..8000 {
        let at = foreswap_model::mix(n) as usize % PAGES;
        m.touch(at, Some(n));
    }
    let pages = m.p.mm.stats.swap_out - before.swap_out;
    let ios = m.p.mm.stats.swap_write_ios - before.swap_write_ios;
    assert!(pages > 2000, "{pages} pages written");
    assert!(pages > 64 * ios, "{pages} pages in {ios} writes");
    m.end();
}
