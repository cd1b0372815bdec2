//! Random programs of memory operations, drawn from a printed seed: every page always reads back as last written. The
//! peak is not checked: pages that are write-protected at the moment cannot be evicted. `FORESWAP_E2E_SEED` replays one
//! seed.

use std::time::{Duration, Instant};

use foreswap_e2e::{Job, Managed, full_size, program};

/// Mebibytes; the threads use up to 96 MiB each.
const LIMIT: u64 = 64;

#[track_caller]
fn torture(test: &str, threads: u32, operations: u32, managed: &Managed) {
    let Some(path) = program::compile(test, "torture") else {
        return;
    };
    let replay = std::env::var("FORESWAP_E2E_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let budget = Duration::from_secs(if full_size() { 300 } else { 12 });
    let started = Instant::now();
    let first = replay.unwrap_or_else(|| u64::from(threads) * 1000);
    // A single program may end before a page that went out comes back.
    let mut swapped = [0; 2];
    for seed in first.. {
        println!("{test}: seed {seed}");
        let job = Job::new(&path)
            .args([
                seed.to_string(),
                threads.to_string(),
                operations.to_string(),
            ])
            .timeout(120);
        let outcome = managed.run(&job);
        assert_eq!(
            outcome.code(),
            0,
            "FORESWAP_E2E_SEED={seed}: {}\n{}",
            outcome.text(),
            outcome.stderr
        );
        assert!(outcome.text().ends_with("all as it should be\n"));
        let stats = outcome.stats();
        let both = ["swap_out_bytes", "swap_in_bytes"].map(|name| stats.count(name));
        swapped = [swapped[0] + both[0], swapped[1] + both[1]];
        if replay.is_some() || started.elapsed() > budget {
            break;
        }
    }
    if threads > 1 && replay.is_none() {
        assert!(
            swapped.iter().all(|bytes| *bytes > 0),
            "bytes out and in: {swapped:?}"
        );
    }
}

#[test]
fn one_thread() {
    torture("one_thread", 1, 1500, &Managed::limit(LIMIT));
}

#[test]
fn three_threads() {
    torture("three_threads", 3, 400, &Managed::limit(LIMIT));
}

#[test]
fn six_threads_by_pread_and_pwrite() {
    let managed = Managed::limit(LIMIT).options(["--io", "threads"]);
    torture("six_threads_by_pread_and_pwrite", 6, 200, &managed);
}

#[test]
fn two_threads_without_readahead() {
    let managed = Managed::limit(LIMIT).options(["--readahead", "none"]);
    torture("two_threads_without_readahead", 2, 400, &managed);
}

#[test]
fn two_threads_with_neighbours_by_slot() {
    let managed = Managed::limit(LIMIT).options(["--readahead", "cluster", "--max-window", "64"]);
    torture("two_threads_with_neighbours_by_slot", 2, 400, &managed);
}

#[test]
fn two_threads_along_trends() {
    let managed = Managed::limit(LIMIT).options(["--readahead", "trend"]);
    torture("two_threads_along_trends", 2, 400, &managed);
}

#[test]
fn three_threads_with_huge_pages_wherever_possible() {
    let managed = Managed::limit(LIMIT).options(["--thp", "always"]);
    let name = "three_threads_with_huge_pages_wherever_possible";
    torture(name, 3, 400, &managed);
}

#[test]
fn two_threads_with_the_other_orders_of_eviction() {
    for policy in ["lru", "generations", "s3fifo"] {
        let managed = Managed::limit(LIMIT).options(["--reclaim", policy]);
        torture(
            "two_threads_with_the_other_orders_of_eviction",
            2,
            120,
            &managed,
        );
    }
}
