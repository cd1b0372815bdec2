//! Huge pages on the modelled machine: whole at eviction and read where the pattern justifies it, page by page where it
//! does not.

use foreswap_core::readahead::Policy;
use foreswap_core::stats::Stats;
use foreswap_core::{Config, Entry, ReclaimPolicy, Swapoff, Thp};
use foreswap_model::Access;

use super::directed::Machine;

pub const UNIT: usize = 512;
pub const PAGES: usize = 40 * UNIT;
/// Faults until a stream is confirmed, and in a leaf of small pages.
const BEGINNING: u64 = 40;
/// The most faults of a scan: at most 1.1 for each unit, and those of its beginning.
const FAULTS: u64 = (PAGES / UNIT * 11 / 10) as u64 + BEGINNING;
pub const LIMIT: u64 = 16 * UNIT as u64;

fn machine(thp: Thp) -> Machine {
    machine_with(thp, &[65_536])
}

pub fn machine_with(thp: Thp, areas: &[u32]) -> Machine {
    let config = Config {
        frames: 4 * UNIT as u32,
        depth: 128,
        readahead: Policy::Streams(UNIT as u32),
        reclaim: ReclaimPolicy::default(),
        full_timeout: 1_000_000,
        first_touch: 256,
        swapoff: Swapoff::Stream,
        thp,
        clusters: 8,
    };
    let mut m = Machine::configured(config, LIMIT, areas, PAGES);
    m.p.space.depth = 128;
    m
}

/// A machine filled in order, more than twice its memory.
pub fn filled(thp: Thp) -> Machine {
    let mut m = machine(thp);
    m.fill();
    pause(&mut m);
    m
}

/// Long enough for streams to lose their share of the memory.
pub fn pause(m: &mut Machine) {
    m.rest();
    m.sys.now += 1_000_000_000;
}

/// Touch `pages` in order, and check each; returns the growth of the counters.
pub fn touch_all(m: &mut Machine, pages: impl IntoIterator<Item = usize>) -> Stats {
    let before = m.p.mm.stats.clone();
    for at in pages {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    let after = m.p.mm.stats.clone();
    Stats {
        faults_major: after.faults_major - before.faults_major,
        faults_minor: after.faults_minor - before.faults_minor,
        swap_in: after.swap_in - before.swap_in,
        swap_out: after.swap_out - before.swap_out,
        huge_swap_in: after.huge_swap_in - before.huge_swap_in,
        huge_swap_out: after.huge_swap_out - before.huge_swap_out,
        huge_splits: after.huge_splits - before.huge_splits,
        ..Stats::default()
    }
}

/// A random page, in no order that could be predicted.
fn scattered(n: u64) -> usize {
    foreswap_model::mix(n) as usize % PAGES
}

fn assert_whole(stats: &Stats, pages: usize) {
    let faults = stats.faults_major + stats.faults_minor;
    assert!(faults <= FAULTS, "{faults} faults, at most {FAULTS}");
    let units = (pages / UNIT) as u64;
    assert!(
        stats.huge_swap_in * 10 >= units * 7,
        "{} of {units}",
        stats.huge_swap_in
    );
    assert_eq!(stats.huge_splits, 0);
}

/// The first touches of a fill map single pages, until they are seen to be in order.
#[test]
fn the_first_leaf_of_a_filling_is_evicted_as_a_huge_page() {
    let mut m = machine(Thp::Adaptive);
    let first = first_unit(&m);
    for at in first..PAGES {
        m.touch(at, Some(1000 + at as u64));
    }
    pause(&mut m);
    let slots: Vec<u32> = (first..first + UNIT)
        .filter_map(|at| match m.p.mm.entry(m.p.space.vpn(at)) {
            Entry::Swapped { slot, .. } => Some(slot.index),
            _ => None,
        })
        .collect();
    assert_eq!(slots.len(), UNIT);
    assert!(slots.is_sorted_by(|a, b| a + 1 == *b), "{slots:?}");
    assert_eq!(slots[0] as usize % UNIT, 0);
    m.end();
}

#[test]
fn a_fill_goes_out_in_whole_units() {
    let m = filled(Thp::Adaptive);
    let stats = &m.p.mm.stats;
    let out = stats.swap_out / UNIT as u64;
    assert!(out > 20, "{out} units left");
    assert!(
        stats.huge_swap_out * 10 >= out * 8,
        "{} of {out}",
        stats.huge_swap_out
    );
    assert!(
        stats.faults_zero < 100,
        "{} first touches",
        stats.faults_zero
    );
    assert_eq!(stats.huge_splits, 0);
    m.end();
}

/// A fill in order takes one unit at a time, and the disk should have one to write at any time. Reclaim begins when the
/// first of the units kept ready is taken, and does not replace units in writeback once more.
#[test]
fn the_disk_writes_while_units_are_taken() {
    const MEMORY: usize = 40 * UNIT;
    const KEPT: usize = 5 * UNIT;
    let config = Config {
        frames: 16 * UNIT as u32,
        clusters: 32,
        ..machine(Thp::Adaptive).p.setup.config
    };
    let mut m = Machine::configured(config, MEMORY as u64, &[65_536], 2 * MEMORY);
    m.p.space.depth = 128;
    let writing = |m: &Machine| {
        let flights = m.p.space.flights.iter();
        flights.map(|flight| flight.frames.len()).sum::<usize>()
    };
    let mut begun = None;
    for at in 0..2 * MEMORY {
        let value = Some(1000 + at as u64);
        if m.p.touch(&mut m.sys, 0, at, value) == Access::Waits {
            m.rounds_without_io();
        }
        if begun.is_none() && writing(&m) > 0 {
            begun = Some((at, writing(&m)));
        }
        if m.p.threads[0].is_some() {
            break;
        }
    }
    let (begun, first) = begun.unwrap();
    assert!(begun < MEMORY - KEPT + UNIT, "after {begun} pages");
    assert!(first <= 2 * UNIT, "{first} pages at once");
    // The thread waits, and all memory that is not mapped is in flight.
    assert!(m.p.threads[0].is_some());
    let out = MEMORY - m.p.mm.mapped() as usize;
    assert!(out <= 2 * KEPT + 3 * UNIT, "{out} pages in flight");
    m.rest();
    assert_eq!(m.p.mm.stats.huge_splits, 0);
    m.end();
}

/// Pages of each I/O in flight.
fn given(m: &Machine) -> impl Iterator<Item = usize> {
    let flights = m.p.space.flights.iter();
    let ios = flights.filter(|flight| flight.slot.is_some());
    ios.map(|flight| flight.frames.len())
}

/// Another process has random faults, each of which the disk serves after all earlier I/O. A scan submits little at a
/// time, even for its own waiting thread, and its huge pages are still read whole.
#[test]
fn a_scan_leaves_the_disk_to_those_who_miss_single_pages() {
    const AT_A_TIME: usize = UNIT / 4 * 3;
    let mut m = filled(Thp::Adaptive);
    m.sys.others_fault_at_random = true;
    let before = m.p.mm.stats.clone();
    for at in 0..PAGES {
        if m.p.touch(&mut m.sys, 0, at, None) != Access::Waits {
            continue;
        }
        loop {
            m.rounds_without_io();
            let given = given(&m).sum::<usize>();
            assert!(given <= AT_A_TIME, "{given} pages at page {at}");
            if m.p.threads[0].is_none() {
                break;
            }
            m.p.complete(&mut m.sys, 0);
        }
    }
    m.rest();
    let after = &m.p.mm.stats;
    assert_eq!(after.huge_splits, before.huge_splits);
    let faults =
        after.faults_major + after.faults_minor - before.faults_major - before.faults_minor;
    assert!(faults <= 2 * FAULTS, "{faults} faults");
    m.sys.others_fault_at_random = false;
    m.end();
}

/// A synchronous read of a single page does not wait for the held back parts of a huge page.
#[test]
fn a_single_page_goes_before_the_rest_of_a_huge_one() {
    let mut m = filled(Thp::Adaptive);
    m.sys.others_fault_at_random = true;
    let mut held = false;
    'scan: for at in 0..PAGES / 4 {
        if m.p.touch(&mut m.sys, 0, at, None) != Access::Waits {
            continue;
        }
        loop {
            m.rounds_without_io();
            if m.p.threads[0].is_none() {
                break;
            }
            held = given(&m).sum::<usize>() >= UNIT / 2;
            if held {
                break 'scan;
            }
            m.p.complete(&mut m.sys, 0);
        }
    }
    assert!(held, "nothing was held back");
    let away = |at: &usize| matches!(m.p.mm.entry(m.p.space.vpn(*at)), Entry::Swapped { .. });
    let far = (PAGES / 2..PAGES).find(away).unwrap();
    let before = given(&m).count();
    m.p.touch(&mut m.sys, 1, far, None);
    m.rounds_without_io();
    assert!(given(&m).count() > before, "page {far} waits");
    m.rest();
    m.sys.others_fault_at_random = false;
    m.end();
}

/// The kernel releases a frame a moment after it has reported the end of its I/O. A unit that was read whole is not
/// split for that, neither for a thread that waits nor by swapoff.
#[test]
fn frames_that_the_kernel_still_holds_are_waited_for() {
    for lingers in [1, 5] {
        let mut m = machine_with(Thp::Adaptive, &[65_536, 65_536]);
        m.p.space.lingers = lingers;
        m.fill();
        pause(&mut m);
        let stats = touch_all(&mut m, 0..PAGES);
        // A page that could not be mapped ahead of its touch has its own fault.
        let faults = stats.faults_major + stats.faults_minor;
        assert!(faults <= 2 * FAULTS, "{faults} faults");
        let limit = (PAGES + 4 * UNIT) as u64;
        m.sys.limit = limit;
        m.p.mm.on_limit(limit);
        emptied(&mut m);
        assert!(m.p.mm.stats.huge_drained >= 20);
        assert_eq!(m.p.mm.stats.huge_splits, 0);
        m.end();
    }
}

#[test]
fn scans_come_in_whole_units_and_clean_ones_go_without_a_write() {
    for helpers in [0, 1, 3] {
        scans_come_in_whole_units(helpers);
    }
}

fn scans_come_in_whole_units(helpers: usize) {
    let mut m = filled(Thp::Adaptive);
    m.p.space.helpers = helpers;
    let forward = touch_all(&mut m, 0..PAGES);
    assert_whole(&forward, PAGES - LIMIT as usize);
    pause(&mut m);
    let reverse = touch_all(&mut m, (0..PAGES).rev());
    assert_whole(&reverse, PAGES - LIMIT as usize);
    pause(&mut m);
    let again = touch_all(&mut m, 0..PAGES);
    assert_whole(&again, PAGES - LIMIT as usize);
    pause(&mut m);
    let again = touch_all(&mut m, 0..PAGES);
    // Pages that were never evicted before, or lay in pieces.
    assert!(
        again.swap_out <= 3 * UNIT as u64,
        "{} written",
        again.swap_out
    );
    m.end();
}

/// Huge pages in frames are touched once each, a huge page apart. That is no stride: readahead along it would read one
/// page of each huge page, and the rest of it in pieces.
#[test]
fn a_scan_over_huge_pages_in_frames_goes_on_in_huge_pages() {
    let mut m = filled_with_units_in_frames();
    let away = units(&m, |entry| matches!(entry, Entry::Swapped { .. }));
    let reverse = touch_all(&mut m, (0..FILLED).rev());
    // The unit in which the scan is found is read in pieces.
    let whole = reverse.huge_swap_in as usize;
    assert!(whole + 1 >= away, "{whole} of {away} whole");
    m.end();
}

/// A program that touches one page in each unit is predicted where pages are read one by one.
#[test]
fn steps_over_huge_pages_read_single_pages_ahead() {
    let mut m = filled_with_units_in_frames();
    let away = units(&m, |entry| matches!(entry, Entry::Swapped { .. })) as u64;
    let stats = touch_all(&mut m, (0..FILLED).rev().step_by(UNIT));
    assert_eq!(stats.huge_swap_in, 0);
    assert!(stats.swap_in <= 2 * away, "{} of {away}", stats.swap_in);
    assert!(
        stats.faults_major * 2 < away,
        "{} major",
        stats.faults_major
    );
    m.end();
}

const FILLED: usize = 80 * UNIT;

/// Twice its memory was just filled in order: some of the last huge pages are in frames, and in no page table.
fn filled_with_units_in_frames() -> Machine {
    let config = Config {
        frames: 16 * UNIT as u32,
        clusters: 16,
        ..machine(Thp::Adaptive).p.setup.config
    };
    let mut m = Machine::configured(config, FILLED as u64 / 2, &[65_536], FILLED);
    m.p.space.depth = 128;
    m.fill();
    let in_frames = units(&m, |entry| matches!(entry, Entry::Cached(_)));
    assert!(in_frames >= 4, "{in_frames} huge pages in frames");
    m
}

/// How many units consist of pages like this.
fn units(m: &Machine, is: fn(&Entry) -> bool) -> usize {
    let entry = |at: usize| m.p.mm.entry(m.p.space.vpn(at));
    let whole = |&unit: &usize| (unit..unit + UNIT).all(|at| is(&entry(at)));
    let starts = (first_unit(m)..=FILLED - UNIT).step_by(UNIT);
    starts.filter(whole).count()
}

/// The first page that begins a unit.
fn first_unit(m: &Machine) -> usize {
    let begins = |at: &usize| m.p.space.vpn(*at).0.is_multiple_of(UNIT as u64);
    (0..UNIT).find(begins).expect("every 512th page does")
}

#[test]
fn scattered_touches_read_single_pages() {
    let mut m = filled(Thp::Adaptive);
    let scattered = (0..400).map(scattered);
    let stats = touch_all(&mut m, scattered);
    assert!(
        stats.swap_in <= 4 * stats.faults_major,
        "{stats_in} read",
        stats_in = stats.swap_in
    );
    assert_eq!(stats.huge_swap_in, 0);
    m.end();
}

/// Where faults are at random, the pages of huge pages go one by one, those that nobody touches.
#[test]
fn huge_pages_that_nobody_touches_make_room_for_random_misses() {
    let mut m = filled(Thp::Adaptive);
    m.p.space.helpers = 1;
    let before = m.resident();
    let mut there = vec![false; PAGES];
    before.iter().for_each(|&at| there[at] = true);
    let away = (0..).map(scattered).filter(|&at| !there[at]);
    for at in away.take(8000) {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    let stay = m.resident().iter().filter(|&&at| there[at]).count();
    assert!(stay * 4 <= before.len(), "{stay} of {} stay", before.len());
    m.end();
}

/// A scan stops, and leaves huge pages that were read ahead of it. They do not stay for ever when other pages are missed.
#[test]
fn huge_pages_that_a_scan_did_not_reach_make_room_for_random_misses() {
    let mut m = filled(Thp::Adaptive);
    touch_all(&mut m, 0..PAGES / 4);
    let ahead = |m: &Machine| {
        let cached = |at: usize| matches!(m.p.mm.entry(m.p.space.vpn(at)), Entry::Cached(_));
        let starts = (first_unit(m)..=PAGES - UNIT).step_by(UNIT);
        starts
            .filter(|&unit| (unit..unit + UNIT).all(cached))
            .count()
    };
    let left = ahead(&m);
    assert!(left > 0, "nothing was read ahead");
    let elsewhere = (0..).map(scattered).filter(|&at| at >= PAGES / 2);
    touch_all(&mut m, elsewhere.take(4 * LIMIT as usize));
    assert_eq!(ahead(&m), 0, "of {left} huge pages");
    m.end();
}

/// If parts of a leaf are in memory, a scan is seen with gaps, some of which look like strides. The reads of those
/// streams must not hide the scan.
#[test]
fn memory_touched_in_order_again_becomes_huge_again() {
    for (seed, count) in [(0, 100), (4, 100), (5, 300), (7, 2000)] {
        let mut m = filled(Thp::Adaptive);
        touch_all(&mut m, (0..count).map(|n| scattered(n + seed * 10_000)));
        let mut faults = 0;
        for scan in 0..7 {
            pause(&mut m);
            let stats = touch_all(&mut m, 0..PAGES);
            if scan > 1 {
                let read = stats.swap_in as usize;
                // A part of the pages that the previous scan read is still there when this one begins.
                assert!(read * 10 <= PAGES * 9, "scan {scan} reads {read} pages");
                let whole = stats.huge_swap_in as usize * UNIT;
                assert!(
                    whole * 10 >= (PAGES - LIMIT as usize) * 7,
                    "{whole} pages in scan {scan}"
                );
                assert_eq!(stats.huge_splits, 0, "scan {scan}");
            }
            if scan > 1 {
                faults += stats.faults_major + stats.faults_minor;
            }
        }
        // A unit that came page by page would be 512 faults.
        assert!(faults <= 5 * FAULTS, "{faults} faults in five scans");
        m.end();
    }
}

#[test]
fn a_page_in_each_unit_takes_no_more_memory_than_it_needs() {
    let mut m = machine(Thp::Adaptive);
    for unit in 0..PAGES / UNIT {
        m.touch(unit * UNIT + 7, Some(1 + unit as u64));
    }
    assert!(m.p.mm.mapped() <= 3 * (PAGES / UNIT) as u64);
    m.end();
}

#[test]
fn always_maps_and_reads_whole_units_at_the_first_touch() {
    let mut m = machine(Thp::Always);
    m.touch(5 * UNIT + 77, Some(1));
    assert_eq!(m.p.mm.mapped(), UNIT as u64);
    m.end();
}

#[test]
fn never_does_without() {
    let m = filled(Thp::Never);
    let stats = &m.p.mm.stats;
    assert_eq!((stats.huge_swap_in, stats.huge_swap_out), (0, 0));
    m.end();
}

#[test]
fn a_discard_of_a_part_splits_and_the_rest_stays() {
    let mut m = filled(Thp::Adaptive);
    touch_all(&mut m, 20 * UNIT..24 * UNIT);
    m.rest();
    m.p.discard(22 * UNIT + 10..22 * UNIT + 20);
    m.rest();
    touch_all(&mut m, 22 * UNIT..22 * UNIT + 10);
    assert_eq!(m.touch(22 * UNIT + 15, None), Some(0));
    touch_all(&mut m, 22 * UNIT + 20..23 * UNIT);
    assert_eq!(m.p.mm.stats.huge_splits, 1);
    m.end();
}

/// Memory that cannot be moved is not made huge pages again at each pass of reclaim.
#[test]
fn immovable_pages_are_not_collapsed_repeatedly() {
    let mut m = filled(Thp::Always);
    let before = m.p.space.collapsed;
    for n in 0..200 {
        for page in &mut m.p.space.pages {
            page.locked = page.present.is_some();
        }
        touch_all(&mut m, [scattered(n)]);
    }
    let made = m.p.space.collapsed - before;
    assert!(made <= 8, "{made} huge pages were made of locked memory");
    for page in &mut m.p.space.pages {
        page.locked = false;
    }
    m.end();
}

/// Everything is emptied from area 0 on, in rounds of the driver.
pub fn emptied(m: &mut Machine) {
    m.sys.begin_drain(0);
    m.p.call(&mut m.sys, |mm, w| mm.drain(w, 0));
    for _ in 0..4 {
        m.p.round(&mut m.sys, true);
    }
    // The last fault was long ago.
    m.sys.now += 1_000_000_000;
    for _ in 0..20_000 {
        m.p.round(&mut m.sys, true);
        if m.sys.areas[0].used == 0 && !m.p.mm.has_io(0) {
            return;
        }
    }
    panic!("the area is not empty: {}", m.p.state(&m.sys));
}
