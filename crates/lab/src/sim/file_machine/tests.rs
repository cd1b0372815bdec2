//! The machine at work on files, on small programs.

use foreswap_core::units::PAGE_SIZE;

use super::*;
use crate::sim::parameters::DeviceParameters;

const PAGE: u64 = PAGE_SIZE as u64;

/// Tasks that each do a list of things.
#[derive(Debug)]
struct Lists(Vec<std::vec::IntoIter<FileOp>>);

impl FileWork for Lists {
    fn next(&mut self, task: usize, _: Nanos) -> FileOp {
        self.0[task].next().unwrap_or(FileOp::End)
    }
}

fn part(page: u64, pages: u64) -> Part {
    part_of(0, page, pages)
}

fn part_of(file: u32, page: u64, pages: u64) -> Part {
    Part {
        file: FileId(file),
        offset: page * PAGE,
        bytes: pages * PAGE,
    }
}

fn machine(policy: Policy, memory: u64, lists: Vec<Vec<FileOp>>) -> FileMachine<Lists> {
    machine_with(policy, FileState::Copied, memory, lists)
}

fn machine_with(
    policy: Policy,
    state: FileState,
    memory: u64,
    lists: Vec<Vec<FileOp>>,
) -> FileMachine<Lists> {
    let parameters = Parameters::named("core-2").expect("a machine");
    let parameters = Parameters {
        memory: memory * PAGE,
        ..parameters
    };
    let setup = FileSetup {
        policy,
        state,
        limits: Limits {
            max: 32,
            device: 32,
        },
        files: vec![100_000; 8],
        tasks: lists.len(),
        gate: 1,
    };
    let lists = lists.into_iter().map(Vec::into_iter).collect();
    FileMachine::new(&parameters, setup, Lists(lists))
}

fn done(mut machine: FileMachine<Lists>) -> FileMachine<Lists> {
    machine.run(FileMachine::is_done).expect("done");
    machine
}

fn sequential(pages: u64) -> Vec<FileOp> {
    (0..pages).map(|n| FileOp::Read(part(n, 1))).collect()
}

#[test]
fn a_sequential_reader_reads_at_the_speed_of_the_plate_under_every_policy() {
    let rate = outer_rate();
    for policy in Policy::ALL {
        let machine = done(machine(policy, 10_000, vec![sequential(5_000)]));
        let found = 5_000 * PAGE * 1_000 / (machine.now() / 1_000_000);
        assert!(
            found.abs_diff(rate) < rate / 10,
            "{policy:?}: {found} of {rate}"
        );
        assert!(machine.reads().1 <= 5_000 + 64, "{policy:?}");
    }
}

/// Bytes a second on the outermost tracks.
fn outer_rate() -> u64 {
    match Parameters::named("core-2").expect("a machine").device {
        DeviceParameters::Disk(disk) => disk.outer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn cached_pages_are_not_read_again() {
    let mut twice = sequential(500);
    twice.extend(sequential(500));
    let once = done(machine(Policy::OnDemand, 10_000, vec![sequential(500)])).reads();
    assert_eq!(
        done(machine(Policy::OnDemand, 10_000, vec![twice])).reads(),
        once
    );
}

/// The defect of the base, and the remedy: with a memory in which no window lasts, the base reads page
/// by page what was lost.
#[test]
fn lost_pages_are_read_one_by_one_by_the_base_only() {
    let streams = |policy| {
        let reader = |file: u32| {
            let op = |page: u64| {
                [
                    FileOp::Read(part_of(file, page, 1)),
                    FileOp::Sleep((page + 1) * 40_000_000),
                ]
            };
            (0..400).flat_map(op).collect()
        };
        let (requests, pages) = done(machine(policy, 150, (0..8).map(reader).collect())).reads();
        pages as f64 / requests as f64
    };
    let (base, optimized) = (streams(Policy::Legacy), streams(Policy::OnDemand));
    assert!(optimized > 2.0 * base, "{base} and {optimized}");
}

#[test]
fn whatever_little_memory_there_is_every_read_ends() {
    for policy in Policy::ALL {
        for memory in [1, 3, 20] {
            let all = vec![
                sequential(200),
                sequential(150),
                vec![FileOp::Read(part(9, 120))],
            ];
            done(machine(policy, memory, all));
        }
    }
}

#[test]
fn a_writer_waits_when_too_much_is_not_written_and_a_sync_for_all() {
    let writes =
        |n: u64| -> Vec<FileOp> { (0..n).map(|n| FileOp::Write(part(16 * n, 16))).collect() };
    // A tenth of memory is left to be written whenever that suits.
    let sim = done(machine(Policy::OnDemand, 10_000, vec![writes(60)]));
    assert_eq!(sim.cache.unwritten(), 960);
    let fast = sim.now();
    let sim = done(machine(Policy::OnDemand, 10_000, vec![writes(600)]));
    assert!(sim.cache.unwritten() <= 4_000);
    assert!(sim.now() > 20 * fast, "{} and {fast}", sim.now());
    let mut all = writes(60);
    all.push(FileOp::Sleep(40_000_000_000));
    let sim = done(machine(Policy::OnDemand, 10_000, vec![all]));
    assert_eq!(sim.cache.unwritten(), 0, "written for its age");
    let mut all = writes(60);
    all.push(FileOp::Sync);
    let sim = done(machine(Policy::OnDemand, 10_000, vec![all]));
    assert_eq!(sim.cache.unwritten(), 0);
    assert!(sim.now() > 2 * fast);
}

#[test]
fn the_gate_lets_one_in_at_a_time() {
    let visit = || vec![FileOp::Enter, FileOp::Compute(1_000_000), FileOp::Leave];
    let sim = done(machine(
        Policy::OnDemand,
        100,
        vec![visit(), visit(), visit()],
    ));
    assert!(sim.now() >= 3_000_000);
    let free = || vec![FileOp::Compute(1_000_000)];
    let sim = done(machine(Policy::OnDemand, 100, vec![free(), free()]));
    assert!(sim.now() < 1_100_000, "there are two CPUs");
}

/// Two readers of one file disturb each other's state less when each has a copy.
#[test]
fn a_copy_of_the_state_keeps_two_readers_apart() {
    let requests = |state| {
        let reader = |n: u64| (0..1_000).map(move |page| FileOp::Read(part(n * 50_000 + page, 1)));
        let lists = (0..2).map(|n| reader(n).collect()).collect();
        done(machine_with(Policy::Legacy, state, 10_000, lists))
            .reads()
            .0
    };
    let (copied, shared) = (requests(FileState::Copied), requests(FileState::Shared));
    assert!(copied < shared, "{copied} and {shared}");
}
