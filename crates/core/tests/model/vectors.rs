//! The `vma` policy against the decisions of a real kernel: for each sequence of touches, the pages
//! that Linux 6.18 read on each miss.

use std::io::Read as _;

use flate2::read::GzDecoder;
use foreswap_core::readahead::{History, Policy, Touch, Window};
use foreswap_core::units::{Slot, Vpn};
use serde_json::Value;

const DECISIONS: &[u8] = include_bytes!("../data/swap-vma.jsonl.gz");
/// Where the region begins; the recorded one was aligned to 2 MiB.
const BASE: u64 = 512 * 77;

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Swapped,
    Ahead,
    Used,
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// Replay one recording; the first decision that differs comes back.
fn replay(recording: &Value) -> Result<usize, String> {
    let size = number(&recording["vma_pages"]);
    let policy = Policy::Vma(1 << number(&recording["page_cluster"]));
    let region = Vpn(BASE)..Vpn(BASE + size);
    let mut history = History::default();
    let mut state = vec![At::Swapped; size as usize];
    let mut misses = 0;
    for (n, touch) in recording["touches"]
        .as_array()
        .expect("touches")
        .iter()
        .enumerate()
    {
        let touched = number(&touch[0]);
        let recorded = touch[1].as_array().expect("pages").iter().map(number);
        let recorded: Vec<u64> = recorded.collect();
        let slot = Slot { area: 0, index: 0 };
        let touch = |ahead| Touch {
            page: Vpn(BASE + touched),
            slot: Some(slot),
            ahead,
            region: &region,
        };
        let mut read = Vec::new();
        match state[touched as usize] {
            At::Swapped => {
                misses += 1;
                let Window::Pages { first, count, .. } =
                    policy.on_miss(&mut history, &touch(false))
                else {
                    return Err("a window of slots".into());
                };
                for at in first.0 - BASE..first.0 - BASE + u64::from(count) {
                    if state[at as usize] == At::Swapped {
                        state[at as usize] = At::Ahead;
                        read.push(at);
                    }
                }
            }
            At::Ahead => policy.on_hit(&mut history, &touch(true)),
            At::Used => {}
        }
        state[touched as usize] = At::Used;
        if read != recorded {
            return Err(format!(
                "touch {n} of page {touched}: {read:?}, not {recorded:?}"
            ));
        }
    }
    Ok(misses)
}

#[test]
fn the_vma_policy_decides_as_the_kernel() {
    let mut text = String::new();
    GzDecoder::new(DECISIONS)
        .read_to_string(&mut text)
        .expect("gzip");
    let (mut recordings, mut misses) = (0, 0);
    for line in text.lines() {
        let recording: Value = serde_json::from_str(line).expect("JSON");
        match replay(&recording) {
            Ok(n) => misses += n,
            Err(what) => panic!(
                "{} with page-cluster {}: {what}",
                recording["name"], recording["page_cluster"]
            ),
        }
        recordings += 1;
    }
    assert!(recordings == 18 && misses > 1_000, "{misses} decisions");
}
