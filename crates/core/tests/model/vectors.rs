//! The kernel's policies against the decisions of a real kernel: for each sequence of touches, the pages that Linux
//! 6.18 read on each miss. Once the policy alone, once the whole path from a fault to its reads.

use std::io::Read as _;

use flate2::read::GzDecoder;
use foreswap_core::readahead::{ClusterHistory, History, Policy, Shared, Touch, Window};
use foreswap_core::units::{Slot, Vpn};
use serde_json::Value;

use super::swapped::{PAGES, Swapped};

const VMA: &[u8] = include_bytes!("../data/swap-vma.jsonl.gz");
const CLUSTER: &[u8] = include_bytes!("../data/swap-cluster.jsonl.gz");
/// Where the region begins; the recorded one was aligned to 2 MiB.
const BASE: u64 = 512 * 77;

/// A sequence of touches, with the reads of the kernel.
struct Recording {
    name: String,
    pages: usize,
    policy: Policy,
    /// Hits and window left from before, if they count for all regions.
    left: (u64, u64),
    slots: Vec<(usize, u32)>,
    touches: Vec<(usize, Vec<usize>)>,
}

fn number(value: &Value) -> usize {
    value.as_u64().expect("a number") as usize
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

impl Recording {
    fn of(line: &str) -> Self {
        let value: Value = serde_json::from_str(line).expect("JSON");
        let order = number(&value["page_cluster"]);
        let pages = number(&value["vma_pages"]);
        let cluster = value["policy"] == "cluster";
        let slot = |pair: &Value| (number(&pair[0]), number(&pair[1]) as u32);
        let touch = |pair: &Value| {
            let read = list(&pair[1]).iter().map(number).collect();
            (number(&pair[0]), read)
        };
        Recording {
            name: format!("{} {} {order}", value["policy"], value["name"]),
            pages,
            policy: match cluster {
                true => Policy::Cluster(1 << order),
                false => Policy::Vma(1 << order),
            },
            left: match cluster {
                true => (
                    number(&value["initial_hits"]) as u64,
                    number(&value["initial_window"]) as u64,
                ),
                false => (0, 0),
            },
            slots: match cluster {
                true => list(&value["slot_of_page"]).iter().map(slot).collect(),
                // Their slots are unknown and must not matter.
                false => (0..pages)
                    .map(|at| (at, (at * 7919 % 16384) as u32))
                    .collect(),
            },
            touches: list(&value["touches"]).iter().map(touch).collect(),
        }
    }

    /// The number of misses, or the first decision that differs.
    fn replay(&self, mut touch: impl FnMut(usize) -> Vec<usize>) -> Result<usize, String> {
        let mut misses = 0;
        for (n, (at, recorded)) in self.touches.iter().enumerate() {
            let read = touch(*at);
            if read != *recorded {
                let name = &self.name;
                return Err(format!(
                    "{name}, touch {n} of page {at}: {read:?}, not {recorded:?}"
                ));
            }
            misses += usize::from(!read.is_empty());
        }
        Ok(misses)
    }
}

fn recordings(gzip: &[u8]) -> Vec<Recording> {
    let mut text = String::new();
    GzDecoder::new(gzip)
        .read_to_string(&mut text)
        .expect("gzip");
    text.lines().map(Recording::of).collect()
}

fn all() -> Vec<Recording> {
    let mut all = recordings(VMA);
    all.extend(recordings(CLUSTER));
    assert_eq!(all.len(), 20);
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    Swapped,
    Ahead,
    Used,
}

/// The policy alone, with a model of the pages in memory.
fn by_policy(recording: &Recording, policy: Policy) -> Result<usize, String> {
    let region = Vpn(BASE)..Vpn(BASE + recording.pages as u64);
    let mut history = History::default();
    let (hits, window) = recording.left;
    let mut shared = Shared {
        cluster: ClusterHistory {
            hits: hits as u32,
            window: window as u32,
            ..ClusterHistory::default()
        },
    };
    let mut slot_of = vec![0; recording.pages];
    for &(at, slot) in &recording.slots {
        slot_of[at] = slot;
    }
    let mut state = vec![At::Swapped; recording.pages];
    recording.replay(|at| {
        let before = std::mem::replace(&mut state[at], At::Used);
        let slot = Slot {
            area: 0,
            index: slot_of[at],
        };
        let touch = Touch {
            page: Vpn(BASE + at as u64),
            slot: Some(slot),
            ahead: before == At::Ahead,
            region: &region,
        };
        if before != At::Swapped {
            if before == At::Ahead {
                policy.on_hit(&mut shared, &mut history, &touch);
            }
            return Vec::new();
        }
        let mut read = vec![at];
        let mut bring = |other: usize| {
            if state[other] == At::Swapped {
                state[other] = At::Ahead;
                read.push(other);
            }
        };
        match policy.on_miss(&mut shared, &mut history, &touch) {
            Window::Pages {
                first,
                stride,
                count,
            } => {
                let page = |n| first.0.wrapping_add_signed(n * stride) - BASE;
                (0..i64::from(count)).for_each(|n| bring(page(n) as usize));
            }
            Window::Slots { first, count } => {
                let window = first.index..first.index + count;
                let inside = |&(at, slot): &(usize, u32)| window.contains(&slot).then_some(at);
                recording
                    .slots
                    .iter()
                    .filter_map(inside)
                    .for_each(&mut bring);
            }
        }
        read.sort_unstable();
        read
    })
}

/// The region on an area, page by page, and the shipped manager.
fn by_faults(recording: &Recording) -> Result<usize, String> {
    let mut slots = recording.slots.clone();
    let mut before = Vec::new();
    if let Policy::Cluster(_) = recording.policy {
        // Touches before the recording, in their own region and slots.
        let own = slots.iter().map(|&(_, slot)| slot).max().expect("slots") / 512 * 512 + 512;
        before = (PAGES - 512..PAGES).collect();
        slots.extend(before.iter().map(|&at| (at, own + (at % 512) as u32)));
    }
    let mut regions = Vec::from_iter(before.first().map(|&first| first..PAGES));
    regions.push(0..recording.pages);
    let mut machine = Swapped::new(recording.policy, &regions, &slots);
    if !before.is_empty() {
        leave(&mut machine, &before, recording.left);
    }
    let result = recording.replay(|at| machine.touch(at));
    machine.check();
    result
}

/// Touch pages until the hits and the window are those before the recording.
fn leave(machine: &mut Swapped, pages: &[usize], (hits, window): (u64, u64)) {
    let mut ahead = Vec::new();
    let mut size = 0;
    // From one block to another: the windows are 8, 4, 2 and 1.
    for &at in pages.iter().step_by(64) {
        let read = machine.touch(at);
        size = read.len() as u64;
        ahead.extend(read.into_iter().filter(|&other| other != at));
        if size == window {
            break;
        }
    }
    assert_eq!(size, window, "the recorded window was not reached");
    assert!(ahead.len() as u64 >= hits, "too few pages to hit");
    for &at in &ahead[..hits as usize] {
        assert!(machine.touch(at).is_empty());
    }
}

#[test]
fn the_policies_decide_as_the_kernel() {
    let all = all();
    let replay = |recording: &Recording| by_policy(recording, recording.policy).expect("equal");
    let misses: usize = all.iter().map(replay).sum();
    assert!(misses > 8_000, "{misses} decisions");
}

#[test]
fn faults_read_what_the_kernel_read() {
    let misses: usize = all()
        .iter()
        .map(|recording| by_faults(recording).expect("equal"))
        .sum();
    assert!(misses > 8_000, "{misses} decisions");
}

/// Recordings of scans tell the kernel's policies from their neighbours.
#[test]
fn another_policy_does_not_pass() {
    for recording in all().iter().filter(|r| r.name.contains("reverse")) {
        let others = match recording.policy {
            Policy::Vma(max) => [
                Policy::Vma(max / 2),
                Policy::Vma(max * 2),
                Policy::Trend(max),
            ],
            _ => [Policy::Cluster(4), Policy::Cluster(16), Policy::None],
        };
        for other in others {
            assert!(by_policy(recording, other).is_err(), "{other:?}");
        }
    }
}
