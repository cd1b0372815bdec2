//! Replays one recording through the core's policy: the same touches, and at each miss the pages that the core would
//! read, compared with those that Linux read.
//!
//! The memory follows the recording, not the core: after a difference, later decisions are judged from the kernel's
//! state, and one difference does not count several times.

use std::collections::HashMap;
use std::fmt;

use foreswap_core::readahead::{ClusterHistory, History, Policy, Shared, Touch, Window};
use foreswap_core::units::{Slot, Vpn};

use super::recording::{Swap, SwapPolicy};

/// Start of the region: at a border of 2 MiB, far from page 0.
const BASE: u64 = 512 * 77;
/// Largest window of `vma`, whatever `page_cluster` (the kernel's `SWAP_RA_ORDER_CEILING`).
const VMA_CEILING: u32 = 5;

/// The first decision that differs.
#[derive(PartialEq, Eq, Debug)]
pub struct Difference {
    /// The number of the touch, from 0.
    pub touch: usize,
    /// Its page.
    pub page: u64,
    /// The core's pages, sorted.
    pub ours: Vec<u64>,
    /// Linux's pages, sorted.
    pub theirs: Vec<u64>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ours, theirs) = (runs(&self.ours), runs(&self.theirs));
        let (touch, page) = (self.touch, self.page);
        write!(
            f,
            "touches[{touch}], page {page}: {ours}; Linux read {theirs}"
        )
    }
}

/// Sorted pages, written as runs.
fn runs(pages: &[u64]) -> String {
    let run = |run: &[u64]| match *run {
        [first, .., last] => format!("{first}-{last}"),
        [only] => only.to_string(),
        [] => String::new(),
    };
    let runs: Vec<_> = pages
        .chunk_by(|a, b| a.checked_add(1) == Some(*b))
        .map(run)
        .collect();
    match runs.is_empty() {
        true => "nothing".into(),
        false => runs.join(","),
    }
}

/// The result of one recording.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Comparison {
    /// Misses, of Linux or of the core.
    pub decisions: usize,
    /// Of these, equal in every page.
    pub equal: usize,
    /// The first difference.
    pub first: Option<Difference>,
}

/// Replays all touches of a recording.
pub fn replay(swap: &Swap) -> Comparison {
    let mut machine = Machine::new(swap);
    let mut result = Comparison::default();
    for (touch, (page, theirs)) in swap.touches.iter().enumerate() {
        let ours = machine.touch(*page);
        machine.bring(theirs);
        if ours.is_empty() && theirs.is_empty() {
            continue;
        }
        result.decisions += 1;
        if ours == *theirs {
            result.equal += 1;
        } else if result.first.is_none() {
            result.first = Some(Difference {
                touch,
                page: *page,
                ours,
                theirs: theirs.clone(),
            });
        }
    }
    result
}

/// A page that is not only on the area.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// Read by readahead and not used since.
    Ahead,
    /// Mapped.
    Used,
}

struct Machine<'a> {
    swap: &'a Swap,
    policy: Policy,
    history: History,
    shared: Shared,
    memory: HashMap<u64, At>,
}

impl<'a> Machine<'a> {
    fn new(swap: &'a Swap) -> Self {
        let order = swap.page_cluster;
        let (hits, window) = swap.left;
        let cluster = ClusterHistory {
            hits,
            window,
            ..ClusterHistory::default()
        };
        Machine {
            swap,
            policy: match swap.policy {
                SwapPolicy::Vma => Policy::Vma(1 << order.min(VMA_CEILING)),
                SwapPolicy::Cluster => Policy::Cluster(1 << order),
            },
            history: History::default(),
            shared: Shared { cluster },
            memory: HashMap::new(),
        }
    }

    /// The page is used; returns the pages that would be read for it, sorted.
    fn touch(&mut self, page: u64) -> Vec<u64> {
        let before = self.memory.insert(page, At::Used);
        let slot = self.swap.slots.get(&page);
        let touch = Touch {
            page: Vpn(BASE + page),
            slot: slot.map(|&index| Slot { area: 0, index }),
            ahead: before == Some(At::Ahead),
            region: &(Vpn(BASE)..Vpn(BASE + self.swap.pages)),
        };
        let (shared, history) = (&mut self.shared, &mut self.history);
        if before.is_some() {
            if touch.ahead {
                self.policy.on_hit(shared, history, &touch);
            }
            return Vec::new();
        }
        let window = self.policy.on_miss(shared, history, &touch);
        let absent = |page: &u64| !self.memory.contains_key(page);
        let mut read: Vec<u64> = match window {
            Window::Pages {
                first,
                stride,
                count,
            } => {
                let page = |n| first.0.wrapping_add_signed(n * stride) - BASE;
                (0..i64::from(count)).map(page).filter(absent).collect()
            }
            Window::Slots { first, count } => {
                let end = first.index.saturating_add(count);
                let owners = self.swap.owners.range(first.index..end);
                owners.map(|(_, &page)| page).filter(absent).collect()
            }
        };
        read.push(page);
        read.sort_unstable();
        read
    }

    /// The pages that Linux read are in memory from now on.
    fn bring(&mut self, pages: &[u64]) {
        for &page in pages {
            self.memory.entry(page).or_insert(At::Ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    /// A scan that begins with a window cut off by the region's start.
    fn scan() -> Swap {
        Swap {
            name: "scan".into(),
            policy: SwapPolicy::Vma,
            page_cluster: 3,
            pages: 100,
            touches: vec![
                (0, vec![0, 1, 2, 3, 4]),
                (1, vec![]),
                (2, vec![]),
                (3, vec![]),
                (4, vec![]),
                (5, (5..13).collect()),
            ],
            slots: HashMap::new(),
            owners: BTreeMap::new(),
            left: (0, 0),
        }
    }

    #[test]
    fn equal_decisions_are_counted_and_hits_are_not_decisions() {
        let result = replay(&scan());
        let all = Comparison {
            decisions: 2,
            equal: 2,
            first: None,
        };
        assert_eq!(result, all);
    }

    #[test]
    fn a_page_too_many_too_few_or_elsewhere_is_a_difference() {
        for (touch, read) in [
            (0, vec![0, 1, 2, 3, 4, 5]),
            (5, vec![5, 6, 7, 8, 9, 10, 11]),
            (5, vec![5, 6, 7, 8, 9, 10, 11, 13]),
            (5, vec![]),
            (3, vec![3]),
        ] {
            let mut swap = scan();
            swap.touches[touch].1 = read;
            let first = replay(&swap).first.map(|first| first.touch);
            assert_eq!(first, Some(touch));
        }
    }

    /// Linux read a page less, and the touch of it is a miss for both.
    #[test]
    fn after_a_difference_the_kernels_memory_counts() {
        let mut swap = scan();
        swap.touches = vec![(0, vec![0, 1, 2]), (1, vec![]), (2, vec![])];
        swap.touches.push((3, vec![3, 4, 5, 6]));
        let result = replay(&swap);
        assert_eq!((result.decisions, result.equal), (2, 1));
        let first = result.first.expect("one").to_string();
        assert_eq!(first, "touches[0], page 0: 0-4; Linux read 0-2");
    }

    #[test]
    fn pages_are_written_as_runs() {
        assert_eq!(runs(&[]), "nothing");
        assert_eq!(runs(&[4]), "4");
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]), "1-3,7,9-10");
    }
}
