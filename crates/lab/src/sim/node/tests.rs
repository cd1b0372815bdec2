//! Invariants of the machine with nodes and files, for any workload.

use foreswap_core::linux_kswapd::Defects;
use foreswap_core::readahead::{Policy, file};

use super::lists::List;
use super::program::{Op, Program};
use super::*;
use crate::sim::memory::{HugeSwap, Order};

/// Executes its steps once and records the time of each.
struct Steps {
    steps: Vec<Op>,
    at: usize,
    took: Vec<Nanos>,
}

impl Program for Steps {
    fn next(&mut self, _: Nanos) -> Op {
        self.at += 1;
        self.steps.get(self.at - 1).copied().unwrap_or(Op::End)
    }

    fn done(&mut self, _: &Op, took: Nanos) {
        self.took.push(took);
    }
}

const SETUP: Setup = Setup {
    file_readahead: file::Policy::Linux,
    file_state: crate::sim::file_machine::FileState::Shared,
    readahead: Policy::Vma(8),
    swapoff: foreswap_core::Swapoff::Readahead,
    huge_swap: HugeSwap::SplitFirst,
    order: Order::Lru,
    first_touch: 1,
    defects: Defects {
        strict_zone_check: false,
        early_flag_clear: false,
        zero_classzone: false,
    },
    headroom: 1,
};

fn machine(files: &[u32], steps: Vec<Op>) -> Machine<Steps> {
    let parameters = Parameters::named("uma-disk").expect("a machine").scaled(8);
    let steps = Steps {
        steps,
        at: 0,
        took: Vec::new(),
    };
    let programs = vec![(0, steps)];
    Machine::new(&parameters, &SETUP, files, programs, 1, false).expect("large enough")
}

fn finish(machine: &mut Machine<Steps>) -> Vec<Nanos> {
    machine.run(|machine| machine.running == 0).expect("ends");
    machine.tasks[0].program.took.clone()
}

/// Every frame is free, on a list, or part of a mapped huge page.
fn check_frames(machine: &Machine<Steps>) {
    let nodes = 0..machine.memory.nodes.len();
    let lists = [List::Inactive, List::Active, List::Anon];
    let listed: u64 = nodes
        .flat_map(|node| lists.map(|list| machine.pages.count(node, list)))
        .sum();
    let frames = machine.memory.frames() as u64;
    assert_eq!(machine.memory.free() + listed, frames);
}

fn read(first: u32, pages: u32, limit: u32) -> Op {
    Op::Read {
        file: 0,
        first,
        pages,
        limit,
    }
}

#[test]
fn huge_pages_serve_a_region_where_there_are_any() {
    let map = |huge| Op::Map { pages: 5_120, huge };
    let mut machine = machine(&[], vec![map(true), Op::Unmap, map(false), Op::Unmap]);
    let took = finish(&mut machine);
    assert_eq!(took[0], 10 * machine.prices.first_touch_huge);
    assert_eq!(took[2], 5_120 * machine.prices.first_touch);
    assert_eq!((machine.counts.huge, machine.counts.direct), (10, 0));
    check_frames(&machine);
}

#[test]
fn pages_in_memory_are_not_read_again() {
    let steps = vec![read(0, 512, 512), read(0, 512, 512)];
    let mut machine = machine(&[512], steps);
    let took = finish(&mut machine);
    assert!(took[0] > 2 * took[1], "{took:?}");
    assert_eq!(took[1], 512 * machine.prices.copy);
    // Used twice: on the active list.
    assert_eq!(machine.pages.count(0, List::Active), 512);
    check_frames(&machine);
}

#[test]
fn readahead_keeps_the_disk_at_its_speed() {
    let records = (0..400).map(|n| read(n * 32, 32, 12_800)).collect();
    let mut machine = machine(&[12_800], records);
    finish(&mut machine);
    let bytes = 12_800 * 4096 * 1_000 / (machine.now() / 1_000_000);
    assert!((150_000_000..215_000_000).contains(&bytes), "{bytes} B/s");
}

#[test]
fn a_file_larger_than_memory_goes_through_without_a_wait() {
    let pages = 400_000;
    let mut records: Vec<Op> = (0..pages / 32).map(|n| read(n * 32, 32, pages)).collect();
    records.push(Op::Sleep(1_000_000_000));
    let mut machine = machine(&[pages], records);
    finish(&mut machine);
    check_frames(&machine);
    // The excess over memory, and the pages that it keeps free.
    assert!(machine.counts.background_freed > 400_000 - machine.memory.frames() as u64);
    assert_eq!(machine.counts.direct, 0, "the thread keeps ahead of a disk");
    // One zone suffices for tasks that may use them all.
    let mut zones = machine.memory.nodes[0].iter();
    assert!(zones.any(|zone| zone.allows(0, zone.marks.low, HIGHEST)));
    assert!(machine.memory.free() < 400_000 / 4, "it stops");
}

#[test]
fn dirty_pages_reach_the_disk_and_a_removed_file_leaves_nothing() {
    let write = Op::Write {
        file: 0,
        first: 0,
        pages: 100_000,
    };
    let steps = vec![write, Op::Sync(0), Op::Remove(0), Op::Sleep(1_000_000_000)];
    let mut machine = machine(&[100_000], steps);
    let free = machine.memory.free();
    let took = finish(&mut machine);
    // More than may be dirty at a time: the writer had to wait for the disk.
    let disk = 100_000 * 4096 * 100 / 21;
    assert!(took[0] + took[1] > disk, "{took:?}, the disk takes {disk}");
    assert!(took[0] > 200_000 * machine.prices.copy, "{took:?}");
    assert_eq!(machine.memory.free(), free);
    check_frames(&machine);
}

/// Like the kernel of seed 001: dirty pages at the end of the list make way, reclaim writes none of them, and
/// writeback is woken although they are few and young.
#[test]
fn dirty_pages_at_the_end_make_way_and_are_written_back() {
    let write = Op::Write {
        file: 0,
        first: 0,
        pages: 1_000,
    };
    let rest = Op::Sleep(1_000_000_000);
    let mut machine = machine(&[1_000], vec![write, rest, rest]);
    machine
        .run(|machine| machine.tasks[0].program.at == 3)
        .expect("goes on");
    assert!(!machine.files.is_clean(0), "nothing is due yet");
    let scan = machine.scan(0, 32, false);
    assert_eq!((scan.scanned, scan.freed), (32, 0));
    assert_eq!(machine.pages.count(0, List::Active), 32);
    finish(&mut machine);
    assert!(machine.files.is_clean(0));
    assert_eq!(machine.counts.written, 0);
    // They were met and are next; the others were not, but are clean as well.
    assert_eq!(machine.pages.count(0, List::Active), 0);
    assert_eq!(machine.scan(0, 32, false).freed, 32);
    check_frames(&machine);
}

/// Reclaim requests writeback of all dirty pages; then the file is removed. Later pages are not concerned.
#[test]
fn removed_pages_are_not_written_back() {
    let write = |file| Op::Write {
        file,
        first: 0,
        pages: 1_000,
    };
    let rest = Op::Sleep(1_000_000_000);
    let mut machine = machine(&[1_000; 2], vec![write(0), rest, write(1), rest, rest]);
    machine
        .run(|machine| machine.tasks[0].program.at == 2)
        .expect("goes on");
    machine.kick();
    machine.remove(0);
    machine
        .run(|machine| machine.tasks[0].program.at == 5)
        .expect("goes on");
    assert!(!machine.files.is_clean(1), "it is young, and little");
    check_frames(&machine);
}

#[test]
fn the_disk_is_congested_while_many_writes_wait() {
    let pages = 600;
    let mut steps: Vec<Op> = (0..pages / 2)
        .map(|n| Op::Write {
            file: 0,
            first: 2 * n,
            pages: 1,
        })
        .collect();
    steps.push(Op::Sync(0));
    let mut machine = machine(&[pages], steps);
    machine
        .run(|machine| machine.files.congested)
        .expect("a full queue");
    let full = machine.now();
    machine
        .run(|machine| !machine.files.congested)
        .expect("it drains");
    assert!(machine.now() > full + 1_000_000, "not at once");
    assert!(!machine.files.is_clean(0), "some are left");
    finish(&mut machine);
}

/// When the first task continues.
fn goes_on(machine: &Machine<Steps>) -> Nanos {
    let events = machine.events.iter();
    let task = events.filter(|Reverse(event)| event.2 == Event::Task(0));
    task.map(|Reverse(event)| event.0).min().expect("planned")
}

/// Takes all memory available without reclaim.
fn use_up(machine: &mut Machine<Steps>) -> Vec<FrameId> {
    let mut frames = Vec::new();
    while machine.take(0, BATCH).is_some() {
        frames.append(&mut machine.taken);
    }
    frames
}

/// A machine with this many pages of a file, dirty or clean, and a task that maps `map` pages: it gets the first few,
/// then memory is used up.
fn short_of_memory(pages: u32, dirty: bool, map: u64) -> (Machine<Steps>, Vec<FrameId>) {
    let (file, first, limit) = (0, 0, pages);
    let bring = match dirty {
        true => Op::Write { file, first, pages },
        false => Op::Read {
            file,
            first,
            pages,
            limit,
        },
    };
    let map = Op::Map {
        pages: map,
        huge: false,
    };
    let mut machine = machine(&[pages], vec![bring, map]);
    machine
        .run(|machine| machine.tasks[0].program.at == 2)
        .expect("goes on");
    let frames = use_up(&mut machine);
    (machine, frames)
}

fn waits(machine: &Machine<Steps>) -> bool {
    !machine.congested.is_empty()
}

#[test]
fn a_task_that_waits_for_the_disk_continues_when_it_keeps_up() {
    let (mut machine, _) = short_of_memory(20_000, true, 20_000);
    machine.run(waits).expect("all has to be written first");
    let began = machine.now();
    machine
        .run(|machine| !waits(machine))
        .expect("goes on by itself");
    assert_eq!(machine.now(), began + 100_000_000);
    machine.run(waits).expect("waits again");
    machine.relieved();
    assert!(goes_on(&machine) < machine.now() + 1_000_000);
}

#[test]
fn a_scan_ends_before_its_task_hears_that_the_disk_keeps_up() {
    let (mut machine, _) = short_of_memory(1_000, false, 1_000);
    machine.files.congested = true;
    machine.background[0].core.flags_mut().congested = true;
    machine.run(waits).expect("it may wait");
    let scan = machine.counts.direct_freed * machine.prices.drop;
    assert!(scan > 0);
    machine.relieved();
    assert!(goes_on(&machine) >= machine.now() + scan);
}

/// It can free nothing, because it meets only dirty pages; others free some.
#[test]
fn direct_reclaim_in_vain_takes_frames_that_others_freed() {
    let (mut machine, frames) = short_of_memory(1_000, true, 500);
    machine.run(waits).expect("all has to be written first");
    let freed = machine.counts.direct_freed;
    for frame in frames {
        machine.memory.give(frame);
    }
    let took = finish(&mut machine);
    assert_eq!(machine.counts.direct_freed, freed, "it need not any more");
    assert!(took[1] < 150_000_000, "{took:?}");
    check_frames(&machine);
}

/// There is less than a batch to free, and that suffices.
#[test]
fn direct_reclaim_takes_the_few_frames_left() {
    let (mut machine, _) = short_of_memory(20, false, 40);
    let took = finish(&mut machine);
    assert!(took[1] < 50_000_000, "{took:?}");
    let Counts {
        direct_freed,
        background_freed,
        ..
    } = machine.counts;
    assert_eq!(direct_freed + background_freed, 20);
}

#[test]
fn a_task_that_maps_faster_than_reclaim_reclaims_too() {
    let parameters = Parameters::named("uma-disk").expect("a machine").scaled(8);
    let pages = 200_000;
    let mut steps: Vec<Op> = (0..pages / 32).map(|n| read(n * 32, 32, pages)).collect();
    let map = Op::Map {
        pages: 50_000,
        huge: false,
    };
    steps.extend([Op::Raise(0, 1), map]);
    let program = |steps| {
        let took = Vec::new();
        (0, Steps { steps, at: 0, took })
    };
    let programs = vec![program(steps), program(vec![Op::Pass(0, 1), map])];
    let mut machine =
        Machine::new(&parameters, &SETUP, &[pages], programs, 1, false).expect("large enough");
    machine.run(|machine| machine.running == 0).expect("ends");
    assert!(machine.counts.direct > 0);
    let took = &machine.tasks[1].program.took;
    assert!(took[1] > 50_000 * machine.prices.first_touch, "{took:?}");
    check_frames(&machine);
}

#[test]
fn memory_that_is_used_up_ends_the_run() {
    let steps = vec![Op::Map {
        pages: 300_000,
        huge: false,
    }];
    let mut machine = machine(&[], steps);
    let error = machine.run(|machine| machine.running == 0);
    assert!(matches!(error, Err(SimError::NoMemory { .. })), "{error:?}");
}

#[test]
fn on_busy_cpus_a_long_step_takes_twice_as_long() {
    let parameters = Parameters::named("uma-disk").expect("a machine").scaled(8);
    let steps = Steps {
        steps: vec![Op::Compute(SLICE * 10), Op::Compute(SLICE / 2)],
        at: 0,
        took: Vec::new(),
    };
    let programs = vec![(0, steps)];
    let mut machine =
        Machine::new(&parameters, &SETUP, &[], programs, 0, true).expect("large enough");
    let took = finish(&mut machine);
    assert_eq!(took[..2], [SLICE * 20, SLICE / 2]);
}
