use super::locked::Locked;
use super::shipped::Shipped;
use super::*;

const CLUSTERS: u32 = 64;
const SLOTS: u32 = CLUSTERS * CLUSTER;

/// Every request size by one and two tasks; `measure` itself compares the counts.
fn all_plans<A: Area>(area: &A, free: u64) {
    touch(area);
    for tasks in 1..=TASKS {
        for request in [1, 16, CLUSTER] {
            let slots = free / 4;
            let plan = Plan {
                request,
                tasks,
                slots,
            };
            let measured = measure(area, plan).expect("the counts agree");
            // Each task ends with a request that may be more than its share.
            let most = slots + tasks as u64 * u64::from(request);
            assert!(
                (slots..most).contains(&measured.slots),
                "{plan:?}: {measured:?}"
            );
            assert!(
                measured.calls >= measured.slots / u64::from(request),
                "{plan:?}: {measured:?}"
            );
            assert!(measured.take_seconds > 0.0 && measured.put_seconds > 0.0);
        }
    }
}

#[test]
fn both_allocators_find_their_slots() {
    all_plans(&Shipped::new(SLOTS, &[]).expect("a ledger"), SLOTS.into());
    all_plans(&Locked::new(SLOTS, &[]), SLOTS.into());
}

#[test]
fn a_fragmented_area_has_one_whole_cluster_in_eight() {
    let broken = fragmented(CLUSTERS, 3);
    assert_eq!(broken.len(), CLUSTERS as usize * 7 / 8);
    let mut sorted = broken.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), broken.len());
    assert_ne!(sorted, broken, "in no order");
    assert_ne!(fragmented(CLUSTERS, 4), broken);

    let shipped = Shipped::new(SLOTS, &broken).expect("a ledger");
    let others = broken.len() as u64 * u64::from(CLUSTER) / 2;
    assert_eq!(shipped.used(), others);
    let mut task = shipped.tasks(1).pop().expect("a task");
    let mut taken = Vec::new();
    let whole = std::iter::from_fn(|| Some(task.take(CLUSTER, &mut taken)).filter(|&n| n > 0));
    assert_eq!(whole.count(), CLUSTERS as usize / 8);
    let of_others = |range: &Range<u32>| broken.contains(&(range.start / CLUSTER));
    assert!(!taken.iter().any(of_others));
    taken.into_iter().for_each(|range| task.put(range));
    assert!(refusal(&shipped, 10).expect("no cluster is free") > 0.0);
    assert_eq!(shipped.used(), others);
    all_plans(&Locked::new(SLOTS, &broken), SLOTS.into());
}

/// An allocator that hands the same slot out again and again.
struct Broken;

impl Area for Broken {
    type Task<'a> = Broken;
    fn tasks(&self, count: usize) -> Vec<Broken> {
        (0..count).map(|_| Broken).collect()
    }
    fn used(&self) -> u64 {
        1
    }
}

impl Task for Broken {
    fn take(&mut self, _: u32, taken: &mut Vec<Range<u32>>) -> u32 {
        taken.push(0..1);
        1
    }
    fn put(&mut self, _: Range<u32>) {}
    fn end(&mut self) {}
}

#[test]
fn a_slot_that_is_taken_twice_is_noticed() {
    let plan = Plan {
        request: 1,
        tasks: 2,
        slots: 10,
    };
    let error = measure(&Broken, plan)
        .expect_err("one slot is not ten")
        .to_string();
    assert!(
        error.contains("taken twice") && error.contains("10 were taken"),
        "{error}"
    );
}
