//! The slot allocator against a plain table, and areas that fail.

use super::*;
use alloc::vec;

/// Areas as a plain table; clusters belong to us or to other processes.
struct Map {
    counts: Vec<Vec<u32>>,
    ours: Vec<Vec<Option<bool>>>,
}

impl Map {
    fn new(areas: &[u32]) -> Self {
        let clusters = |n: &u32| vec![None; n.div_ceil(LEAF_PAGES as u32) as usize];
        Map {
            counts: areas.iter().map(|&n| vec![0; n as usize]).collect(),
            ours: areas.iter().map(clusters).collect(),
        }
    }
}

impl Map {
    fn cluster_used(&self, area: u8, cluster: u32) -> u32 {
        let counts = &self.counts[usize::from(area)];
        let first = cluster as usize * LEAF_PAGES;
        let last = counts.len().min(first + LEAF_PAGES);
        counts[first..last].iter().filter(|n| **n > 0).count() as u32
    }
}

impl SwapMap for Map {
    fn nth(&self, n: u8) -> Option<u8> {
        (usize::from(n) < self.counts.len()).then_some(n)
    }
    fn slots(&self, area: u8) -> u32 {
        self.counts[usize::from(area)].len() as u32
    }
    fn used(&self, area: u8) -> u64 {
        let used = |n: &&u32| **n > 0;
        self.counts[usize::from(area)].iter().filter(used).count() as u64
    }
    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        let clusters = self.ours[usize::from(area)].len() as u32;
        let room = |c: &u32| {
            let slots = self.slots(area) - c * LEAF_PAGES as u32;
            self.cluster_used(area, *c) < slots.min(LEAF_PAGES as u32)
        };
        let free = |c: &u32| self.ours[usize::from(area)][*c as usize].is_none();
        let cluster = (0..clusters).filter(free).filter(room);
        let cluster = cluster.min_by_key(|&c| self.cluster_used(area, c) > 0)?;
        self.ours[usize::from(area)][cluster as usize] = Some(true);
        Some(cluster)
    }
    fn release_cluster(&mut self, area: u8, cluster: u32) {
        let ours = &mut self.ours[usize::from(area)][cluster as usize];
        assert_eq!(ours.take(), Some(true));
    }
    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        let whole = 0..self.slots(area) / LEAF_PAGES as u32;
        let free = |c: &u32| self.ours[usize::from(area)][*c as usize].is_none();
        let cluster = whole
            .filter(free)
            .find(|&c| self.cluster_used(area, c) == 0)?;
        self.ours[usize::from(area)][cluster as usize] = Some(true);
        Some(cluster)
    }
    fn count(&self, slot: Slot) -> u32 {
        self.counts[usize::from(slot.area)][slot.index as usize]
    }
    fn get(&mut self, first: Slot, n: u32) {
        for slot in (0..n).map(|i| first.plus(i)) {
            assert_eq!(self.count(slot), 0, "{slot:?} is in use");
            let ours = self.ours[usize::from(slot.area)][slot.cluster() as usize];
            assert_eq!(ours, Some(true), "{slot:?} is not ours to take");
            self.counts[usize::from(slot.area)][slot.index as usize] = 1;
        }
    }
    fn put(&mut self, slot: Slot) {
        self.counts[usize::from(slot.area)][slot.index as usize] -= 1;
    }
    fn share(&mut self, slots: impl Iterator<Item = Slot>) {
        for slot in slots {
            self.counts[usize::from(slot.area)][slot.index as usize] += 1;
        }
    }
    fn digest(&self, _: Slot) -> u64 {
        0
    }
    fn set_digest(&mut self, _: Slot, _: u64) {}
}

/// A small generator: each call returns a number below its argument.
fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move |n| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    }
}

/// Random takes and puts. Slots that are taken were free and are consecutive, in the first area that
/// has room; `None` means that neither a slot of ours nor a cluster is free.
#[test]
fn every_free_slot_can_be_taken_and_none_twice() {
    for seed in 1..40u64 {
        let mut below = random(seed);
        let mut map = Map::new(&[300, 1500, 40]);
        let mut slots = Slots::default();
        let mut taken: Vec<Slot> = Vec::new();
        for _ in 0..2_000 {
            match below(8) {
                0..4 => {
                    let max = 1 + below(64) as u32;
                    let Some((first, n)) = slots.take(&mut map, max) else {
                        assert_eq!(taken.len(), 300 + 1500 + 40, "room was left");
                        continue;
                    };
                    assert!(n >= 1 && n <= max);
                    for area in 0..first.area {
                        assert_eq!(map.used(area), map.slots(area).into(), "priority");
                    }
                    assert_eq!(first.cluster(), first.plus(n - 1).cluster());
                    taken.extend((0..n).map(|i| first.plus(i)));
                }
                4..7 => {
                    for _ in 0..below(90).min(taken.len() as u64) {
                        let at = below(taken.len() as u64) as usize;
                        map.put(taken.swap_remove(at));
                    }
                }
                _ => slots.give_back(&mut map),
            }
            let used: u64 = (0..3).map(|area| map.used(area)).sum();
            assert_eq!(used, taken.len() as u64);
        }
    }
}

/// Whole clusters between single slots: each is free before and claimed by no process after, and `None` means that
/// no cluster is empty except perhaps the one in use.
#[test]
fn whole_clusters_are_taken_as_long_as_there_are_empty_ones() {
    for seed in 1..20u64 {
        let mut below = random(seed);
        let mut map = Map::new(&[700, 4096]);
        let mut slots = Slots::default();
        let mut units: Vec<Slot> = Vec::new();
        let mut singles: Vec<Slot> = Vec::new();
        for _ in 0..300 {
            match below(4) {
                0 => {
                    let Some((first, n)) = slots.take(&mut map, 1 + below(300) as u32) else {
                        continue;
                    };
                    singles.extend((0..n).map(|i| first.plus(i)));
                }
                1 => {
                    let Some(first) = slots.take_cluster(&mut map) else {
                        let empty = |area: u8| {
                            let whole = map.slots(area) / LEAF_PAGES as u32;
                            (0..whole)
                                .filter(|&c| map.cluster_used(area, c) == 0)
                                .filter(|&c| map.ours[usize::from(area)][c as usize].is_none())
                                .count()
                        };
                        assert_eq!(empty(0) + empty(1), 0);
                        continue;
                    };
                    assert_eq!(first.index % LEAF_PAGES as u32, 0);
                    let cluster = first.cluster() as usize;
                    assert_eq!(map.ours[usize::from(first.area)][cluster], None);
                    assert_eq!(map.cluster_used(first.area, first.cluster()), 512);
                    units.push(first);
                }
                2 if !units.is_empty() => {
                    let first = units.swap_remove(below(units.len() as u64) as usize);
                    // A part of it at first, as a discard in a huge page does.
                    for i in (0..LEAF_PAGES as u32).rev() {
                        map.put(first.plus(i));
                    }
                }
                _ => {
                    for slot in singles.drain(..singles.len() / 2) {
                        map.put(slot);
                    }
                }
            }
            let used: u64 = (0..2).map(|area| map.used(area)).sum();
            assert_eq!(used, (512 * units.len() + singles.len()) as u64);
        }
    }
}

#[test]
fn a_closed_area_is_not_taken_from_until_it_is_opened() {
    let mut map = Map::new(&[1024, 1024]);
    let mut slots = Slots::default();
    assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(0));
    slots.close(&mut map, 0);
    assert_eq!(map.ours[0], [None, None], "its cluster is given back");
    assert_eq!(slots.room(&map), 1024);
    assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(1));
    slots.open(0);
    assert_eq!(slots.room(&map), 1014 + 1014);
    assert_eq!(slots.take(&mut map, 10).map(|(s, _)| s.area), Some(0));
}

#[test]
fn an_area_that_fails_or_has_no_room_is_left_alone() {
    let mut map = Map::new(&[2048, 2048]);
    let mut slots = Slots::default();
    assert_eq!(
        slots.take(&mut map, 512).map(|(s, n)| (s.area, n)),
        Some((0, 512))
    );
    slots.no_room(0);
    assert_eq!(slots.take(&mut map, 1).map(|(s, _)| s.area), Some(1));
    for _ in 0..REST {
        slots.take(&mut map, 1);
    }
    assert_eq!(slots.take(&mut map, 1).map(|(s, _)| s.area), Some(0));
    // A server that went away is no bad area, however many writes it had; but their slots are not used again.
    for _ in 0..2 * WRITE_FAILURES {
        let lost = IoResult::Failed(ECONNRESET);
        let taken = (0..=REST).find_map(|_| slots.take(&mut map, 1));
        let (slot, _) = taken.expect("an area that is used again");
        slots.on_not_written(&mut map, slot, lost);
        slots.on_write_end(slot.area, lost, false, 0);
        assert!(slots.bad.contains(&slot) && map.count(slot) == 1);
    }
    for _ in 0..WRITE_FAILURES {
        for area in [1, 0] {
            slots.on_write_end(area, IoResult::Failed(5), false, 0);
        }
    }
    assert_eq!(slots.take(&mut map, 1), None);
}

/// The trials of an area whose writes fail are rare; after the first that succeeds it is used as before.
#[test]
fn an_area_that_fails_is_tried_again_and_forgiven() {
    let (eio, mut now) = (IoResult::Failed(5), 0);
    let mut map = Map::new(&[2048]);
    let mut slots = Slots::default();
    let mut trials = Vec::new();
    let step = 100_000_000;
    // Ten minutes on a broken device.
    for _ in 0..6000 {
        now += step;
        slots.try_again(now);
        if let Some((slot, 1)) = slots.take(&mut map, 1) {
            slots.on_not_written(&mut map, slot, eio);
            slots.on_write_end(0, eio, false, now);
            trials.push(now);
        } else {
            assert_eq!(slots.room(&map), 0);
        }
    }
    let trials = &trials[WRITE_FAILURES as usize - 1..];
    let pauses: Vec<Nanos> = trials.windows(2).map(|two| two[1] - two[0]).collect();
    let doubled: Vec<Nanos> = (0..7).map(|n| AWAY << n).collect();
    assert_eq!(pauses[..7], doubled);
    assert!(pauses[7..].iter().all(|pause| *pause == MOST_AWAY));
    assert!(trials.len() < 20, "{}", trials.len());
    // It is mended.
    now += MOST_AWAY;
    slots.try_again(now);
    for _ in 0..WRITE_FAILURES {
        assert!(slots.take(&mut map, 1).is_some());
        slots.on_write_end(0, IoResult::Ok, false, now);
    }
    for n in 1..WRITE_FAILURES {
        slots.on_write_end(0, eio, false, now);
        assert!(slots.take(&mut map, 1).is_some(), "{n} failures");
    }
    slots.on_write_end(0, eio, false, now);
    assert_eq!(slots.take(&mut map, 1), None);
    slots.try_again(now + AWAY - 1);
    assert_eq!(slots.take(&mut map, 1), None);
    slots.try_again(now + AWAY);
    assert!(slots.take(&mut map, 1).is_some());
}
