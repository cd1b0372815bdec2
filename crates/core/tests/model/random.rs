//! Random programs on random machines (`foreswap-model`), mostly by single actions of threads, driver and devices in any
//! order. `FORESWAP_SEED=<n>` replays one seed, `FORESWAP_SEEDS=<n>` sets how many are run, `FORESWAP_FIRST=<n>` the
//! first one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use foreswap_model::{Chance, Machine, Plan, Rates, Steps, Summary};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn small(seed: u64) -> Plan {
    let chance = &mut Chance::new(seed);
    let plan = Plan::draw_small(chance);
    let plan = in_any_order(plan, 980);
    Plan {
        processes: 3,
        check_every: 4,
        rates: Rates {
            changes: chance.pick(&[0, 10, 60]),
            rare: chance.pick(&[0, 5, 30]),
            ..plan.rates
        },
        ..plan
    }
}

fn huge(seed: u64) -> Plan {
    let chance = &mut Chance::new(seed);
    let plan = Plan::draw_small(chance).with_huge_pages(chance);
    in_any_order(plan, 960)
}

/// With `single` actions of 1000.
fn in_any_order(plan: Plan, single: u32) -> Plan {
    Plan {
        check_every: 1 + plan.pages / 64,
        rates: Rates {
            single,
            ..plan.rates
        },
        ..plan
    }
}

/// Run one seed; when it fails, say how.
fn live(seed: u64, plan: Plan, steps: usize) -> Result<Summary, String> {
    let run = || {
        let steps = Steps::new(seed, &plan).take(steps);
        let mut machine = Machine::new(plan);
        let mut chance = Chance::new(seed << 32);
        machine.sys.ends_show = chance.pick(&[false, true]);
        // Few pages are same-filled, or every fourth one.
        machine.sys.ordinary = chance.pick(&[63, 3]);
        for step in steps {
            machine.step(&step);
        }
        machine.end()
    };
    catch_unwind(AssertUnwindSafe(run)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        text.unwrap_or_default()
    })
}

#[test]
fn every_page_reads_as_last_written() {
    let sum = live_all(800, 4_000, small);
    assert_eq!(sum.huge, 0);
}

#[test]
fn every_page_of_huge_ones_reads_as_last_written() {
    let sum = live_all(120, 8_000, huge);
    let alone = number("FORESWAP_SEED").is_some();
    assert!(alone || sum.huge > 0, "{sum:?}");
}

fn live_all(count: u64, steps: usize, plan: impl Fn(u64) -> Plan) -> Summary {
    let seeds = match number("FORESWAP_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("FORESWAP_FIRST").unwrap_or(1);
            first..first + number("FORESWAP_SEEDS").unwrap_or(count)
        }
    };
    let began = std::time::Instant::now();
    let mut sum = Summary::default();
    let mut failed = Vec::new();
    for seed in seeds {
        match live(seed, plan(seed), steps) {
            Ok(summary) => sum.add(&summary),
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
        let run = |seed| live(seed, small(seed), 1_000).unwrap();
        let first = run(seed);
        assert_eq!(first, run(seed));
        assert_ne!(first.trace, run(seed + 1).trace);
    }
}
