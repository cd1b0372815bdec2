//! The slot allocator under random requests of several processes, against a table that knows the holder of each slot.
//! `FORESWAP_SEED=<n>` replays one seed, `FORESWAP_SEEDS=<n>` sets how many are run.
//!
//! The table follows the contract of `SwapMap` literally: the claimed cluster is drawn from all that satisfy the
//! request.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use foreswap_core::Slots;
use foreswap_core::units::{LEAF_PAGES, Slot};
use foreswap_core::world::SwapMap;
use foreswap_model::Chance;

const CLUSTER: u32 = LEAF_PAGES as u32;
const PROCESSES: usize = 3;
const STEPS: u64 = 400;
const SEEDS: u64 = 300;

/// One area: the holder of each slot, and the process that has claimed each cluster.
struct Area {
    holders: Vec<Option<usize>>,
    owners: Vec<Option<usize>>,
    compresses: bool,
}

impl Area {
    fn new(slots: u32, compresses: bool) -> Self {
        Area {
            holders: vec![None; slots as usize],
            owners: vec![None; slots.div_ceil(CLUSTER) as usize],
            compresses,
        }
    }

    fn cluster(&self, cluster: usize) -> &[Option<usize>] {
        let first = cluster * LEAF_PAGES;
        &self.holders[first..self.holders.len().min(first + LEAF_PAGES)]
    }

    fn is_empty(&self, cluster: usize) -> bool {
        self.cluster(cluster).iter().all(Option::is_none)
    }

    /// Whether `me` can get a slot here: one is free in a cluster that no other has claimed.
    fn has_for(&self, me: usize) -> bool {
        let mut clusters = 0..self.owners.len();
        clusters.any(|c| {
            self.owners[c].is_none_or(|owner| owner == me) && self.cluster(c).contains(&None)
        })
    }

    /// The clusters of 512 slots that are empty and not claimed.
    fn whole_clusters(&self) -> impl Iterator<Item = usize> {
        (0..self.owners.len()).filter(|&c| {
            self.owners[c].is_none() && self.cluster(c).len() == LEAF_PAGES && self.is_empty(c)
        })
    }

    fn free(&self) -> usize {
        self.holders
            .iter()
            .filter(|holder| holder.is_none())
            .count()
    }
}

struct Table {
    areas: Vec<Area>,
    rng: Chance,
}

/// The table as one process sees it.
#[derive(Clone, Copy)]
struct View<'a> {
    table: &'a RefCell<Table>,
    me: usize,
}

impl SwapMap for View<'_> {
    fn nth(&self, n: u8) -> Option<u8> {
        (usize::from(n) < self.table.borrow().areas.len()).then_some(n)
    }
    fn slots(&self, area: u8) -> u32 {
        self.table.borrow().areas[usize::from(area)].holders.len() as u32
    }
    fn used(&self, area: u8) -> u64 {
        let area = &self.table.borrow().areas[usize::from(area)];
        (area.holders.len() - area.free()) as u64
    }
    fn compresses(&self, area: u8) -> bool {
        self.table.borrow().areas[usize::from(area)].compresses
    }
    fn claim_cluster(&mut self, area: u8) -> Option<u32> {
        let table = &mut *self.table.borrow_mut();
        let area = &mut table.areas[usize::from(area)];
        let will_do = |&c: &usize| area.owners[c].is_none() && area.cluster(c).contains(&None);
        let clusters: Vec<usize> = (0..area.owners.len()).filter(will_do).collect();
        if clusters.is_empty() {
            return None;
        }
        let cluster = table.rng.pick(&clusters);
        area.owners[cluster] = Some(self.me);
        Some(cluster as u32)
    }
    fn claim_empty_cluster(&mut self, area: u8) -> Option<u32> {
        let table = &mut *self.table.borrow_mut();
        let area = &mut table.areas[usize::from(area)];
        let clusters: Vec<usize> = area.whole_clusters().collect();
        if clusters.is_empty() {
            return None;
        }
        let cluster = table.rng.pick(&clusters);
        area.owners[cluster] = Some(self.me);
        Some(cluster as u32)
    }
    fn release_cluster(&mut self, area: u8, cluster: u32) {
        let owner = &mut self.table.borrow_mut().areas[usize::from(area)].owners[cluster as usize];
        assert_eq!(
            owner.take(),
            Some(self.me),
            "cluster {cluster} of area {area}"
        );
    }
    fn count(&self, slot: Slot) -> u32 {
        let area = &self.table.borrow().areas[usize::from(slot.area)];
        u32::from(area.holders[slot.index as usize].is_some())
    }
    fn get(&mut self, first: Slot, n: u32) {
        let area = &mut self.table.borrow_mut().areas[usize::from(first.area)];
        let owner = area.owners[first.cluster() as usize];
        assert_eq!(
            owner,
            Some(self.me),
            "{first:?} is not in a cluster of ours"
        );
        for slot in (0..n).map(|i| first.plus(i)) {
            let holder = &mut area.holders[slot.index as usize];
            assert_eq!(holder.replace(self.me), None, "{slot:?} is in use");
        }
    }
    fn put(&mut self, slot: Slot) {
        let area = &mut self.table.borrow_mut().areas[usize::from(slot.area)];
        let holder = &mut area.holders[slot.index as usize];
        assert_eq!(holder.take(), Some(self.me), "{slot:?} is not ours");
    }
    fn share(&mut self, _: impl Iterator<Item = Slot>) {
        unreachable!("the allocator shares nothing");
    }
    fn digest(&self, _: Slot) -> u64 {
        unreachable!("the allocator reads no digest");
    }
    fn set_digest(&mut self, _: Slot, _: u64) {
        unreachable!("the allocator sets no digest");
    }
}

/// One process: its allocator, its slots, and the areas that are closed to it.
#[derive(Default)]
struct Process {
    slots: Slots,
    held: Vec<Slot>,
    closed: BTreeSet<u8>,
    /// The slot behind the last ones taken.
    next: Option<Slot>,
}

impl Process {
    /// The areas in which `will_do`, of those that are open to us.
    fn open_areas(&self, view: View, will_do: impl Fn(&Area) -> bool) -> Vec<u8> {
        let areas = &view.table.borrow().areas;
        let open = (0u8..).zip(areas).filter(|(n, _)| !self.closed.contains(n));
        open.filter(|(_, area)| will_do(area))
            .map(|(n, _)| n)
            .collect()
    }

    fn take(&mut self, mut view: View, max: u32) {
        self.next = self.next.filter(|next| view.count(*next) == 0);
        let can = self.open_areas(view, |area| area.has_for(view.me));
        let taken = self.slots.take(&mut view, max);
        self.on_taken(view, taken, max, can.first().copied());
    }

    fn take_beyond(&mut self, mut view: View, max: u32) {
        let can = self.open_areas(view, |area| area.has_for(view.me));
        self.next = None;
        let whole = self.open_areas(view, |area| !area.compresses && area.has_for(view.me));
        if view.table.borrow_mut().rng.one_in(500) {
            assert_eq!(self.slots.has_in_tier(&mut view, 1), !whole.is_empty());
        }
        let taken = self.slots.take_from_tier(&mut view, 1, max);
        self.on_taken(view, taken, max, whole.first().or(can.first()).copied());
    }

    /// The result of a request must lie in `area`, and reach as far as it can.
    fn on_taken(&mut self, view: View, taken: Option<(Slot, u32)>, max: u32, area: Option<u8>) {
        assert_eq!(
            taken.map(|(first, _)| first.area),
            area,
            "from the first area that has room"
        );
        let Some((first, n)) = taken else {
            return;
        };
        assert!((1..=max).contains(&n), "{n} of {max}");
        let after = first.plus(n);
        let at_end = after.index % CLUSTER == 0 || after.index == view.slots(first.area);
        assert_eq!(first.cluster(), first.plus(n - 1).cluster());
        if let Some(next) = self.next.filter(|next| next.area == first.area) {
            assert_eq!(
                first, next,
                "what is taken one after the other lies together"
            );
        }
        self.next = (!at_end).then_some(after);
        assert!(
            n == max || at_end || view.count(after) > 0,
            "{n} of {max} at {first:?}"
        );
        self.held.extend((0..n).map(|i| first.plus(i)));
    }

    fn take_cluster(&mut self, mut view: View) {
        let can = self.open_areas(view, |area| area.whole_clusters().next().is_some());
        let taken = self.slots.take_cluster(&mut view);
        assert_eq!(
            taken.map(|first| first.area),
            can.first().copied(),
            "whole clusters"
        );
        if let Some(first) = taken {
            assert_eq!(first.index % CLUSTER, 0);
            let owners = &view.table.borrow().areas[usize::from(first.area)].owners;
            assert_eq!(owners[first.cluster() as usize], None, "it is kept");
            self.held.extend((0..CLUSTER).map(|i| first.plus(i)));
        }
    }

    /// Put `n` slots back, consecutive in the order in which they were taken, or any.
    fn put(&mut self, mut view: View, n: usize, in_order: bool) {
        for _ in 0..n.min(self.held.len()) {
            let last = self.held.len() - 1;
            let at = match in_order {
                true => last,
                false => view.table.borrow_mut().rng.below(last as u64 + 1) as usize,
            };
            view.put(self.held.swap_remove(at));
        }
    }

    fn give_back(&mut self, mut view: View) {
        self.slots.give_back(&mut view);
        self.next = None;
    }

    fn step(&mut self, mut view: View, rng: &mut Chance) {
        let areas = view.table.borrow().areas.len() as u64;
        match rng.below(20) {
            0..5 => self.take(view, 1 + rng.below(16) as u32),
            5..7 => self.take(view, 1 + rng.below(CLUSTER.into()) as u32),
            7..9 => self.take_beyond(view, 1 + rng.below(64) as u32),
            9..12 => self.take_cluster(view),
            12..15 => self.put(view, rng.below(700) as usize, true),
            15..17 => self.put(view, rng.below(200) as usize, false),
            17 => {
                self.give_back(view);
                let table = view.table.borrow();
                let owners = table.areas.iter().flat_map(|area| &area.owners);
                assert!(
                    !owners.flatten().any(|&owner| owner == view.me),
                    "all is given back"
                );
            }
            18 => {
                let area = rng.below(areas) as u8;
                self.slots.close(&mut view, area);
                self.next = None;
                self.closed.insert(area);
            }
            _ => {
                if let Some(area) = self.closed.pop_first() {
                    self.slots.open(area);
                }
            }
        }
        let open = self.open_areas(view, |_| true);
        let free = |area: &u8| view.table.borrow().areas[usize::from(*area)].free() as u64;
        assert_eq!(self.slots.room(&view), open.iter().map(free).sum());
    }
}

/// No process claims more than one cluster of an area, and the table agrees with the processes on the holder of each
/// slot.
fn check(table: &RefCell<Table>, processes: &[Process]) {
    for (n, area) in (0u8..).zip(&table.borrow().areas) {
        for (me, process) in processes.iter().enumerate() {
            let claimed = area.owners.iter().filter(|owner| **owner == Some(me));
            assert!(
                claimed.count() <= 1,
                "process {me} claims clusters of area {n}"
            );
            let mine = area.holders.iter().filter(|holder| **holder == Some(me));
            let held = process.held.iter().filter(|slot| slot.area == n);
            assert_eq!(mine.count(), held.count(), "process {me} on area {n}");
        }
    }
}

fn live(seed: u64) {
    let mut rng = Chance::new(seed);
    // From a part of a cluster to eight and a part; most end with a part of one.
    let areas = (0..1 + rng.below(3))
        .map(|_| {
            Area::new(
                1 + rng.below(8 * u64::from(CLUSTER)) as u32,
                rng.one_in(250),
            )
        })
        .collect();
    let of_table = Chance::new(seed ^ 0x7ab1e);
    let table = RefCell::new(Table {
        areas,
        rng: of_table,
    });
    let view = |me| View { table: &table, me };
    let mut processes: Vec<Process> = Vec::new();
    processes.resize_with(PROCESSES, Process::default);
    for _ in 0..STEPS {
        let me = rng.below(PROCESSES as u64) as usize;
        processes[me].step(view(me), &mut rng);
        check(&table, &processes);
    }

    // One process alone finds all that the others leave, to the last slot.
    for (me, process) in processes.iter_mut().enumerate() {
        process.give_back(view(me));
        while let Some(area) = process.closed.pop_first() {
            process.slots.open(area);
        }
    }
    let last = &mut processes[0];
    while !last.open_areas(view(0), |area| area.has_for(0)).is_empty() {
        last.take(view(0), 1 + rng.below(CLUSTER.into()) as u32);
    }
    last.take(view(0), 1);
    assert!(table.borrow().areas.iter().all(|area| area.free() == 0));
    // And every whole cluster, when all is put back.
    let table_is = |whole: bool| {
        let table = table.borrow();
        assert_eq!(
            table
                .areas
                .iter()
                .any(|area| area.whole_clusters().next().is_some()),
            whole
        );
    };
    for (me, process) in processes.iter_mut().enumerate() {
        process.put(view(me), usize::MAX, true);
        process.give_back(view(me));
    }
    let clusters: u32 = (0..view(0).table.borrow().areas.len() as u8)
        .map(|area| view(0).slots(area) / CLUSTER)
        .sum();
    table_is(clusters > 0);
    (0..=clusters).for_each(|_| processes[1].take_cluster(view(1)));
    table_is(false);
    assert_eq!(processes[1].held.len() as u32, clusters * CLUSTER);
    check(&table, &processes);
}

#[test]
fn every_free_slot_is_found_and_none_is_taken_twice() {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u64>().ok();
    let seeds = match number("FORESWAP_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..1 + number("FORESWAP_SEEDS").unwrap_or(SEEDS),
    };
    println!("seeds {seeds:?}");
    let is_bad = |seed: &u64| {
        let lived = catch_unwind(AssertUnwindSafe(|| live(*seed)));
        if lived.is_err() {
            println!("replay with FORESWAP_SEED={seed}");
        }
        lived.is_err()
    };
    let failed: Vec<u64> = seeds.filter(is_bad).collect();
    assert!(failed.is_empty(), "seeds failed: {failed:?}");
}
