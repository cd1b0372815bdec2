//! Small programs on the machine.

use foreswap_core::units::PAGE_SIZE;

use super::super::device::Kind;
use super::*;
use crate::trace::Start;

const PAGES: u64 = 8192;

fn setup(memory: u64, readahead: Policy) -> Setup {
    let device = Device::of(Kind::Virtio);
    Setup {
        memory,
        readahead,
        thp: Thp::Never,
        reclaim: ReclaimPolicy::Clock,
        device,
        think: 1000,
        cpus: 0,
        system: System::default(),
        #[cfg(feature = "ablate")]
        heuristics: Default::default(),
    }
}

fn replay(setup: Setup, tasks: &[Vec<Event>]) -> Figures {
    let mut machine = Machine::new(setup);
    let record = |task: usize, event: &Event| Record {
        time: 0,
        task: task as u32,
        event: event.clone(),
    };
    for task in 0..tasks.len() {
        let start = Start {
            space: task as u32,
            pid: 0,
            tid: 0,
            parent: None,
        };
        machine
            .record(&record(task, &Event::Start(start)))
            .expect("replayed");
    }
    let longest = tasks.iter().map(Vec::len).max().unwrap_or(0);
    for n in 0..longest {
        for (task, events) in tasks.iter().enumerate() {
            if let Some(event) = events.get(n) {
                machine.record(&record(task, event)).expect("replayed");
            }
        }
    }
    machine.finish().expect("replayed")
}

fn touch(page: u64) -> Event {
    Event::Touch {
        page: Vpn(page),
        found: Found::Unknown,
        write: false,
    }
}

fn scan(passes: u64) -> Vec<Event> {
    (0..passes).flat_map(|_| (0..PAGES).map(touch)).collect()
}

#[test]
fn pages_that_fit_are_never_read() {
    let figures = replay(setup(2 * PAGES, Policy::Vma(8)), &[scan(3)]);
    assert_eq!(
        (figures.major, figures.read_pages, figures.touches),
        (0, 0, 3 * PAGES)
    );
    assert!(figures.zero < PAGES / 8, "{figures:?}");
    assert_eq!(figures.elapsed, 3 * PAGES * 1000 + figures.waited);
}

#[test]
fn readahead_saves_time_on_a_scan_and_less_memory_costs_some() {
    let time = |memory, policy| replay(setup(memory, policy), &[scan(3)]).elapsed;
    let [none, vma, streams] =
        [Policy::None, Policy::Vma(8), Policy::Streams(512)].map(|policy| time(PAGES / 2, policy));
    assert!(none > vma && vma > streams, "{none} {vma} {streams}");
    assert!(time(2 * PAGES, Policy::Vma(8)) < vma);
    let faults = replay(setup(PAGES / 2, Policy::None), &[scan(3)]);
    // LRU would miss every page of a scan; a second pass finds little.
    assert!(faults.major > PAGES, "{faults:?}");
    assert!(faults.peak <= PAGES / 2);
    assert_eq!(faults.ahead, 0);
}

#[test]
fn tasks_wait_beside_each_other() {
    let figures = |tasks: &[Vec<Event>]| replay(setup(PAGES / 2, Policy::None), tasks);
    let one = figures(&[scan(2)]);
    let two = figures(&[scan(2), scan(2)]);
    assert!(two.major > one.major * 18 / 10);
    assert!(two.elapsed < one.elapsed * 18 / 10, "{two:?} {one:?}");
}

/// The pages of a huge page.
const UNIT: u64 = LEAF_PAGES as u64;

fn with(thp: Thp, memory: u64) -> Setup {
    Setup {
        thp,
        ..setup(memory, Policy::Streams(512))
    }
}

#[test]
fn a_scan_in_huge_pages_faults_about_once_for_each() {
    let (memory, units, passes) = (64 * UNIT, 160, 3);
    let events: Vec<Event> = (0..passes)
        .flat_map(|_| (0..units * UNIT).map(touch))
        .collect();
    let run = |thp| replay(with(thp, memory), std::slice::from_ref(&events));
    let faults = |figures: &Figures| figures.major + figures.minor + figures.zero;
    let never = run(Thp::Never);
    assert_eq!((never.huge_in, never.huge_out, never.splits), (0, 0, 0));
    assert!(faults(&never) > 5 * units * passes, "{never:?}");
    for thp in [Thp::Adaptive, Thp::Always] {
        let figures = run(thp);
        assert!(faults(&figures) < units * passes * 13 / 10, "{figures:?}");
        // Units are evicted and read whole; a part stays for the next scan.
        assert!(figures.huge_out > units / 2, "{figures:?}");
        assert!(
            figures.huge_out * UNIT > figures.written_pages * 9 / 10,
            "{figures:?}"
        );
        assert!(
            figures.huge_in * UNIT > figures.read_pages * 8 / 10,
            "{figures:?}"
        );
        assert!(figures.peak <= memory);
    }
}

#[test]
fn scattered_touches_are_read_as_single_pages_unless_all_shall_be_huge() {
    let pages = 64 * UNIT;
    let mut events: Vec<Event> = (0..pages).map(touch).collect();
    let mut state = 7u64;
    for _ in 0..30_000 {
        state = crate::hash::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
        events.push(touch(state % pages));
    }
    let read = |thp| replay(with(thp, 16 * UNIT), std::slice::from_ref(&events)).read_pages;
    let [never, adaptive, always] = [Thp::Never, Thp::Adaptive, Thp::Always].map(read);
    assert!(never.abs_diff(adaptive) < never / 10, "{never} {adaptive}");
    assert!(always > 10 * never, "{never} {always}");
}

#[test]
fn every_change_of_the_address_space_is_followed() {
    let range = |start: u64, n: u64| Vpn(start)..Vpn(start + n);
    let mut events: Vec<Event> = vec![Event::Map(range(0, PAGES))];
    let mut state = 3u64;
    for n in 0..60_000u64 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = (state >> 33) % PAGES;
        events.push(match n % 1000 {
            1 => Event::Discard(range(page, 100)),
            2 => Event::Unmap(range(page, 300)),
            3 => Event::Map(range(page, 500)),
            4 => Event::Move {
                from: range(page, 200),
                to: Vpn(page + 2 * PAGES),
            },
            5 => Event::Move {
                from: range(page + 2 * PAGES, 64),
                to: Vpn(page),
            },
            6 => Event::Evicted(range(page, 10)),
            7 => Event::Prefetched(range(page, 10)),
            n => Event::Touch {
                page: Vpn(page),
                found: Found::Unknown,
                write: n % 3 == 0,
            },
        });
    }
    events.push(Event::End);
    let mut splits = 0;
    for policy in [
        Policy::Streams(512),
        Policy::Cluster(8),
        Policy::Trend(32),
        Policy::Vma(8),
    ] {
        for thp in [Thp::Never, Thp::Adaptive, Thp::Always] {
            let setup = Setup {
                thp,
                ..setup(2048, policy)
            };
            let run = || replay(setup, &[events.clone(), events.clone()]);
            let figures = run();
            assert!(
                figures.major > 10_000 && figures.touches > 119_000,
                "{figures:?}"
            );
            assert_eq!(thp == Thp::Always, figures.huge_in > 0, "{figures:?}");
            // Whether a unit is in memory when a part of it changes depends on the policy.
            assert!(thp == Thp::Always || figures.splits == 0, "{figures:?}");
            splits += figures.splits;
            // The same again, to the last digit.
            assert_eq!(run(), figures);
        }
    }
    assert!(splits > 0);
}

#[test]
fn pages_that_cannot_be_placed_are_named() {
    let mut machine = Machine::new(setup(1024, Policy::None));
    let start = Start {
        space: 0,
        pid: 0,
        tid: 0,
        parent: None,
    };
    machine
        .record(&Record {
            time: 0,
            task: 0,
            event: Event::Start(start),
        })
        .expect("replayed");
    let event = touch(1 << 36);
    let error = machine
        .record(&Record {
            time: 0,
            task: 0,
            event,
        })
        .expect_err("too far");
    assert!(error.contains("page 0x1000000000"), "{error}");
}

/// A hot set of half the memory is touched at random. Beside it runs a scan of 3.5 times the memory, four pages per touch.
#[test]
fn a_small_queue_for_pages_that_came_once_keeps_a_hot_set() {
    let memory = 2048;
    let (mut events, mut state) = (Vec::new(), 1_u64);
    for n in 0..120_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let page = match n % 5 {
            0 => (state >> 33) % (memory / 2),
            _ => 100_000 + n * 4 / 5 % (memory * 7 / 2),
        };
        events.push(Event::Touch {
            page: Vpn(page),
            found: crate::trace::Found::Unknown,
            write: false,
        });
    }
    let faults = |reclaim| {
        let setup = Setup {
            reclaim,
            ..setup(memory, Policy::None)
        };
        replay(setup, &[events.clone()]).major
    };
    let (clock, queues) = (faults(ReclaimPolicy::Clock), faults(ReclaimPolicy::S3Fifo));
    assert!(queues * 100 < clock * 95, "{queues} of {clock}");
}

/// 256 MiB of memory for 512 MiB, on a store that is 20 ms away and delivers 1 GB/s.
fn far() -> Setup {
    let device = Device {
        read: 20_000_000,
        bandwidth: 1_000_000_000,
        ..Device::of(Kind::Virtio)
    };
    Setup {
        device,
        ..with(Thp::Adaptive, 1 << 16)
    }
}

const FAR_PAGES: u64 = 1 << 17;

/// What a pass over all pages in this order costs after a fill in order.
fn far_pass(order: impl Iterator<Item = u64>) -> Nanos {
    let fill: Vec<Event> = (0..FAR_PAGES).map(touch).collect();
    let filled = replay(far(), std::slice::from_ref(&fill));
    let both = replay(far(), &[fill.into_iter().chain(order.map(touch)).collect()]);
    both.elapsed - filled.elapsed
}

#[test]
fn a_scan_fills_the_pipe_to_a_far_store() {
    let time = far_pass(0..FAR_PAGES);
    let rate = (FAR_PAGES * PAGE_SIZE as u64) as f64 * 1e9 / time as f64;
    assert!(rate > 0.7e9, "{rate} bytes/s, {time} ns");
}
