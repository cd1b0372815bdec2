//! Random programs. `FORESWAP_SEED=<n>` replays one, `FORESWAP_SEEDS=<n>` sets how many are run, `FORESWAP_FIRST=<n>`
//! the first one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::scenario::{Scenario, Trace};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Run one seed; when it fails, say how.
fn replay(seed: u64, actions: u64) -> Result<Trace, String> {
    live(|| Scenario::new(seed, actions))
}

fn live(scenario: impl FnOnce() -> Scenario) -> Result<Trace, String> {
    catch_unwind(AssertUnwindSafe(|| scenario().run())).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_default()
    })
}

#[test]
fn every_page_reads_as_last_written() {
    let sum = live_all(800, |seed| Scenario::new(seed, 4_000));
    assert_eq!((sum.huge_in, sum.huge_out), (0, 0));
}

#[test]
fn every_page_of_huge_ones_reads_as_last_written() {
    let sum = live_all(120, |seed| Scenario::huge(seed, 12_000));
    let alone = number("FORESWAP_SEED").is_some();
    assert!(alone || sum.huge_in > 0 && sum.huge_out > 0, "{sum:?}");
}

fn live_all(count: u64, scenario: impl Fn(u64) -> Scenario) -> Trace {
    let seeds = match number("FORESWAP_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FORESWAP_FIRST").unwrap_or(1);
            first..first + number("FORESWAP_SEEDS").unwrap_or(count)
        }
    };
    let began = std::time::Instant::now();
    let mut sum = Trace::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match live(|| scenario(seed)) {
            Ok(trace) => sum.add(&trace),
            Err(what) => {
                println!("replay with FORESWAP_SEED={seed}: {what}");
                failed.push(seed);
            }
        }
    }
    let rate = sum.steps as f64 / began.elapsed().as_secs_f64();
    println!("{sum:?}, {rate:.0} steps/s");
    assert!(failed.is_empty(), "seeds failed: {failed:?}");
    sum
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    for seed in [3, 17, 4711] {
        let first = replay(seed, 1_000).unwrap();
        assert_eq!(first, replay(seed, 1_000).unwrap());
        assert_ne!(first.hash, replay(seed + 1, 1_000).unwrap().hash);
    }
}
