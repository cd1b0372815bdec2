//! Streams on the modelled machine: the faults and reads of each access pattern, and whether the reported hits are
//! true.

use foreswap_core::readahead::Policy;
use foreswap_core::stats::Stats;

use super::directed::Machine;

const PAGES: usize = 12_000;
const LIMIT: u64 = 4_000;

/// A filled machine, four times larger than its memory.
fn filled() -> Machine {
    let mut m = Machine::of(Policy::Streams(512), 4_096, LIMIT, &[32_768], PAGES);
    m.p.space.depth = 128;
    m.fill();
    pause(&mut m);
    m
}

/// Long enough for streams to lose their share of the memory.
fn pause(m: &mut Machine) {
    m.rest();
    m.sys.now += 1_000_000_000;
}

/// Touch `pages` in order, and check each; returns the growth of the counters.
fn touch_all(m: &mut Machine, pages: impl IntoIterator<Item = usize>) -> Stats {
    let before = m.p.mm.stats.clone();
    for at in pages {
        assert_eq!(m.touch(at, None), Some(1000 + at as u64));
    }
    let after = m.p.mm.stats.clone();
    let mut ahead = after.ahead;
    ahead.pages -= before.ahead.pages;
    ahead.used -= before.ahead.used;
    ahead.unseen -= before.ahead.unseen;
    ahead.marks -= before.ahead.marks;
    ahead.marks_used -= before.ahead.marks_used;
    Stats {
        faults_major: after.faults_major - before.faults_major,
        faults_minor: after.faults_minor - before.faults_minor,
        swap_in: after.swap_in - before.swap_in,
        swap_out: after.swap_out - before.swap_out,
        ahead,
        ..Stats::default()
    }
}

/// Few faults, nothing read in vain, nearly every page read ahead counted as used.
fn assert_foreseen(stats: &Stats, touched: u64) {
    let faults = stats.faults_major + stats.faults_minor;
    assert!(faults * 40 < touched, "{faults} faults for {touched} pages");
    let excess = stats.swap_in.saturating_sub(touched);
    assert!(
        excess * 20 < touched,
        "{} read for {touched}",
        stats.swap_in
    );
    let (hits, pages) = (stats.ahead.hits(), stats.ahead.pages);
    assert!(
        hits * 20 > pages * 19,
        "{hits} hits of {pages}, {:?}",
        stats.ahead
    );
}

#[test]
fn forward() {
    let mut m = filled();
    let stats = touch_all(&mut m, 0..PAGES);
    assert_foreseen(&stats, PAGES as u64);
    pause(&mut m);
    let again = touch_all(&mut m, 0..PAGES);
    assert_foreseen(&again, PAGES as u64);
    let written = m.p.mm.stats.swap_out;
    assert!(written <= PAGES as u64, "{written} writes: clean pages too");
    m.end();
}

#[test]
fn reverse() {
    let mut m = filled();
    touch_all(&mut m, (0..PAGES).rev());
    pause(&mut m);
    let stats = touch_all(&mut m, (0..PAGES).rev());
    assert_foreseen(&stats, PAGES as u64);
    m.end();
}

#[test]
fn every_seventh() {
    let mut m = filled();
    let mut touched = 0;
    let mut sum = Stats::default();
    for first in 0..7 {
        pause(&mut m);
        let stats = touch_all(&mut m, (first..PAGES).step_by(7));
        touched += (first..PAGES).step_by(7).count() as u64;
        sum.faults_major += stats.faults_major;
        sum.swap_in += stats.swap_in;
        sum.ahead.add(&stats.ahead);
    }
    let (faults, read) = (sum.faults_major, sum.swap_in);
    assert!(faults * 20 < touched, "{faults} waited, {touched} touched");
    assert!(
        read < touched + touched / 10,
        "{read} read, {touched} touched"
    );
    m.end();
}

/// A matrix with rows of eight pages, by blocks of columns, in both directions: each row is read as one, and nothing between.
#[test]
fn blocks_of_columns() {
    for falls in [false, true] {
        let mut m = filled();
        let mut sum = Stats::default();
        for columns in [0..3, 3..7] {
            let pages = (0..PAGES).filter(|at| columns.contains(&(at % 8)));
            let pages: Vec<usize> = pages.collect();
            pause(&mut m);
            let stats = match falls {
                true => touch_all(&mut m, pages.iter().rev().copied()),
                false => touch_all(&mut m, pages.iter().copied()),
            };
            sum.faults_major += stats.faults_major;
            sum.faults_minor += stats.faults_minor;
            sum.swap_in += stats.swap_in;
            sum.ahead.add(&stats.ahead);
        }
        let touched = PAGES as u64 * 7 / 8;
        let (faults, read) = (sum.faults_major, sum.swap_in);
        assert!(faults * 40 < touched, "{faults} waited, {touched} touched");
        assert!(
            read < touched + touched / 10,
            "{read} read, {touched} touched"
        );
        m.end();
    }
}

#[test]
fn interleaved() {
    for scans in [2, 8] {
        let mut m = filled();
        let part = PAGES / scans;
        let order = (0..part).flat_map(|at| (0..scans).map(move |scan| scan * part + at));
        touch_all(&mut m, order.clone());
        pause(&mut m);
        let stats = touch_all(&mut m, order);
        let faults = stats.faults_major + stats.faults_minor;
        // Eight streams share the pages for readahead: each has some 100 pages here.
        assert!(faults * 14 < PAGES as u64, "{faults} faults, {scans} scans");
        assert!(stats.swap_in < PAGES as u64 * 11 / 10, "{}", stats.swap_in);
        m.end();
    }
}

/// Seed 000's point: touches of a random neighbour must not make a scan lose its window.
#[test]
fn a_random_neighbour_disturbs_nothing() {
    let mut m = filled();
    let half = PAGES / 2;
    let mut state = 1u64;
    let mut random = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        half + (state >> 33) as usize % half
    };
    touch_all(&mut m, 0..half);
    pause(&mut m);
    let (mut scan, mut total) = (Stats::default(), 0);
    for at in 0..half {
        let stats = touch_all(&mut m, [at]);
        scan.faults_major += stats.faults_major;
        scan.faults_minor += stats.faults_minor;
        total += stats.swap_in;
        touch_all(&mut m, [random()]);
    }
    let faults = scan.faults_major + scan.faults_minor;
    assert!(faults * 20 < half as u64, "{faults} faults, {total} pages");
    m.end();
}

#[test]
fn random_touches_read_one_page_each() {
    let mut m = filled();
    let mut state = 7u64;
    let order: Vec<usize> = (0..4_000)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as usize % PAGES
        })
        .collect();
    let stats = touch_all(&mut m, order);
    let excess = stats.swap_in - stats.faults_major;
    // The array is small: a random touch is next to another now and then.
    let faults = stats.faults_major;
    assert!(
        excess * 3 < faults,
        "{excess} read in vain, {faults} faults"
    );
    m.end();
}

/// Runs that break off leave pages unused; the estimate must show that, as far as an estimate can.
#[test]
fn estimated_hits_are_near_the_true_ones() {
    let mut m = filled();
    let mut state = 3u64;
    let mut truth = 0;
    let mut sum = foreswap_core::stats::Ahead::default();
    for _ in 0..60 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let first = (state >> 33) as usize % (PAGES - 700);
        let stats = touch_all(&mut m, first..first + 600);
        // Of the pages read in this run, all except those beyond its end were used: every touched page that was not a
        // fault of its own was read ahead.
        truth += stats.swap_in.min(600) - stats.faults_major.min(stats.swap_in);
        sum.add(&stats.ahead);
    }
    let (hits, pages) = (sum.hits(), sum.pages);
    assert!(pages > truth, "runs that break off waste something");
    let off = hits.abs_diff(truth);
    assert!(
        off * 8 < truth,
        "{hits} hits reported, {truth} true, {pages} read"
    );
    m.end();
}

/// Rows of a matrix whose columns are 21.46 pages: no stride in pages, but one in bytes.
#[test]
fn rows_of_a_matrix() {
    const COLUMN: usize = 87_896;
    let mut m = filled();
    let columns = PAGES * 4096 / COLUMN;
    let (mut touched, mut sum) = (0, Stats::default());
    // A row in each page of the first column.
    for row in (0..COLUMN / 4096).map(|page| page * 4096 + 1000) {
        pause(&mut m);
        for at in (0..columns).map(|column| row + column * COLUMN) {
            m.p.offset = (at % 4096) as u64;
            let stats = touch_all(&mut m, [at / 4096]);
            touched += 1;
            sum.faults_major += stats.faults_major;
            sum.faults_minor += stats.faults_minor;
            sum.swap_in += stats.swap_in;
            sum.ahead.add(&stats.ahead);
        }
    }
    let faults = sum.faults_major + sum.faults_minor;
    assert!(faults * 6 < touched, "{faults} faults, {touched} touched");
    assert!(
        sum.swap_in < touched + touched / 5,
        "{} read, {touched} touched",
        sum.swap_in
    );
    let (hits, pages) = (sum.ahead.hits(), sum.ahead.pages);
    assert!(hits * 10 > pages * 8, "{hits} hits of {pages}");
    m.end();
}

/// A program that reads more than fits again and again finds a part of it in memory.
#[test]
fn a_scan_does_not_push_itself_out() {
    let mut m = filled();
    for _ in 0..3 {
        touch_all(&mut m, 0..PAGES);
        pause(&mut m);
    }
    let stats = touch_all(&mut m, 0..PAGES);
    assert!(stats.swap_in < 11_000, "{} read of {PAGES}", stats.swap_in);
    m.end();
}

/// Pages that are used now and then stay although a scan larger than the memory passes.
#[test]
fn a_scan_leaves_the_working_set() {
    let mut m = filled();
    let hot = 1_000;
    touch_all(&mut m, 0..hot);
    let (mut missed, mut n) = (0, 0);
    for at in hot..PAGES {
        touch_all(&mut m, [at]);
        if at.is_multiple_of(4) {
            // Each hot page about three times.
            n = (n + 389) % hot;
            missed += touch_all(&mut m, [n]).faults_major;
        }
    }
    // Without drop-behind it is twice as many.
    assert!(missed < 150, "{missed} hot pages were read again");
    m.end();
}

/// Memory that fits is read once, however cold the other pages are.
#[test]
fn a_scan_that_fits_takes_the_place_of_cold_pages() {
    let mut m = filled();
    // The rest of the memory holds pages that are not touched any more.
    let mut read = 0;
    for _ in 0..24 {
        pause(&mut m);
        read = touch_all(&mut m, 0..2_200).swap_in;
    }
    assert!(read < 220, "{read} of 2200 pages read again");
    m.end();
}

/// A scan has looked past pages that were mapped. If they are evicted before it gets there, they are still read ahead.
#[test]
fn pages_that_go_out_before_a_scan_are_read_ahead_again() {
    let mut m = filled();
    // The pages in memory after this lie in the way of the next scan, which looks past them.
    touch_all(&mut m, 5_000..8_000);
    pause(&mut m);
    touch_all(&mut m, 3_500..4_990);
    // Others push it out.
    let elsewhere = (0..3_500).map(|n| 8_200 + n * 1_601 % 3_500);
    touch_all(&mut m, elsewhere);
    let stats = touch_all(&mut m, 4_990..8_000);
    let faults = stats.faults_major + stats.faults_minor;
    assert!(faults < 150, "{faults} faults for 3010 pages");
    m.end();
}

/// A page that a scan reaches was just evicted and waits for its write: it is mapped ahead as well.
#[test]
fn pages_that_wait_for_writeback_are_mapped_ahead() {
    let pages = 1_500;
    let mut m = Machine::of(Policy::Streams(512), 4_096, LIMIT, &[32_768], pages);
    m.p.space.depth = 0;
    m.fill();
    m.sys.pressure[0] = LIMIT;
    for _ in 0..20 {
        m.rounds_without_io();
    }
    let left = m.resident().len();
    assert!(left < pages / 8, "{left} were not moved out");
    m.sys.pressure[0] = 0;
    let stats = touch_all(&mut m, 0..pages);
    assert_eq!((stats.faults_major, stats.swap_out), (0, 0));
    assert!(stats.faults_minor < 100, "{} faults", stats.faults_minor);
    m.p.space.depth = 128;
    m.rest();
    assert!(m.read_all().is_empty());
    m.end();
}
