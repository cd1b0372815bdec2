//! Background reclaim: each decision, each defect, and the invariants.

use alloc::vec::Vec;

use super::*;

const DMA: ZoneIndex = ZoneIndex(0);
const NORMAL: ZoneIndex = ZoneIndex(1);

fn zone(pages: u64, free: u64) -> Zone {
    let min = pages / 100;
    Zone {
        pages,
        free,
        largest: Some(10),
        marks: Watermarks {
            min,
            low: min + min / 4,
            high: min + min / 2,
        },
        reserve: [0; MAX_ZONES],
    }
}

/// A small low zone, high 60 of 4,000, and a large one, high 1,500 of 100,000.
fn node(dma: u64, normal: u64) -> [Zone; 2] {
    [zone(4_000, dma), zone(100_000, normal)]
}

fn kswapd(defects: Defects) -> Kswapd {
    Kswapd::new(Config { zones: 2, defects })
}

fn defect(name: &str) -> Defects {
    Defects::default().with(name).expect("known")
}

/// A reclaim that sleeps, on a balanced node.
fn asleep(defects: Defects) -> Kswapd {
    let mut kswapd = kswapd(defects);
    let zones = node(2_000, 50_000);
    assert_eq!(kswapd.next(&zones), Action::Nap);
    kswapd.on_nap_over();
    assert_eq!(kswapd.next(&zones), Action::Sleep);
    kswapd
}

/// A reclaim that got a request and is in its first round.
fn at_work(defects: Defects, order: u32, zones: &[Zone]) -> Kswapd {
    let mut kswapd = asleep(defects);
    assert!(kswapd.on_request(zones, order, NORMAL));
    kswapd.on_woken();
    assert!(matches!(kswapd.next(zones), Action::Reclaim(_)));
    kswapd
}

fn round(action: Action) -> Round {
    match action {
        Action::Reclaim(round) => round,
        other => panic!("{other:?}, not a round"),
    }
}

#[test]
fn a_request_wakes_it_only_when_no_eligible_zone_is_balanced() {
    let mut kswapd = asleep(Defects::default());
    assert!(!kswapd.on_request(&node(2_000, 1_000), 0, NORMAL));
    // The low zone is enough, but not for a request of its own.
    assert!(!kswapd.on_request(&node(50, 50_000), 0, NORMAL));
    assert!(kswapd.on_request(&node(50, 50_000), 0, DMA));
    assert!(kswapd.on_request(&node(50, 1_400), 0, NORMAL));
    // A zone without pages is none.
    let mut zones = node(50, 1_400);
    zones[0] = Zone::default();
    assert!(kswapd.on_request(&zones, 0, NORMAL));
    assert_eq!(kswapd.next(&zones), Action::Sleep, "not before on_woken");
}

#[test]
fn one_that_works_is_not_woken_and_serves_the_request_next() {
    let mut kswapd = at_work(Defects::default(), 0, &node(10, 1_000));
    assert!(!kswapd.on_request(&node(10, 1_000), 3, NORMAL));
    assert!(!kswapd.on_request(&node(10, 1_000), 2, DMA));
    kswapd.on_reclaimed(Reclaimed {
        scanned: 5_000,
        freed: 600,
    });
    // Balanced for the first, not for the second: there is no block of 8 pages.
    let mut zones = node(10, 1_600);
    zones[1].largest = Some(2);
    assert_eq!(kswapd.next(&zones), Action::Again);
    let round = round(kswapd.next(&zones));
    assert_eq!((round.order, round.highest), (3, NORMAL));
}

#[test]
fn rounds_become_harder_until_something_is_freed() {
    let zones = node(10, 1_000);
    let mut kswapd = at_work(Defects::default(), 0, &zones);
    let first = round(kswapd.next(&zones));
    let expected = Round {
        priority: 12,
        order: 0,
        highest: NORMAL,
        target: 1_560,
    };
    assert_eq!(first, expected);
    for (scanned, freed, priority) in [
        // Nothing freed; too little looked at; both well: as hard as before.
        (5_000, 0, 11),
        (1_559, 100, 10),
        (1_560, 1, 10),
        (1_560, 0, 9),
    ] {
        kswapd.on_reclaimed(Reclaimed { scanned, freed });
        assert_eq!(round(kswapd.next(&zones)).priority, priority);
    }
    // The last round is at 1, then it checks the node and begins again.
    for priority in (1..9).rev() {
        kswapd.on_reclaimed(Reclaimed {
            scanned: 0,
            freed: 0,
        });
        assert_eq!(round(kswapd.next(&zones)).priority, priority);
    }
    kswapd.on_reclaimed(Reclaimed {
        scanned: 0,
        freed: 0,
    });
    assert_eq!(kswapd.next(&zones), Action::Again);
    assert_eq!(round(kswapd.next(&zones)).priority, FIRST_PRIORITY);
    // Pages were freed on the way, so it has not failed.
    assert_eq!(kswapd.counters().failures, 0);
}

#[test]
fn a_batch_is_the_least_target() {
    let mut zones = node(0, 0);
    zones[0].marks = Watermarks::default();
    zones[1].marks = Watermarks::default();
    let mut kswapd = at_work(Defects::default(), 0, &zones);
    assert_eq!(round(kswapd.next(&zones)).target, 2 * RECLAIM_BATCH);
}

#[test]
fn a_nap_that_a_request_ends_was_too_early() {
    let mut kswapd = at_work(Defects::default(), 0, &node(10, 1_000));
    kswapd.on_reclaimed(Reclaimed {
        scanned: 5_000,
        freed: 600,
    });
    assert_eq!(kswapd.next(&node(10, 1_600)), Action::Nap);
    assert!(kswapd.on_request(&node(10, 1_200), 0, DMA));
    kswapd.on_woken();
    // The request that it worked for still counts.
    assert_eq!(round(kswapd.next(&node(10, 1_200))).highest, NORMAL);
    assert_eq!(kswapd.counters().naps_cut, 1);
}

#[test]
fn after_a_nap_it_looks_again() {
    let mut kswapd = kswapd(Defects::default());
    assert_eq!(kswapd.next(&node(2_000, 50_000)), Action::Nap);
    kswapd.on_nap_over();
    // Memory was used up meanwhile, without a request.
    assert_eq!(kswapd.next(&node(10, 1_000)), Action::Again);
    assert_eq!(round(kswapd.next(&node(10, 1_000))).highest, NORMAL);
    let counters = kswapd.counters();
    assert_eq!(
        (counters.naps, counters.sleeps, counters.kept_awake),
        (1, 0, 1)
    );
}

#[test]
fn a_large_order_is_given_up_once_its_pages_are_free() {
    let mut zones = node(10, 1_000);
    zones[1].largest = Some(3);
    let mut kswapd = at_work(Defects::default(), 9, &zones);
    kswapd.on_reclaimed(Reclaimed {
        scanned: 5_000,
        freed: 1_023,
    });
    zones[1].free = 3_000;
    assert_eq!(round(kswapd.next(&zones)).order, 9, "no block of 512");
    kswapd.on_reclaimed(Reclaimed {
        scanned: 5_000,
        freed: 1,
    });
    // The rest is left to compaction: for single pages the node is balanced.
    assert_eq!(kswapd.next(&zones), Action::Nap);
}

#[test]
fn it_gives_up_where_nothing_can_be_freed_until_a_direct_reclaim_could() {
    let zones = node(0, 0);
    let mut kswapd = at_work(Defects::default(), 0, &zones);
    let mut rounds = 0;
    loop {
        match kswapd.next(&zones) {
            Action::Reclaim(_) => {
                rounds += 1;
                kswapd.on_reclaimed(Reclaimed {
                    scanned: 100_000,
                    freed: 0,
                });
            }
            Action::Again => {}
            Action::Nap => kswapd.on_nap_over(),
            Action::Sleep => break,
        }
        assert!(rounds < 1_000, "it never stops");
    }
    assert_eq!(rounds, FAILURES_TO_GIVE_UP * FIRST_PRIORITY);
    assert!(kswapd.hopeless());
    assert!(!kswapd.on_request(&zones, 0, NORMAL));
    kswapd.on_direct_reclaim();
    assert!(kswapd.on_request(&zones, 0, NORMAL));
}

/// `strict-zone-check`: the large zone is balanced, the small one cannot be.
#[test]
fn a_strict_check_keeps_it_awake_for_nothing() {
    let zones = node(10, 50_000);
    let mut repaired = kswapd(Defects::default());
    assert_eq!(repaired.next(&zones), Action::Nap);
    let mut strict = kswapd(defect("strict-zone-check"));
    for _ in 0..100 {
        assert_eq!(strict.next(&zones), Action::Again);
    }
    let counters = strict.counters();
    assert_eq!(
        (counters.kept_awake, counters.rounds, counters.naps),
        (100, 0, 0)
    );
    // If all are balanced there is no difference.
    assert_eq!(strict.next(&node(2_000, 50_000)), Action::Nap);
}

const NOTICED: NodeFlags = NodeFlags {
    congested: true,
    dirty: true,
    writeback: true,
};

/// `early-flag-clear`: the low zone is balanced, and the flags describe the other.
#[test]
fn early_clearing_forgets_before_the_node_is_balanced() {
    let strict = defect("strict-zone-check");
    let both = strict.with("early-flag-clear").expect("known");
    for (defects, flags) in [(strict, NOTICED), (both, NodeFlags::default())] {
        let mut kswapd = at_work(defects, 0, &node(10, 1_000));
        *kswapd.flags_mut() = NOTICED;
        kswapd.on_reclaimed(Reclaimed {
            scanned: 5_000,
            freed: 100,
        });
        assert_eq!(kswapd.next(&node(2_000, 1_100)), Action::Again);
        assert_eq!(kswapd.flags(), flags, "{defects:?}");
    }
    // An allocation that only checks whether to wake it.
    for (defects, flags) in [
        (Defects::default(), NOTICED),
        (defect("early-flag-clear"), NodeFlags::default()),
    ] {
        let mut kswapd = asleep(defects);
        *kswapd.flags_mut() = NOTICED;
        assert!(!kswapd.on_request(&node(2_000, 1_000), 0, DMA));
        assert_eq!(kswapd.flags(), flags, "{defects:?}");
    }
}

#[test]
fn a_balanced_node_has_no_flags() {
    let mut kswapd = at_work(Defects::default(), 0, &node(10, 1_000));
    *kswapd.flags_mut() = NOTICED;
    kswapd.on_reclaimed(Reclaimed {
        scanned: 5_000,
        freed: 600,
    });
    assert_eq!(kswapd.flags(), NOTICED);
    assert_eq!(kswapd.next(&node(10, 1_600)), Action::Nap);
    assert_eq!(kswapd.flags(), NodeFlags::default());
}

/// A node that has no zone of the lowest kind (all but the first): with all defects it sleeps although
/// nothing was freed, and the flags are not cleared, as no zone was found balanced.
#[test]
fn a_node_without_a_low_zone_keeps_its_flags_where_they_are_cleared_early() {
    let mut zones = node(0, 1_000);
    zones[0] = Zone::default();
    for (defects, flags) in [
        (Defects::BASE, NOTICED),
        (
            defect("zero-classzone")
                .with("strict-zone-check")
                .expect("known"),
            NodeFlags::default(),
        ),
    ] {
        let mut kswapd = kswapd(defects);
        assert_eq!(kswapd.next(&zones), Action::Nap);
        assert!(kswapd.on_request(&zones, 0, NORMAL));
        kswapd.on_woken();
        *kswapd.flags_mut() = NOTICED;
        while let Action::Reclaim(_) = kswapd.next(&zones) {
            kswapd.on_reclaimed(Reclaimed {
                scanned: 100,
                freed: 0,
            });
        }
        assert_eq!(kswapd.next(&zones), Action::Nap, "{defects:?}");
        assert_eq!(kswapd.flags(), flags, "{defects:?}");
    }
}

/// `zero-classzone`: the work is done, and while it naps the large zone runs short.
#[test]
fn no_request_is_taken_for_the_lowest_zone() {
    for (defects, expected) in [
        (Defects::default(), Action::Again),
        (defect("zero-classzone"), Action::Sleep),
    ] {
        let mut zones = node(2_000, 1_000);
        // The low zone is kept for its own requests.
        zones[0].reserve[NORMAL.0] = 4_000;
        let mut kswapd = at_work(defects, 0, &zones);
        kswapd.on_reclaimed(Reclaimed {
            scanned: 5_000,
            freed: 600,
        });
        zones[1].free = 1_600;
        assert_eq!(kswapd.next(&zones), Action::Nap);
        kswapd.on_nap_over();
        zones[1].free = 100;
        assert_eq!(kswapd.next(&zones), expected, "{defects:?}");
    }
}

/// Three zones with a machine's proportions, tasks that allocate at a rate and reclaim that frees at
/// another. Time goes in steps of 1 ms.
struct Machine {
    zones: [Zone; 3],
    kswapd: Kswapd,
    /// Steps of the nap that are left.
    nap: u32,
    /// Sleeps begun while no zone was balanced.
    too_soon: u64,
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

const HIGHEST: ZoneIndex = ZoneIndex(2);

impl Machine {
    fn new(defects: Defects) -> Self {
        let mut zones = [
            zone(4_000, 3_900),
            zone(50_000, 40_000),
            zone(200_000, 150_000),
        ];
        zones[0].reserve = [0, 200, 1_000, 0];
        zones[1].reserve = [0, 0, 800, 0];
        Machine {
            zones,
            kswapd: Kswapd::new(Config { zones: 3, defects }),
            nap: 0,
            too_soon: 0,
        }
    }

    /// Frees up to `pages` pages, from the highest zone down.
    fn free(&mut self, pages: u64, highest: ZoneIndex) -> u64 {
        let mut left = pages;
        for zone in self.zones[..=highest.0].iter_mut().rev() {
            let used = (zone.pages - zone.free).saturating_sub(zone.pages / 10);
            let freed = left.min(used);
            zone.free += freed;
            left -= freed;
        }
        pages - left
    }

    fn allocate(&mut self) {
        for _ in 0..10 {
            let found = allocate(&self.zones, 0, HIGHEST);
            if !matches!(found, Allocation::Take(_))
                && self.kswapd.on_request(&self.zones, 0, HIGHEST)
            {
                self.kswapd.on_woken();
                self.nap = 0;
            }
            match found {
                Allocation::Take(at) | Allocation::TakeAndWake(at) => {
                    self.zones[at.0].free -= 1;
                    return;
                }
                Allocation::Reclaim => {
                    if self.free(32, HIGHEST) > 0 {
                        self.kswapd.on_direct_reclaim();
                    }
                }
            }
        }
        panic!("no page after ten direct reclaims");
    }

    fn step(&mut self, rng: &mut Rng) {
        let burst = if rng.below(500) == 0 { 3_000 } else { 0 };
        // In a nap about the pages between low and high.
        for _ in 0..rng.below(8) + burst {
            self.allocate();
        }
        if self.nap > 0 {
            self.nap -= 1;
            if self.nap > 0 {
                return;
            }
            self.kswapd.on_nap_over();
        }
        let slept = self.kswapd.counters().sleeps;
        let action = self.kswapd.next(&self.zones);
        if self.kswapd.counters().sleeps > slept {
            let balanced = |zone: &Zone| zone.allows(0, zone.marks.high, HIGHEST);
            self.too_soon += u64::from(!self.zones.iter().any(balanced));
        }
        match action {
            Action::Nap => self.nap = 100,
            Action::Sleep | Action::Again => {}
            Action::Reclaim(round) => {
                let pages = (round.target / 2).min(1_000);
                let freed = self.free(pages, round.highest);
                let scanned = round.target;
                self.kswapd.on_reclaimed(Reclaimed { scanned, freed });
            }
        }
    }

    fn run(defects: Defects, seed: u64) -> Self {
        let (mut machine, mut rng) = (Machine::new(defects), Rng(seed));
        for _ in 0..50_000 {
            machine.step(&mut rng);
        }
        machine
    }
}

/// The same work, with the seed's defects and without: how often it goes to sleep while every zone
/// that is asked for is short.
#[test]
fn only_with_the_defects_does_it_sleep_too_soon() {
    let run = |defects| {
        let machines = (0..20).map(|seed| Machine::run(defects, seed));
        machines.fold((0, 0), |(too_soon, sleeps), machine| {
            let counters = machine.kswapd.counters();
            assert!(counters.rounds > 100, "{counters:?}");
            (too_soon + machine.too_soon, sleeps + counters.sleeps)
        })
    };
    let (too_soon, sleeps) = run(Defects::default());
    assert!(
        too_soon == 0 && sleeps > 100,
        "{too_soon} of {sleeps} too soon"
    );
    let (too_soon, sleeps) = run(Defects::BASE);
    assert!(too_soon > 0, "{too_soon} of {sleeps} too soon");
}

/// Any zones, requests and outcomes: it stays within bounds, wakes only when it waits, and without
/// defects naps only on a balanced node or when it has given up.
#[test]
fn any_sequence_keeps_the_rules() {
    for seed in 0..2_000 {
        let mut rng = Rng(seed);
        let zones = 1 + rng.below(4) as usize;
        let defects = Defects {
            strict_zone_check: rng.below(2) == 0,
            early_flag_clear: rng.below(2) == 0,
            zero_classzone: rng.below(2) == 0,
        };
        let mut kswapd = Kswapd::new(Config { zones, defects });
        for _ in 0..200 {
            let free = |rng: &mut Rng| {
                let mut zone = zone(10_000, rng.below(400));
                zone.pages = if rng.below(8) == 0 { 0 } else { zone.pages };
                zone.largest = (zone.free > 0).then(|| rng.below(11) as u32);
                zone
            };
            let view: Vec<Zone> = (0..zones).map(|_| free(&mut rng)).collect();
            if rng.below(3) == 0 {
                let order = rng.below(10) as u32;
                let highest = ZoneIndex(rng.below(zones as u64) as usize);
                let waited = kswapd.waits();
                let woken = kswapd.on_request(&view, order, highest);
                assert!(waited || !woken, "woken although at work");
                if woken {
                    kswapd.on_woken();
                }
            }
            let naps = kswapd.counters().naps;
            let action = kswapd.next(&view);
            if kswapd.counters().naps > naps && defects == Defects::default() {
                let serves = |zone: &Zone| zone.pages > 0 && zone.free > zone.marks.high;
                assert!(kswapd.hopeless() || view.iter().any(serves), "{view:?}");
            }
            match action {
                Action::Reclaim(round) => {
                    assert!((1..=FIRST_PRIORITY).contains(&round.priority));
                    assert!(round.highest.0 < zones);
                    kswapd.on_reclaimed(Reclaimed {
                        scanned: rng.below(1_000),
                        freed: rng.below(3) * rng.below(400),
                    });
                }
                Action::Nap if rng.below(2) == 0 => kswapd.on_nap_over(),
                Action::Sleep | Action::Nap | Action::Again => {}
            }
        }
        let counters = kswapd.counters();
        assert!(counters.sleeps <= counters.naps && counters.naps_cut <= counters.naps);
    }
}

/// Requests that come while it works are served by the next run, with the larger of each number.
#[test]
fn pending_requests_only_grow_until_they_are_served() {
    for seed in 0..500 {
        let mut rng = Rng(seed);
        let short = node(10, 1_000);
        let mut kswapd = at_work(Defects::default(), 0, &short);
        let (mut order, mut highest) = (0, DMA);
        for _ in 0..1 + rng.below(5) {
            let request = (rng.below(10) as u32, ZoneIndex(rng.below(2) as usize));
            kswapd.on_request(&short, request.0, request.1);
            order = order.max(request.0);
            highest = highest.max(request.1);
        }
        // The first run ends without success, the next serves the pending request.
        for _ in 0..FIRST_PRIORITY {
            assert!(matches!(kswapd.next(&short), Action::Reclaim(_)));
            kswapd.on_reclaimed(Reclaimed {
                scanned: 0,
                freed: 0,
            });
        }
        assert_eq!(kswapd.next(&short), Action::Again);
        let round = round(kswapd.next(&short));
        assert_eq!((round.order, round.highest), (order, highest));
    }
}
