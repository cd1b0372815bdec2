//! The ledger alone, then with processes that are killed at arbitrary points.

mod hammer;
mod messages;
mod ram;
mod seals;

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use foreswap_core::world::SwapMap;
use foreswap_core::{ReclaimPolicy, Slots};
use rustix::fs::MemfdFlags;

use self::hammer::Random;
use super::*;

pub(super) fn area(slots: u32) -> AreaInfo {
    AreaInfo {
        slots,
        priority: -1,
        flags: AREA_DIRECT,
        first_byte: 4096,
        name: format!("/swap/of {slots} slots"),
    }
}

pub(super) fn spec(limit_pages: u64, slots: &[u32]) -> LedgerSpec {
    LedgerSpec {
        limit_pages,
        options: Options {
            readahead: ReadaheadPolicy::Trend,
            reclaim: ReclaimPolicy::S3Fifo,
            thp: ThpMode::Never,
            helpers: 2,
            io: IoBackend::Threads,
            max_window: 77,
            full_timeout: Duration::from_millis(1500),
            adopt_threshold: 1 << 20,
        },
        areas: slots.iter().map(|&slots| area(slots)).collect(),
    }
}

fn ledger(limit_pages: u64, slots: &[u32]) -> Ledger {
    Ledger::create(&spec(limit_pages, slots)).expect("a ledger")
}

fn process(ledger: &Ledger) -> ProcId {
    let process = ledger.reserve(None).expect("a free record");
    assert!(ledger.connect(process, 1));
    process
}

/// Whether the child got a reference.
fn share(ledger: &Ledger, parent: ProcId, child: ProcId, slot: SlotIndex) -> bool {
    ledger.share(parent, child, [(AREA, slot)].into_iter()) == 1
}

fn attach(ledger: &Ledger) -> Ledger {
    let dup = |fd| rustix::io::fcntl_dupfd_cloexec(fd, 0).expect("dup");
    let theirs = Ledger::attach(dup(ledger.fd())).expect("attach");
    for area in ledger.areas() {
        let fd = ledger.area_fd(area).expect("its tables");
        theirs.attach_area(area, dup(fd)).expect("attach");
    }
    theirs
}

/// The owner of a cluster, by the tables.
fn owner(ledger: &Ledger, area: AreaId, cluster: ClusterIndex) -> Option<ProcId> {
    let at = ledger.tables(area)?;
    let owner = at.words32(at.owners, at.clusters).get(cluster.0 as usize)?;
    ProcId::new(owner.load(SeqCst).checked_sub(1)?)
}

const AREA: AreaId = AreaId(0);
const HUGE_AREA: u32 = MAX_AREA_SLOTS;

#[test]
fn an_attached_ledger_shows_the_same() {
    let ours = ledger(1000, &[512, 1024]);
    let theirs = attach(&ours);
    assert_eq!(theirs.options(), spec(0, &[]).options);
    assert_eq!(theirs.areas().count(), 2);
    assert_eq!(theirs.area_info(AreaId(1)), Some(area(1024)));
    assert_eq!(theirs.area_info(AreaId(2)), None);
    let process = process(&ours);
    assert!(theirs.try_charge(process, 10));
    assert_eq!(ours.charged_pages(), 10);
    assert_eq!(theirs.start_ns(), ours.start_ns());
}

#[test]
fn only_a_ledger_of_this_build_is_attached() {
    let mismatch = |fd| matches!(Ledger::attach(fd), Err(LedgerError::Mismatch { .. }));
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let empty = rustix::fs::memfd_create(c"test", flags).expect("memfd");
    assert!(mismatch(empty));
    let unsealed = rustix::fs::memfd_create(c"test", flags).expect("memfd");
    rustix::fs::ftruncate(&unsealed, 1 << 30).expect("ftruncate");
    assert!(mismatch(unsealed));
    let file = std::fs::File::open("/bin/ls").expect("/bin/ls");
    assert!(Ledger::attach(file.into()).is_err());
    let ours = ledger(10, &[512]);
    ours.header()
        .version
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let copy = rustix::io::fcntl_dupfd_cloexec(ours.fd(), 0).expect("dup");
    assert!(mismatch(copy));
    for slots in [&[0][..], &[100], &[HUGE_AREA + 512], &[512; 9]] {
        assert!(matches!(
            Ledger::create(&spec(1, slots)),
            Err(LedgerError::Areas)
        ));
    }
}

#[test]
fn the_largest_ledger_costs_little() {
    let ledger = ledger(1 << 20, &[HUGE_AREA; MAX_AREAS]);
    let process = process(&ledger);
    let last = SlotIndex(HUGE_AREA - 1);
    assert!(ledger.slot_get(process, AreaId(7), last));
    assert!(ledger.claim_cluster(AreaId(7), process).is_some());
    let tables = ledger.areas().filter_map(|area| ledger.area_fd(area));
    let blocks: i64 = std::iter::once(ledger.fd())
        .chain(tables)
        .map(|fd| rustix::fs::fstat(fd).expect("fstat").st_blocks)
        .sum();
    assert!(blocks * 512 < 200 << 10, "{blocks} blocks");
    assert!(matches!(ledger.cleanup(process), Cleanup::Done(_)));
    assert_eq!(ledger.slot_count(AreaId(7), last), 0);
}

#[test]
fn areas_come_and_go() {
    let ours = ledger(100, &[512, 1024]);
    let theirs = attach(&ours);
    let order = |ledger: &Ledger| -> Vec<u8> { ledger.areas_in_order().map(|a| a.0).collect() };
    assert_eq!(order(&theirs), [0, 1]);
    let first = AreaInfo {
        priority: 7,
        ..area(2048)
    };
    let joining = AreaState::Joining;
    let added = ours.add_area(&first, joining).expect("room for it");
    assert_eq!((added, order(&ours)), (AreaId(2), vec![0, 1]));
    let fd = ours.area_fd(added).expect("its tables");
    let fd = rustix::io::fcntl_dupfd_cloexec(fd, 0).expect("dup");
    theirs.attach_area(added, fd).expect("attached");
    ours.set_area_state(added, AreaState::Usable);
    assert_eq!(order(&theirs), [2, 0, 1], "the highest priority first");
    let process = process(&ours);
    assert!(theirs.slot_get(process, added, SlotIndex(2000)));
    assert_eq!(ours.slots_held_count(process, added), 1);

    ours.set_area_state(AREA, AreaState::Draining);
    assert_eq!(order(&theirs), [2, 1]);
    for ledger in [&ours, &theirs] {
        // SAFETY: this thread is the only one.
        let range = unsafe { ledger.detach_area(AREA) }.map(|(tables, _)| tables);
        assert!(range.is_some());
        assert!(!ledger.slot_get(process, AREA, SlotIndex(1)));
        assert_eq!(ledger.area_info(AREA), None);
    }
    ours.set_area_state(AREA, AreaState::Absent);
    let again = ours.add_area(&area(512), AreaState::Usable);
    assert_eq!(again.ok(), Some(AREA), "the number is free again");
    assert_eq!(ours.area_used(AREA), 0);
    assert!(matches!(ours.cleanup(process), Cleanup::Done(_)));
    assert_eq!(theirs.area_used(added), 0);
}

#[test]
fn the_limit_is_never_passed() {
    let ledger = ledger(100, &[512]);
    let (one, other) = (process(&ledger), process(&ledger));
    assert!(ledger.try_charge(one, 60));
    assert!(!ledger.try_charge(other, 41));
    assert!(ledger.try_charge(other, 40));
    assert!(!ledger.try_charge(one, 1));
    ledger.charge_anyway(one, 5);
    assert_eq!(
        (ledger.charged_pages(), ledger.peak_charged_pages()),
        (105, 105)
    );
    let over = OverLimit {
        for_forks: 0,
        for_present: 5,
        for_found: 0,
    };
    assert_eq!(ledger.over_limit(), over);
    let child = ledger.reserve(Some(one)).expect("a record");
    ledger.charge_anyway(child, 2);
    ledger.uncharge(child, 2);
    assert_eq!(
        ledger.over_limit(),
        OverLimit {
            for_forks: 7,
            ..over
        }
    );
    ledger.uncharge(one, 1000);
    ledger.note_found(60);
    assert_eq!(ledger.over_limit().for_found, 0);
    ledger.note_found(63);
    ledger.note_found(62);
    assert_eq!(ledger.over_limit().for_found, 3);
    assert_eq!(
        (ledger.process_charged(one), ledger.charged_pages()),
        (0, 40)
    );
    ledger.set_limit_pages(10);
    assert!(!ledger.try_charge(one, 1));
    assert!(matches!(ledger.cleanup(other), Cleanup::Done(_)));
    assert_eq!(ledger.charged_pages(), 0);
    let Cleanup::Done(ended) = ledger.cleanup(one) else {
        panic!("a record that is not in use")
    };
    assert_eq!(ended.peak_charged_pages, 65);
}

/// Killed while it charges its child: the record is the child's and stays reserved, because the child may have been
/// forked already.
#[test]
fn a_parent_that_dies_while_it_charges_its_child_is_in_nobodys_way() {
    let ledger = ledger(100, &[512]);
    let (parent, other) = (process(&ledger), process(&ledger));
    let child = ledger.reserve(Some(parent)).expect("a record");
    assert!(ledger.try_charge(other, 10) && ledger.try_charge(child, 30));
    // The global word has it, the record has not yet.
    let record = ledger.record(child);
    record.charging.store(1, SeqCst);
    record.charged.fetch_sub(20, SeqCst);
    assert!(matches!(ledger.cleanup(parent), Cleanup::Done(_)));
    assert_eq!(ledger.charged_pages(), 20, "what the records say");
    // The next process may get the parent's record.
    let next = process(&ledger);
    assert_eq!(next, parent);
    ledger.record(other).charging.store(1, SeqCst);
    assert!(matches!(ledger.cleanup(other), Cleanup::Done(_)));
    assert!(matches!(ledger.cleanup(child), Cleanup::Done(_)));
    assert_eq!(ledger.charged_pages(), 0);
}

#[test]
fn need_is_heard_by_others() {
    let ledger = ledger(100, &[512]);
    let (one, other) = (process(&ledger), process(&ledger));
    let before = ledger.pressure();
    ledger.set_wanted(one, 7, false);
    assert_ne!(ledger.pressure(), before);
    assert_eq!(
        (ledger.wanted_by_others(other), ledger.wanted_by_others(one)),
        (7, 0)
    );
    let now = ledger.pressure();
    ledger.set_wanted(one, 0, false);
    assert_eq!(ledger.pressure(), now, "less need wakes nobody");
    let mapped = attach(&ledger);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut seen = now;
            while seen == now {
                seen = mapped.wait_pressure(now, Duration::from_secs(60));
            }
            seen
        });
        ledger.raise_pressure();
        assert_ne!(waiter.join().expect("woken"), now);
    });
    assert_eq!(
        ledger.wait_pressure(ledger.pressure(), Duration::ZERO),
        ledger.pressure()
    );
}

#[test]
fn slots_are_counted_per_process() {
    let ledger = ledger(100, &[1024]);
    let (parent, child) = (process(&ledger), process(&ledger));
    let cluster = ledger.claim_cluster(AREA, parent).expect("a cluster");
    let slot = SlotIndex(cluster.first_slot().0 + 3);
    assert!(ledger.slot_get(parent, AREA, slot));
    assert!(
        !ledger.slot_get(parent, AREA, slot),
        "one reference per process"
    );
    assert!(share(&ledger, parent, child, slot));
    assert!(!share(&ledger, parent, child, slot), "it has it");
    assert!(
        !share(&ledger, parent, child, SlotIndex(slot.0 + 1)),
        "nobody has it"
    );
    assert_eq!(ledger.slot_count(AREA, slot), 2);
    assert_eq!(ledger.cluster_used(AREA, cluster), 1);
    ledger.set_digest(AREA, slot, 0xd1e5);
    assert_eq!(ledger.digest(AREA, slot), 0xd1e5);
    assert_eq!(ledger.slot_put(parent, AREA, slot), Put::StillUsed);
    assert_eq!(ledger.slot_put(parent, AREA, slot), Put::NotHeld);
    assert!(ledger.slots_held(child, AREA).eq([slot]));
    assert_eq!(ledger.slot_put(child, AREA, slot), Put::Freed);
    assert_eq!(
        (ledger.area_used(AREA), ledger.cluster_used(AREA, cluster)),
        (0, 0)
    );
    let nowhere = SlotIndex(1024);
    assert!(!ledger.slot_get(parent, AREA, nowhere) && !ledger.slot_get(parent, AreaId(9), slot));
}

#[test]
fn a_run_of_slots_is_taken_in_one_step_or_not_at_all() {
    let ledger = ledger(100, &[1024, 1024]);
    let (one, other) = (process(&ledger), process(&ledger));
    let held = |process| {
        let slots = ledger.slots_held(process, AREA);
        slots.map(|slot| slot.0).collect::<Vec<_>>()
    };
    let get = |process, first, count| ledger.slots_get(process, AREA, SlotIndex(first), count);
    // Across words of the bitmaps, to the end of one, a single one, and a whole cluster.
    for (first, count) in [(60, 140), (0, 64), (511, 1), (512, 512)] {
        assert_eq!(get(one, first, count), Some(count));
        assert_eq!(held(one), (first..first + count).collect::<Vec<_>>());
        assert_eq!(ledger.area_used(AREA), u64::from(count));
        let cluster = SlotIndex(first).cluster();
        assert_eq!(ledger.cluster_used(AREA, cluster), count);
        for overlapping in [(first, 1), (first + count - 1, 1), (first, count)] {
            assert_eq!(get(one, overlapping.0, overlapping.1), None, "held already");
        }
        // Another process shares a part: used slots are not counted again.
        assert_eq!(get(other, first, count.div_ceil(2)), Some(0));
        assert_eq!(ledger.cluster_used(AREA, cluster), count);
        assert_eq!(ledger.slot_count(AREA, SlotIndex(first)), 2);
        for slot in (first..first + count).map(SlotIndex) {
            ledger.slot_put(one, AREA, slot);
            ledger.slot_put(other, AREA, slot);
        }
        assert_eq!((ledger.area_used(AREA), held(one)), (0, vec![]));
    }
    for (first, count) in [(0, 0), (0, 513), (511, 2), (1024, 1), (u32::MAX, 1)] {
        assert_eq!(get(one, first, count), None, "{count} from {first} on");
    }
    assert_eq!(ledger.area_used(AREA), 0);
    assert_eq!(ledger.area_used(AreaId(1)), 0);
}

#[test]
fn clusters_have_one_owner() {
    let ledger = ledger(100, &[1024]);
    let (one, other) = (process(&ledger), process(&ledger));
    let first = ledger.claim_cluster(AREA, one).expect("a cluster");
    let second = ledger
        .claim_cluster(AREA, other)
        .expect("the other cluster");
    assert_ne!(first, second);
    assert_eq!(ledger.claim_cluster(AREA, one), None);
    assert_eq!(owner(&ledger, AREA, first), Some(one));
    assert!(!ledger.release_cluster(AREA, one, second));
    // A dead process leaves its cluster to others, with the slots of a third process in it.
    assert!(ledger.slot_get(one, AREA, first.first_slot()));
    assert!(share(&ledger, one, other, first.first_slot()));
    assert!(matches!(ledger.cleanup(one), Cleanup::Done(_)));
    assert_eq!(ledger.cluster_used(AREA, first), 1);
    assert_eq!(ledger.claim_cluster(AREA, other), Some(first));
    for slot in 0..CLUSTER_SLOTS {
        ledger.slot_get(other, AREA, SlotIndex(first.first_slot().0 + slot));
    }
    assert!(ledger.release_cluster(AREA, other, first));
    assert_eq!(
        ledger.claim_cluster(AREA, other),
        None,
        "full ones are left alone"
    );
}

/// Used places are rewritten first, in turn, and the area grows only when all of them are in use.
#[test]
fn clusters_that_were_used_before_come_first() {
    let ledger = ledger(100, &[16 * CLUSTER_SLOTS]);
    let process = process(&ledger);
    let take = || {
        let cluster = ledger.claim_cluster(AREA, process).expect("a cluster");
        let taken = ledger.slots_get(process, AREA, cluster.first_slot(), CLUSTER_SLOTS);
        assert_eq!(taken, Some(CLUSTER_SLOTS));
        assert!(ledger.release_cluster(AREA, process, cluster));
        cluster.0
    };
    let put = |cluster: u32| {
        for slot in 0..CLUSTER_SLOTS {
            ledger.slot_put(process, AREA, SlotIndex(cluster * CLUSTER_SLOTS + slot));
        }
    };
    assert_eq!([take(), take(), take()], [0, 1, 2]);
    put(0);
    put(1);
    put(2);
    // Next fit among these: pages written together shall lie together.
    assert_eq!([take(), take()], [0, 1]);
    put(0);
    assert_eq!([take(), take(), take()], [2, 0, 3]);
    put(1);
    assert_eq!([take(), take()], [1, 4]);
}

/// Random evictions leave no cluster empty for long: nearly empty ones are refilled, or the file would grow to seven
/// times the pages on it.
#[test]
fn an_area_does_not_grow_by_pages_that_change_at_random() {
    const PAGES: u32 = 8 * CLUSTER_SLOTS;
    let ledger = ledger(100, &[64 * CLUSTER_SLOTS]);
    let process = process(&ledger);
    let (mut slots, mut random) = (Vec::new(), Random(1));
    let (mut reached, mut claims) = (0, 0);
    while claims < 200 {
        let cluster = ledger.claim_cluster(AREA, process).expect("a cluster");
        (claims, reached) = (claims + 1, reached.max(cluster.0 + 1));
        let all = (0..CLUSTER_SLOTS).map(|at| SlotIndex(cluster.first_slot().0 + at));
        let free: Vec<_> = all
            .filter(|&slot| ledger.slot_count(AREA, slot) == 0)
            .collect();
        let least = if claims > 8 {
            CLUSTER_SLOTS / 8 * 7
        } else {
            CLUSTER_SLOTS
        };
        assert!(free.len() >= least as usize);
        for slot in free {
            assert!(ledger.slot_get(process, AREA, slot));
            slots.push(slot);
            if slots.len() > PAGES as usize {
                let gone = slots.swap_remove(random.below(slots.len() as u64) as usize);
                assert_eq!(ledger.slot_put(process, AREA, gone), Put::Freed);
            }
        }
        assert!(ledger.release_cluster(AREA, process, cluster));
    }
    assert!(reached <= 24, "{reached} clusters for the pages of 8");
    // A unit goes to an empty cluster, even if the area must grow for it.
    let empty = ledger
        .claim_empty_cluster(AREA, process)
        .expect("one is empty");
    assert_eq!(ledger.cluster_used(AREA, empty), 0);
}

/// Between a look at a cluster's use and the claim, other processes may fill and release it.
#[test]
fn an_empty_cluster_is_empty_when_it_is_owned() {
    const CLAIMS: u32 = 500_000;
    let ledger = ledger(100, &[8 * CLUSTER_SLOTS]);
    let fill = |process| {
        for _ in 0..CLAIMS {
            let Some(cluster) = ledger.claim_empty_cluster(AREA, process) else {
                continue;
            };
            let (first, used) = (cluster.first_slot(), ledger.cluster_used(AREA, cluster));
            assert_eq!(used, 0, "{cluster:?} of {process:?}");
            assert!(ledger.slot_get(process, AREA, first));
            assert!(ledger.release_cluster(AREA, process, cluster));
            assert_eq!(ledger.slot_put(process, AREA, first), Put::Freed);
        }
    };
    let processes = [(); 3].map(|()| process(&ledger));
    std::thread::scope(|scope| {
        for process in processes {
            scope.spawn(move || fill(process));
        }
    });
    assert_eq!(ledger.area_used(AREA), 0);
}

/// Processes take and give slots and clusters as their allocators do, and share some with children: no slot has two
/// owners.
#[test]
fn slots_have_one_process() {
    const CLUSTERS: u32 = 24;
    const STEPS: u32 = 200_000;
    let ledger = ledger(100, &[CLUSTERS * CLUSTER_SLOTS]);
    let seed = 0x5eed_0000 + u64::from(std::process::id());
    println!("seed {seed:#x}");
    let zeros = || AtomicU32::new(0);
    let holders: Vec<AtomicU32> = (0..CLUSTERS * CLUSTER_SLOTS).map(|_| zeros()).collect();
    let work = |n: u32, process: ProcId, child: ProcId| {
        let mut random = Random(seed + u64::from(n));
        let mut map = ProcessMap::new(&ledger, process);
        map.share_with(Some(child));
        let (mut slots, mut held) = (Slots::default(), Vec::new());
        for _ in 0..STEPS {
            let crowded = held.len() as u32 > 3 * CLUSTER_SLOTS;
            let taken = match random.below(8) {
                _ if crowded => None,
                0 => slots
                    .take_cluster(&mut map)
                    .map(|first| (first, CLUSTER_SLOTS)),
                most @ 1..4 => slots.take(&mut map, 16 << most),
                _ => None,
            };
            for i in 0..taken.map_or(0, |(_, count)| count) {
                let slot = taken.expect("some").0.plus(i);
                let before = holders[slot.index as usize].swap(n, SeqCst);
                assert_eq!(before, 0, "{slot:?} is {before}'s and was given to {n}");
                held.push(slot);
            }
            for _ in 0..random.below(if crowded { 700 } else { 60 }) {
                if held.is_empty() {
                    break;
                }
                let slot = held.swap_remove(random.below(held.len() as u64) as usize);
                let is_shared = random.below(4) == 0;
                if is_shared {
                    map.share([slot].into_iter());
                    map.put(slot);
                    assert_eq!(map.count(slot), 1, "the child's");
                }
                let last = holders[slot.index as usize].swap(0, SeqCst);
                assert_eq!(last, n, "{slot:?} of {n}");
                match is_shared {
                    true => _ = ledger.slot_put(child, AREA, SlotIndex(slot.index)),
                    false => map.put(slot),
                }
            }
            if random.below(50) == 0 {
                slots.give_back(&mut map);
            }
        }
        slots.give_back(&mut map);
        for slot in held {
            holders[slot.index as usize].store(0, SeqCst);
            map.put(slot);
        }
    };
    std::thread::scope(|scope| {
        for n in 1..=4 {
            let own = process(&ledger);
            let child = ledger.reserve(Some(own)).expect("a record");
            let work = &work;
            scope.spawn(move || work(n, own, child));
        }
    });
    assert_eq!(ledger.area_used(AREA), 0);
    let mut slots = (0..CLUSTERS * CLUSTER_SLOTS).map(SlotIndex);
    assert!(slots.all(|slot| ledger.slot_count(AREA, slot) == 0));
}

#[test]
fn records_live_and_end() {
    let ledger = ledger(100, &[512]);
    let parent = process(&ledger);
    let child = ledger.reserve(Some(parent)).expect("a record");
    assert_eq!(ledger.parent(child), Some(parent));
    assert_eq!(
        (ledger.live(), ledger.state(child)),
        (1, ProcessState::Reserved)
    );
    assert!(ledger.connect(child, 42) && !ledger.connect(child, 43));
    assert_eq!((ledger.live(), ledger.pid(child)), (2, 42));
    count(&ledger.stats(child).faults_major, 3);
    ledger.stats(child).on_window(8);
    let Cleanup::Done(ended) = ledger.cleanup(child) else {
        panic!("not cleaned up")
    };
    assert_eq!((ended.stats.faults_major, ended.stats.windows[8]), (3, 1));
    assert!(matches!(ledger.cleanup(child), Cleanup::Nothing));
    assert_eq!(ledger.live(), 1);
    let next = process(&ledger);
    assert_eq!(next, child, "the record is used again");
    assert_eq!(ledger.stats(next).snapshot().faults_major, 0);
    while ledger.reserve(None).is_some() {}
    assert_eq!(ledger.records_in_use().count(), MAX_PROCESSES);
}

/// What an ended process was charged for, or was asked to pay for and had not looked at, the others pay for.
#[test]
fn the_debts_of_an_ended_process_pass_to_its_family() {
    let ledger = ledger(1000, &[512]);
    let [parent, child] = [process(&ledger), process(&ledger)];
    let family = ledger.new_family();
    for member in [parent, child] {
        ledger.set_family(member, family);
    }
    let debt = |owed, shared| DebtState {
        owed,
        due: 0,
        shared,
    };
    ledger.set_debt(parent, debt(20, 3), 0);
    ledger.set_debt(child, debt(9, 0), 0);
    ledger.ask_to_pay(parent, 8);
    ledger.pass_on(parent);
    assert_eq!((ledger.asked(child), ledger.unasked(family)), (9, 2));
}
