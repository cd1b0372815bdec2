//! A RAM area under processes that are killed at any instruction: survivors read their own writes, and the space of
//! the dead is usable again.

use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foreswap_store::area::{self, AreaSpec, OpenArea};
use foreswap_store::ram::{Method, Reader, Refused, Writer};

use super::hammer::orders;
use super::*;

const ORDERS: &str = "FORESWAP_TEST_RAM_HAMMER";
/// Small, and therefore always full and being compacted.
const CAPACITY: u64 = 4 << 20;
const WORKERS: usize = 4;
const KILLS: u64 = 80;
/// The most slots of a worker.
const HELD: usize = 1200;

fn ram_ledger() -> (Ledger, OpenArea) {
    let spec = AreaSpec::Ram {
        capacity: CAPACITY,
        method: Method::Lz4,
    };
    let open = area::open(&spec, None, 1 << 30).expect("memory");
    let info = AreaInfo {
        slots: (open.bytes / 4096) as u32,
        flags: AREA_RAM,
        first_byte: 0,
        ..super::area(512)
    };
    let ledger = ledger(1000, &[]);
    let added = ledger.add_area(&info, AreaState::Usable);
    assert_eq!(added.expect("an area"), AREA);
    let attached = ledger.attach_ram(AREA, open.file.as_fd());
    assert!(attached.expect("its memory").is_some());
    (ledger, open)
}

fn mix(seed: u64) -> u64 {
    let z = (seed ^ (seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb)
}

fn page_of(seed: u64) -> [u8; 4096] {
    let mut page = [0; 4096];
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        // Between none and all but a quarter of the page is compressible.
        let value = if i as u64 % 8 < seed % 7 {
            mix(seed + i as u64)
        } else {
            seed
        };
        word.copy_from_slice(&value.to_le_bytes());
    }
    page
}

#[test]
fn a_slot_that_is_given_back_frees_its_bytes() {
    let (ledger, _open) = ram_ledger();
    let ram = ledger.ram(AREA).expect("attached").clone();
    let (own, other) = (process(&ledger), process(&ledger));
    let mut writer = Writer::new(own.index() as u16, ram.method());
    let used = |slot| ledger.slot_count(AREA, SlotIndex(slot)) > 0;
    for slot in 0..100 {
        assert!(ledger.slot_get(own, AREA, SlotIndex(slot)));
        let written = writer.write(&ram, slot, &page_of(slot.into()), false, &used);
        assert_eq!(written, Ok(()));
    }
    assert!(share(&ledger, own, other, SlotIndex(5)));
    assert_eq!(ledger.slot_put(own, AREA, SlotIndex(5)), Put::StillUsed);
    assert!(ram.holds(5), "somebody uses it");
    assert_eq!(ledger.slot_put(own, AREA, SlotIndex(6)), Put::Freed);
    assert!(!ram.holds(6));
    assert!(matches!(ledger.cleanup(own), Cleanup::Done(_)));
    assert_eq!(ledger.ram_usage(AREA).map(|usage| usage.pages), Some(1));
    let mut page = [0; 4096];
    let read = Reader::new(ram.method()).read(&ram, 5, &mut page);
    assert_eq!((read, page), (Ok(()), page_of(5)));
    assert_eq!(ledger.slot_put(other, AREA, SlotIndex(5)), Put::Freed);
    assert_eq!(ledger.ram_usage(AREA).map(|usage| usage.held), Some(0));
}

#[test]
fn only_the_memory_of_the_area_is_attached() {
    let (ledger, _open) = ram_ledger();
    let spec = AreaSpec::Ram {
        capacity: 2 * CAPACITY,
        method: Method::Lz4,
    };
    let larger = area::open(&spec, None, 1 << 30).expect("memory");
    let theirs = attach(&ledger);
    assert!(theirs.attach_ram(AREA, larger.file.as_fd()).is_err());
    assert!(theirs.attach_ram(AREA, ledger.fd()).is_err());
    assert!(theirs.ram(AREA).is_none());
}

/// The life of a worker; in an ordinary run of the tests there are no orders.
#[test]
fn worker() {
    let Some(words) = orders(ORDERS) else {
        return;
    };
    let [supervisor, fd, tables, memory, own, mut seed] = words[..] else {
        panic!("{words:?}")
    };
    let open = |fd: u64| -> rustix::fd::OwnedFd {
        let path = format!("/proc/{supervisor}/fd/{fd}");
        let file = std::fs::File::options().read(true).write(true).open(path);
        file.expect("a file of the run").into()
    };
    let ledger = Ledger::attach(open(fd)).expect("the ledger");
    ledger.attach_area(AREA, open(tables)).expect("its tables");
    let attached = ledger.attach_ram(AREA, open(memory).as_fd());
    assert!(attached.expect("its memory").is_some());
    let ram = ledger.ram(AREA).expect("attached");
    let own = ProcId::new(own as u32).expect("a record");
    let mut writer = Writer::new(own.index() as u16, ram.method());
    let mut reader = Reader::new(ram.method());
    let used = |slot| ledger.slot_count(AREA, SlotIndex(slot)) > 0;
    let mut cluster = ledger.claim_cluster(AREA, own);
    let mut held: Vec<(u32, u64)> = Vec::new();
    loop {
        seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let draw = mix(seed);
        let at = (draw >> 8) as usize % held.len().max(1);
        if !held.is_empty() && (draw.is_multiple_of(4) || held.len() >= HELD) {
            let (slot, _) = held.swap_remove(at);
            assert_ne!(ledger.slot_put(own, AREA, SlotIndex(slot)), Put::NotHeld);
        } else if !held.is_empty() && draw % 4 == 1 {
            let (slot, seed) = held[at];
            let mut page = [0; 4096];
            assert_eq!(reader.read(ram, slot, &mut page), Ok(()), "slot {slot}");
            assert!(page == page_of(seed), "slot {slot} holds other bytes");
        } else {
            let free = |cluster: &ClusterIndex| {
                let first = cluster.first_slot().0;
                (first..first + CLUSTER_SLOTS).find(|&slot| !used(slot))
            };
            let Some(slot) = cluster.as_ref().and_then(free) else {
                if let Some(full) = cluster {
                    ledger.release_cluster(AREA, own, full);
                }
                cluster = ledger.claim_cluster(AREA, own);
                continue;
            };
            assert!(ledger.slot_get(own, AREA, SlotIndex(slot)));
            match writer.write(ram, slot, &page_of(draw), true, &used) {
                Ok(()) => held.push((slot, draw)),
                Err(Refused::Full) => _ = ledger.slot_put(own, AREA, SlotIndex(slot)),
                Err(why) => panic!("slot {slot}: {why}"),
            }
        }
    }
}

#[test]
fn the_living_keep_what_they_wrote() {
    let (ledger, open) = ram_ledger();
    let mut seed = u64::from(std::process::id());
    println!("seed {seed}");
    let mut start = |ledger: &Ledger| -> (Child, ProcId) {
        seed += 1;
        let own = process(ledger);
        let us = std::process::id();
        let tables = ledger.area_fd(AREA).expect("tables").as_raw_fd();
        let (fd, memory) = (ledger.fd().as_raw_fd(), open.file.as_raw_fd());
        let orders = format!("{us} {fd} {tables} {memory} {} {}", own.index(), mix(seed));
        let worker = Command::new(std::env::current_exe().expect("the test's own path"))
            .args(["--exact", "ledger::tests::ram::worker", "--nocapture"])
            .env(ORDERS, orders)
            .stdout(Stdio::null())
            .spawn();
        (worker.expect("a worker"), own)
    };
    let mut workers: Vec<_> = (0..WORKERS).map(|_| start(&ledger)).collect();
    let end = |ledger: &Ledger, (mut worker, own): (Child, ProcId)| {
        worker.kill().expect("a kill");
        let status = worker.wait().expect("its end");
        assert_eq!(status.code(), None, "a worker failed by itself");
        let until = Instant::now() + Duration::from_secs(60);
        while matches!(ledger.cleanup(own), Cleanup::Busy) {
            assert!(
                Instant::now() < until,
                "a clean-up finds no moment to finish"
            );
        }
    };
    for n in 0..KILLS {
        std::thread::sleep(Duration::from_micros(mix(n) % 30_000));
        let fresh = start(&ledger);
        let victim = std::mem::replace(&mut workers[n as usize % WORKERS], fresh);
        end(&ledger, victim);
    }
    for worker in workers {
        end(&ledger, worker);
    }
    assert_eq!(ledger.area_used(AREA), 0);
    let usage = ledger.ram_usage(AREA).expect("attached");
    let killed = KILLS + WORKERS as u64;
    assert!(
        usage.pages <= killed,
        "a page for each kill at most: {usage:?}"
    );
    // All of it is usable again, by one process.
    let ram = ledger.ram(AREA).expect("attached");
    let mut writer = Writer::new(0, ram.method());
    let all = (0..ram.slots()).take_while(|&slot| {
        let page = page_of(3 + 7 * u64::from(slot));
        writer.write(ram, slot, &page, false, &|_| true).is_ok()
    });
    assert!(all.count() > 1500);
    let live = ledger.ram_usage(AREA).map_or(0, |usage| usage.live);
    assert!(live > CAPACITY / 10 * 8, "{live} of {CAPACITY}");
}
