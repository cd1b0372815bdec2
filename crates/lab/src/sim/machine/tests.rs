//! The machine itself, on small programs.

use foreswap_core::Swapoff;
use foreswap_core::readahead::Policy;
use foreswap_core::units::len;

use super::*;
use crate::work::Layout;
use crate::work::usemem::{Order as Pages, Usemem};

const SETUP: Setup = Setup {
    readahead: Policy::Vma(8),
    swapoff: Swapoff::Readahead,
    huge_swap: HugeSwap::SplitFirst,
    order: Order::Lru,
    first_touch: 1,
    file_readahead: file::Policy::Linux,
    file_state: FileState::Shared,
    defects: Defects {
        strict_zone_check: false,
        early_flag_clear: false,
        zero_classzone: false,
    },
    headroom: 1,
};

/// `tasks` writers with so many percent of memory, all together.
fn writers(cpus: u32, tasks: u64, percent: u64, once: bool) -> Machine<Usemem> {
    writers_under(&SETUP, 256, cpus, tasks, percent, once)
}

fn writers_under(
    setup: &Setup,
    scale: u64,
    cpus: u32,
    tasks: u64,
    percent: u64,
    once: bool,
) -> Machine<Usemem> {
    let parameters = Parameters::named("kvm-guest").expect("a machine");
    let parameters = Parameters {
        cpus,
        ..parameters.scaled(scale)
    };
    let mut layout = Layout::default();
    let programs = (0..tasks).map(|_| {
        let region = layout.region(parameters.pages() * percent / 100 / tasks);
        let writer = Usemem::new(region, Pages::Sequential, 10_000);
        if once { writer.and_ends() } else { writer }
    });
    let programs = programs.collect();
    Machine::new(
        &parameters,
        setup,
        layout.pages(),
        layout.regions(),
        programs,
    )
}

#[test]
fn twice_the_cpus_are_twice_as_fast() {
    let time = |cpus| {
        let mut machine = writers(cpus, 4, 50, true);
        machine.run(Machine::is_done).expect("done");
        machine.now()
    };
    let (one, two, many) = (time(1), time(2), time(8));
    assert!(one.abs_diff(2 * two) < one / 10, "{one} and {two}");
    assert!(one.abs_diff(4 * many) < one / 10, "{one} and {many}");
}

#[test]
fn memory_stays_below_its_limit_and_nothing_is_left_at_the_end() {
    let mut machine = writers(4, 3, 300, true);
    let limit = foreswap_core::world::Limit::limit(&machine.memory);
    while !machine.is_done() {
        let next = machine.now() + 1_000_000;
        machine
            .run(|m| m.now() >= next || m.is_done())
            .expect("goes on");
        assert!(machine.memory.charged() <= limit);
    }
    assert!(machine.mm.stats.swap_out > limit);
    let next = machine.now() + 1_000_000_000;
    machine.poke();
    let _ = machine.run(|m| m.now() >= next);
    assert_eq!((machine.mm.mapped(), machine.memory.slots_used()), (0, 0));
}

#[test]
fn a_page_that_comes_back_wrong_ends_the_run() {
    let mut machine = writers(4, 1, 200, false);
    let pages = len(&machine
        .mm
        .regions()
        .next()
        .map_or(BASE..BASE, |v| v.range.clone()));
    assert_eq!(pages, 0, "it maps its memory itself");
    machine
        .run(|m| m.mm.stats.swap_in > 1_000)
        .expect("goes on");
    let page = (0..)
        .map(|n| BASE.plus(n))
        .find(|&p| machine.memory.read(p).is_some());
    let page = page.expect("one is mapped");
    machine.memory.write(page, 12_345);
    let end = machine.now() + 10_000_000_000;
    match machine.run(|m| m.now() >= end) {
        Err(SimError::Wrong { page: found, .. }) => assert_eq!(found, page),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_wait_without_end_is_detected() {
    let mut machine = writers(4, 1, 50, true);
    machine.run(Machine::is_done).expect("done");
    assert!(matches!(
        machine.run(|_| false),
        Err(SimError::Stuck { .. })
    ));
}

#[test]
fn huge_pages_go_and_come_whole_and_take_their_locks_once() {
    let run = |huge_swap| {
        let setup = Setup {
            huge_swap,
            readahead: Policy::Streams(512),
            order: Order::Clock,
            first_touch: 256,
            ..SETUP
        };
        let mut machine = writers_under(&setup, 32, 4, 1, 200, false);
        let limit = foreswap_core::world::Limit::limit(&machine.memory);
        while machine.mm.stats.swap_in < 2 * limit {
            let next = machine.now() + 10_000_000;
            machine.run(|m| m.now() >= next).expect("goes on");
            assert!(machine.memory.charged() <= limit);
        }
        let (slots, cache) = machine.locks();
        (machine.mm.stats.clone(), slots.taken, cache.taken)
    };
    let (small, slots, cache) = run(HugeSwap::SplitFirst);
    let (huge, slots_huge, cache_huge) = run(HugeSwap::Whole);
    assert_eq!((small.huge_swap_in, small.huge_swap_out), (0, 0));
    let whole = huge.huge_swap_out * u64::from(HUGE);
    assert!(
        whole > huge.swap_out * 9 / 10,
        "{whole} of {}",
        huge.swap_out
    );
    assert!(huge.huge_swap_in * u64::from(HUGE) > huge.swap_in * 9 / 10);
    assert!(slots_huge < slots / 4 && cache_huge < cache / 4);
}
