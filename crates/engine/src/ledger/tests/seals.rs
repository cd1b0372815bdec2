//! Numbers of encrypted pages, over processes and slots.

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};

use foreswap_store::seal::Seal;

use super::hammer::orders;
use super::*;

const ORDERS: &str = "FORESWAP_TEST_SEALS";
const WRITES: u32 = 5000;

/// The life of a process; in an ordinary run of the tests there are no orders.
#[test]
fn worker_of_seals() {
    let Some(words) = orders(ORDERS) else {
        return;
    };
    let path = format!("/proc/{}/fd/{}", words[0], words[1]);
    let file = std::fs::File::options().read(true).write(true).open(path);
    let ledger = Ledger::attach(file.expect("the ledger's file").into()).expect("the ledger");
    let all = (0..WRITES).map(|n| {
        let pages = u64::from(n % 7 + 1);
        format!("{} {pages}", ledger.seal_numbers(pages))
    });
    println!("numbers: {}", all.collect::<Vec<_>>().join(","));
}

#[test]
fn no_number_is_given_out_twice() {
    let ledger = ledger(100, &[1024]);
    let file = format!("{} {}", std::process::id(), ledger.fd().as_raw_fd());
    let start = |_| {
        Command::new(std::env::current_exe().expect("this test"))
            .args([
                "--exact",
                "ledger::tests::seals::worker_of_seals",
                "--nocapture",
            ])
            .env(ORDERS, &file)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process")
    };
    let processes: Vec<_> = (0..4).map(start).collect();
    let (mut seen, mut count) = (HashSet::new(), 0);
    for process in processes {
        let output = process.wait_with_output().expect("its end");
        let text = String::from_utf8(output.stdout).expect("text");
        let line = text.lines().find_map(|line| line.split_once("numbers: "));
        for taken in line.expect("the numbers").1.split(',') {
            let (first, pages) = taken.split_once(' ').expect("two words");
            let [first, pages] = [first, pages].map(|word| word.parse::<u64>().expect("a number"));
            assert!(first > 0);
            for number in first..first + pages {
                count += 1;
                assert!(seen.insert(number), "{number} was given out twice");
            }
        }
    }
    assert!(count > 4 * u64::from(WRITES));
    assert!(!seen.contains(&ledger.seal_numbers(1)));
}

#[test]
fn a_slot_has_the_seal_that_was_set_last() {
    let ledger = ledger(100, &[1024]);
    let seals = [1, 2, 3].map(|n| Seal {
        number: u64::MAX - n,
        tag: core::array::from_fn(|at| (at as u64 * n) as u8),
    });
    let slots = [0, 511, 1023].map(SlotIndex);
    assert_eq!(ledger.seal(AREA, slots[1]), Seal::default());
    for (slot, seal) in slots.into_iter().zip(seals) {
        ledger.set_seal(AREA, slot, Seal { number: 7, ..seal });
        ledger.set_seal(AREA, slot, seal);
    }
    for (slot, seal) in slots.into_iter().zip(seals) {
        assert_eq!(ledger.seal(AREA, slot), seal);
    }
    // There is no such slot, and no such area.
    for (area, slot) in [(AREA, 1024), (AreaId(3), 0)] {
        ledger.set_seal(area, SlotIndex(slot), seals[0]);
        assert_eq!(ledger.seal(area, SlotIndex(slot)), Seal::default());
    }
}
