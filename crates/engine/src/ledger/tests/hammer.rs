//! Processes charge, share and drop as fast as they can, and are killed at any instruction; the clean-up after them
//! is complete whatever they were doing.
//!
//! The workers are this test binary again, directed by the environment. The seed is printed; the instruction that a
//! SIGKILL meets depends on the machine.

use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::*;

const ORDERS: &str = "FORESWAP_TEST_HAMMER";
const LIMIT: u64 = 500;
const AREA_SLOTS: u32 = 2048;
/// Few, for contention.
const CONTESTED: u64 = 48;
/// The most slots taken in one step.
const LONGEST: u64 = 40;
const WORKERS: usize = 5;
const KILLS: usize = 100;

pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}

/// The orders of a worker, which does not outlive the test that started it. `None` in an ordinary run of the tests.
pub(super) fn orders(variable: &str) -> Option<Vec<u64>> {
    let orders = std::env::var(variable).ok()?;
    let kill = rustix::process::Signal::KILL;
    rustix::process::set_parent_process_death_signal(Some(kill)).expect("a death signal");
    let words = orders.split(' ');
    Some(words.map(|word| word.parse().expect("a number")).collect())
}

/// The life of a worker; in an ordinary run of the tests there are no orders.
#[test]
fn worker() {
    let Some(words) = orders(ORDERS) else {
        return;
    };
    let [supervisor, fd, first, second, own, child, seed] = words[..] else {
        panic!("{words:?}")
    };
    let open = |fd| {
        let path = format!("/proc/{supervisor}/fd/{fd}");
        let file = std::fs::File::options().read(true).write(true).open(path);
        file.expect("the ledger's file").into()
    };
    let ledger = Ledger::attach(open(fd)).expect("the ledger");
    for (area, fd) in (0..).map(AreaId).zip([first, second]) {
        ledger.attach_area(area, open(fd)).expect("its tables");
    }
    let own = ProcId::new(own as u32).expect("a record");
    let child = ProcId::new(child as u32).expect("a record");
    let mut random = Random(seed);
    loop {
        let area = AreaId(random.below(2) as u8);
        // Two clusters of each area are contested.
        let slot = SlotIndex((random.below(CONTESTED) * 13) as u32);
        let pages = random.below(40);
        let run = 1 + random.below(LONGEST) as u32;
        match random.below(13) {
            0 => _ = ledger.try_charge(own, pages),
            1 => ledger.uncharge(own, pages),
            2 | 3 => _ = ledger.slot_get(own, area, slot),
            4 | 5 => _ = ledger.slot_put(own, area, slot),
            // Of both clusters, with gaps.
            6 => {
                let slots = (0..run).map(|i| (area, SlotIndex(slot.0 + 13 * i)));
                ledger.share(own, child, slots);
            }
            7 => _ = ledger.slot_put(child, area, slot),
            // A run that reaches into the next cluster is refused.
            8 => _ = ledger.slots_get(own, area, slot, run),
            9 => (slot.0..slot.0 + run).for_each(|slot| {
                ledger.slot_put(own, area, SlotIndex(slot));
            }),
            // Like a parent for a child that it is about to fork.
            10 => _ = ledger.try_charge(child, pages),
            11 => ledger.uncharge(child, pages),
            _ => {
                if let Some(cluster) = ledger.claim_cluster(area, own)
                    && random.below(2) == 0
                {
                    ledger.release_cluster(area, own, cluster);
                }
            }
        }
    }
}

struct Worker {
    process: Child,
    own: ProcId,
    child: ProcId,
}

fn start(ledger: &Ledger, seed: u64) -> Worker {
    let own = process(ledger);
    let child = ledger.reserve(Some(own)).expect("a record");
    let (fd, us) = (ledger.fd().as_raw_fd(), std::process::id());
    let tables = |area| ledger.area_fd(AreaId(area)).expect("tables").as_raw_fd();
    let (first, second) = (tables(0), tables(1));
    let process = Command::new(std::env::current_exe().expect("the test's own path"))
        .args(["--exact", "ledger::tests::hammer::worker", "--nocapture"])
        .env(
            ORDERS,
            format!(
                "{us} {fd} {first} {second} {} {} {seed}",
                own.index(),
                child.index()
            ),
        )
        .stdout(Stdio::null())
        .spawn()
        .expect("a worker");
    Worker {
        process,
        own,
        child,
    }
}

/// Like the supervisor: in turns, because dead processes may block each other until both are known to be dead. A
/// child may still connect: its record is freed later.
fn clean_up(ledger: &Ledger, dead: &[&Worker]) {
    clean_up_records(ledger, dead.iter().map(|worker| worker.own).collect());
    clean_up_records(ledger, dead.iter().map(|worker| worker.child).collect());
}

fn clean_up_records(ledger: &Ledger, mut records: Vec<ProcId>) {
    let dead = records.clone();
    let end = Instant::now() + Duration::from_secs(60);
    while !records.is_empty() {
        assert!(
            Instant::now() < end,
            "a clean-up finds no moment in which to finish"
        );
        records.retain(|&record| matches!(ledger.cleanup(record), Cleanup::Busy));
    }
    for record in dead {
        assert_eq!(ledger.state(record), ProcessState::Free);
    }
}

#[test]
fn nothing_is_left_behind_by_the_killed() {
    let seed = 0x5eed_0000 + u64::from(std::process::id());
    println!("seed {seed:#x}");
    let mut random = Random(seed);
    let ledger = ledger(LIMIT, &[AREA_SLOTS, AREA_SLOTS]);
    let mut workers: Vec<Worker> = (0..WORKERS)
        .map(|_| start(&ledger, random.below(u64::MAX) | 1))
        .collect();
    for _ in 0..KILLS {
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        assert!(ledger.charged_pages() <= LIMIT);
        // Sometimes several at once, such that dead processes block each other.
        let dead = 0..=random.below(3);
        let mut dead: Vec<usize> = dead
            .map(|_| random.below(WORKERS as u64) as usize)
            .collect();
        dead.sort_unstable();
        dead.dedup();
        for &index in &dead {
            workers[index].process.kill().expect("a kill");
            let status = workers[index].process.wait().expect("its end");
            assert_eq!(status.code(), None, "a worker failed by itself");
        }
        clean_up(
            &ledger,
            &dead
                .iter()
                .map(|&index| &workers[index])
                .collect::<Vec<_>>(),
        );
        for &index in &dead {
            workers[index] = start(&ledger, random.below(u64::MAX) | 1);
        }
    }
    for worker in &mut workers {
        worker.process.kill().expect("a kill");
        worker.process.wait().expect("its end");
    }
    let (last, others) = workers.split_last().expect("workers");
    ledger.mark_dead(last.own);
    ledger.mark_dead(last.child);
    clean_up(&ledger, &others.iter().collect::<Vec<_>>());
    remaining_slots_belong_to(&ledger, last);
    clean_up(&ledger, &[last]);
    assert_eq!(ledger.charged_pages(), 0);
    assert_eq!(ledger.records_in_use().count(), 0);
    for area in ledger.areas() {
        assert_eq!(ledger.area_used(area), 0);
        assert!((0..AREA_SLOTS).all(|slot| ledger.slot_count(area, SlotIndex(slot)) == 0));
        let mut clusters = (0..AREA_SLOTS / CLUSTER_SLOTS).map(ClusterIndex);
        assert!(clusters.all(|cluster| owner(&ledger, area, cluster).is_none()));
    }
}

/// The last one is dead too, but not cleaned up: at most the words of the slots that it was taking in one step may be
/// off by one each.
fn remaining_slots_belong_to(ledger: &Ledger, worker: &Worker) {
    let mut off = 0;
    for area in ledger.areas() {
        for slot in (0..AREA_SLOTS).map(SlotIndex) {
            let holders = [worker.own, worker.child];
            let held = holders
                .iter()
                .filter(|&&p| ledger.slot_held(p, area, slot))
                .count();
            off += ledger.slot_count(area, slot).abs_diff(held as u32);
        }
    }
    assert!(
        off <= LONGEST as u32,
        "{off} references too many or too few"
    );
}
