//! What streams read, beyond what the tests of `tests/model` show from outside.

use super::*;

/// A scan that has touched the pages below `to`, and the streams that follow it.
fn scan(to: u64) -> (Streams, StreamId) {
    let (mut streams, mut recent) = (Streams::new(512), Recent::default());
    streams.set_memory(1024);
    let mut found = None;
    for page in 0..to {
        let next = streams.advance(Vpn(page), page);
        let address = Vpn(page).address();
        found = next.or_else(|| streams.find(&mut recent, 2, address, page));
    }
    (streams, found.expect("a scan is a stream"))
}

/// `count` pairs of neighbours far away.
fn touch_by_chance(streams: &mut Streams, count: u64, now: Nanos) {
    for n in 0..count {
        let mut recent = Recent::default();
        for page in [1 << 30 | n << 12, 1 << 30 | n << 12 | 1] {
            streams.find(&mut recent, 2, Vpn(page).address(), now + n);
        }
    }
}

#[test]
fn chance_replaces_no_scan_that_goes_on() {
    let (mut streams, id) = scan(100);
    touch_by_chance(&mut streams, 1000, 1000);
    assert_eq!(streams.advance(Vpn(100), 5000), Some(id));
    streams.on_evicted(512);
    touch_by_chance(&mut streams, 1000, 6000);
    assert_eq!(streams.advance(Vpn(101), 9000), None, "it has ended");
}

#[test]
fn most_pages_of_a_scan_tell_whether_it_fits() {
    let (mut streams, id) = scan(4000);
    let bounds = Bounds::new(1 << 20, false);
    assert!(streams.behind(&bounds, 64).is_none(), "it is not long");
    streams.reads(id, 3000, true);
    streams.reads(id, 512, false);
    assert!(streams.behind(&bounds, 64).is_some(), "it does not fit");
    streams.reads(id, 2488, false);
    assert!(streams.behind(&bounds, 64).is_none(), "it fits");
}

/// A scan that takes `pace` for each page and has the store of `pages` in `horizon`: how far ahead it is read.
fn ahead(pace: Nanos, pages: u64, horizon: Nanos) -> u64 {
    let (mut streams, mut recent) = (Streams::new(32), Recent::default());
    streams.set_memory(1 << 20);
    let (mut found, mut now) = (None, 0);
    for page in 0..100_000 {
        now += pace;
        let next = streams.advance(Vpn(page), now);
        let address = Vpn(page).address();
        found = next.or_else(|| streams.find(&mut recent, 2, address, now));
    }
    let id = found.expect("a scan is a stream");
    streams.set_pipe(id, StoreId(0), pages, horizon, now);
    streams.end(id.0, streams.share(now)) - 100_000
}

#[test]
fn a_scan_has_as_much_ahead_as_fills_the_pipe_and_as_its_program_uses_up() {
    assert_eq!(ahead(1_000, 4_000, 60_000_000), 32 + 4_000);
    assert_eq!(ahead(100_000, 4_000, 8_000_000), 32 + 80, "a slow program");
}

#[test]
fn only_streams_of_one_store_share_its_pipe() {
    let (mut streams, mut recent) = (Streams::new(32), Recent::default());
    streams.set_memory(1 << 20);
    let mut ids = [StreamId(0); 3];
    for touch in 0..1000 {
        for (n, id) in ids.iter_mut().enumerate() {
            let page = Vpn(n as u64 * 10_000 + touch);
            let next = streams.advance(page, touch);
            let found = next.or_else(|| streams.find(&mut recent, 2, page.address(), touch));
            *id = found.unwrap_or(*id);
        }
    }
    for _ in 0..2 {
        for (id, store) in ids.into_iter().zip([0, 1, 1]) {
            streams.set_pipe(id, StoreId(store), 600, 1 << 40, 1000);
        }
    }
    assert_eq!(ids.map(|id| streams.all[id.0].pipe), [600, 300, 300]);
}

/// The grids of the streams that are left after these touches.
fn grids(pages: impl IntoIterator<Item = u64>) -> Vec<Grid> {
    let (mut streams, mut recent) = (Streams::new(32), Recent::default());
    streams.set_memory(1 << 20);
    for (now, page) in (1..).zip(pages) {
        let next = streams.advance(Vpn(page), now);
        let address = Vpn(page).address();
        let found = next.or_else(|| streams.find(&mut recent, 2, address, now));
        if let Some(id) = found {
            // Its pages are read, and not mapped: each touch is seen.
            streams.passed(id, 16, 0);
        }
    }
    let lasting = streams.all.iter().filter(|stream| stream.last > 0);
    lasting.map(|stream| stream.grid).collect()
}

#[test]
fn streams_that_take_turns_side_by_side_are_one() {
    // No page is beside the one before it, or it would be a scan at first.
    let rows = (0..20).flat_map(|row| [0, 2].map(|page| 1000 + row * 8 + page));
    assert_eq!(grids(rows).len(), 2, "a page is between");
    let strided = |pages: u64| (0..20).flat_map(move |row| (0..pages).map(move |n| (row, n)));
    for (pages, stride) in [(2, 64), (3, 64), (5, 64)] {
        let found = grids(strided(pages).map(|(row, n)| 1000 + row * stride + n));
        let rows = found.iter().filter(|grid| grid.row == pages);
        assert_eq!(rows.count(), 1, "{found:?}");
    }
}

#[test]
fn streams_side_by_side_that_do_not_take_turns_stay_two() {
    let apart = (0..40).flat_map(|row| [row * 64, (row + 3) * 64 + 1].map(|page| 1000 + page));
    let found = grids(apart);
    assert!(found.iter().all(|grid| grid.row == 1), "{found:?}");
}

#[test]
fn the_length_of_runs_is_expected_of_runs_without_gaps_only() {
    for (stride, expected) in [(1, Some(700)), (-1, None), (7, None)] {
        let (mut streams, mut recent) = (Streams::new(32), Recent::default());
        let mut touch = |n: i64| {
            let address = Vpn(5000).plus(0).0.wrapping_add_signed(n * stride) << 12;
            streams.find(&mut recent, 2, address, n as u64)
        };
        touch(0);
        let id = touch(1).or_else(|| touch(2)).expect("a stream");
        assert!(!streams.is_new(id), "its second page was touched");
        streams.expect_end(id, Some(700));
        assert_eq!(streams.all[id.0].run_end, expected, "stride {stride}");
    }
}

#[test]
fn a_run_that_was_foretold_begins_with_a_touch_that_nobody_foresaw() {
    let mut streams = Streams::new(32);
    let id = streams.foretell(Vpn(100), 64, 1);
    assert!(streams.is_new(id));
    assert_eq!(streams.advance(Vpn(101), 2), Some(id));
    assert!(!streams.is_new(id));
}
