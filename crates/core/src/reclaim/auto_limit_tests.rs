use alloc::vec::Vec;

use super::*;

const MIB: u64 = 256;
const GIB: u64 = 1024 * MIB;
const TICK: Nanos = SECOND / 10;

/// A program with one thread: it touches the pages of a hot set at random, and holds others that it never needs again.
struct Program {
    hot: u64,
    cold: u64,
    /// Pages in memory. The cold ones leave first.
    held: u64,
    /// Pages that can leave in a tick.
    disk: u64,
    stalled: Nanos,
}

impl Program {
    fn new(hot: u64, cold: u64) -> Self {
        Program {
            hot,
            cold,
            held: 0,
            disk: 400 * MIB,
            stalled: 0,
        }
    }

    /// A tick within `limit`. A touch takes 1 us, a miss 100 us more.
    fn run(&mut self, limit: u64) -> Nanos {
        let leaves = self.held.saturating_sub(limit).min(self.disk);
        self.held -= leaves;
        // First touches: up to 200 MiB in a tick.
        if self.held < (self.hot + self.cold).min(limit) && self.held < self.hot {
            self.held = (self.held + 200 * MIB).min(limit).min(self.hot);
        }
        let missing = self.hot.saturating_sub(self.held);
        // In thousandths.
        let miss = missing * 1000 / self.hot.max(1);
        let per_touch = 1000 + 100 * miss;
        let stalled = TICK * (100 * miss) / per_touch;
        let faults = stalled / 100_000;
        self.held = (self.held + faults.min(missing)).min(limit.max(self.held));
        self.stalled += stalled;
        stalled
    }
}

/// A machine with others that hold `others` pages, and some runs.
struct Machine {
    size: u64,
    others: u64,
    runs: Vec<(Program, AutoLimit)>,
    ticks: u64,
}

impl Machine {
    fn new(size: u64, others: u64) -> Self {
        Machine {
            size,
            others,
            runs: Vec::new(),
            ticks: 0,
        }
    }

    fn available(&self) -> u64 {
        let held: u64 = self.runs.iter().map(|(program, _)| program.held).sum();
        self.size.saturating_sub(self.others + held)
    }

    fn scope(&self) -> Scope {
        Scope {
            size: self.size,
            available: self.available(),
        }
    }

    fn start(&mut self, program: Program, bounds: Bounds) {
        let limit = AutoLimit::new(Config::default(), bounds, &[self.scope()]);
        self.runs.push((program, limit));
    }

    fn tick(&mut self) {
        self.ticks += 1;
        let scopes = [self.scope()];
        for (program, limit) in &mut self.runs {
            let stalled = program.run(limit.limit());
            let set = limit.tick(&Seen {
                elapsed: TICK,
                stalled,
                faults: stalled / 100_000,
                charged: program.held,
                scopes: &scopes,
                pressed: 0,
                needs_room: false,
            });
            let bounds = limit.bounds();
            assert!((bounds.least..=bounds.most).contains(&set));
        }
    }

    fn seconds(&mut self, n: u64) {
        for _ in 0..n * 10 {
            self.tick();
        }
    }

    fn limit(&self, run: usize) -> u64 {
        self.runs[run].1.limit()
    }
}

const WIDE: Bounds = Bounds {
    least: 16 * MIB,
    most: 1 << 40,
};

fn alone(hot: u64, cold: u64) -> Machine {
    let mut machine = Machine::new(24 * GIB, GIB);
    let mut program = Program::new(hot, cold);
    program.held = hot + cold;
    machine.start(program, WIDE);
    machine
}

#[test]
fn it_begins_with_what_the_machine_can_spare() {
    let machine = alone(200 * MIB, 600 * MIB);
    let limit = machine.limit(0);
    assert!((19 * GIB..21 * GIB).contains(&limit), "{}", limit / MIB);
}

#[test]
fn a_short_program_is_never_short() {
    let mut machine = alone(200 * MIB, 600 * MIB);
    for _ in 0..50 {
        machine.tick();
        assert!(machine.limit(0) > 10 * GIB);
    }
    assert_eq!(machine.runs[0].0.stalled, 0);
}

#[test]
fn a_program_that_grows_is_not_probed() {
    let mut machine = alone(200 * MIB, 0);
    for _ in 0..600 {
        // 20 MiB in a second.
        machine.runs[0].0.hot += 2 * MIB;
        machine.runs[0].0.held += 2 * MIB;
        machine.tick();
    }
    assert_eq!(machine.runs[0].0.stalled, 0);
    assert!(machine.limit(0) > 10 * GIB);
}

#[test]
fn idle_memory_leaves_and_the_limit_rests_at_the_working_set() {
    let mut machine = alone(200 * MIB, 600 * MIB);
    machine.seconds(90);
    let limit = machine.limit(0);
    assert!(limit < 300 * MIB && limit > 180 * MIB, "{}", limit / MIB);
    let (mut low, mut high) = (u64::MAX, 0);
    let before = machine.runs[0].0.stalled;
    for _ in 0..6000 {
        machine.tick();
        low = low.min(machine.limit(0));
        high = high.max(machine.limit(0));
    }
    let stalled = machine.runs[0].0.stalled - before;
    // Of ten minutes.
    assert!(stalled < 600 * SECOND / 500, "{} ms", stalled / 1_000_000);
    assert!(low > 180 * MIB && high < 250 * MIB, "{low} to {high}");
    // The last moments do not count.
    machine.runs[0].0.hot = 4 * GIB;
    machine.seconds(1);
    let settled = machine.runs[0].1.settled().expect("it has");
    assert!((low..=high).contains(&settled), "{settled}");
}

#[test]
fn a_program_that_needs_all_of_it_loses_little() {
    for size in [400 * MIB, 8 * GIB] {
        let mut machine = alone(size, 0);
        machine.seconds(30);
        let stalled = machine.runs[0].0.stalled;
        assert!(stalled < SECOND / 2, "{} ms", stalled / 1_000_000);
        machine.seconds(270);
        let stalled = machine.runs[0].0.stalled;
        assert!(stalled < 300 * SECOND / 200, "{} ms", stalled / 1_000_000);
    }
}

#[test]
fn a_phase_that_needs_more_has_it_in_seconds() {
    let mut machine = alone(100 * MIB, 0);
    machine.seconds(60);
    assert!(machine.limit(0) < 120 * MIB, "{}", machine.limit(0) / MIB);
    machine.runs[0].0.hot = 4 * GIB;
    machine.seconds(3);
    assert!(machine.runs[0].0.held >= 2 * GIB);
    machine.seconds(2);
    assert!(machine.runs[0].0.held >= 4 * GIB - 4 * GIB / 50);
}

#[test]
fn memory_goes_back_within_a_second_and_returns() {
    let mut machine = alone(10 * GIB, 0);
    machine.seconds(2);
    assert_eq!(machine.runs[0].0.held, 10 * GIB);
    // Others take all but the least mark.
    machine.others = 13 * GIB + GIB / 2;
    for _ in 0..10 {
        machine.tick();
    }
    // It stalls at once, and others have at least a little.
    let little = machine.size / 32;
    assert!(
        machine.available() >= little,
        "{}",
        machine.available() / MIB
    );
    assert!(machine.runs[0].0.held >= 8 * GIB);
    machine.seconds(20);
    assert!(
        machine.available() >= little,
        "{}",
        machine.available() / MIB
    );
    machine.others = GIB;
    machine.seconds(5);
    assert!(machine.runs[0].0.held >= 10 * GIB - 10 * GIB / 50);
}

#[test]
fn idle_memory_goes_back_until_others_have_enough() {
    let mut machine = alone(GIB, 9 * GIB);
    machine.seconds(2);
    machine.others = 13 * GIB + GIB / 2;
    for _ in 0..10 {
        machine.tick();
    }
    let low = machine.size / 16;
    assert!(machine.available() >= low, "{}", machine.available() / MIB);
    assert_eq!(machine.runs[0].0.stalled, 0);
}

#[test]
fn others_that_come_and_go_are_followed() {
    let mut machine = alone(6 * GIB, 0);
    for round in 0..40 {
        machine.others = if round % 2 == 0 { 20 * GIB } else { 2 * GIB };
        machine.seconds(2);
        if round % 2 == 0 {
            assert!(machine.available() >= machine.size / 33, "round {round}");
        } else {
            assert!(machine.runs[0].0.held >= 5 * GIB, "round {round}");
        }
    }
}

/// Half of the stalls of a run that gives back would be for others that have enough.
#[test]
fn a_run_in_pain_keeps_what_it_has_while_others_have_a_little() {
    let mut limit = AutoLimit::new(Config::default(), WIDE, &[]);
    let scope = |available| Scope {
        size: 16 * GIB,
        available,
    };
    let seen = |stalled, available: &[Scope; 1]| -> u64 {
        let mut limit = limit.clone();
        limit.limit = 4 * GIB;
        limit.tick(&Seen {
            elapsed: TICK,
            stalled,
            faults: 0,
            charged: 4 * GIB,
            scopes: available,
            pressed: 0,
            needs_room: false,
        })
    };
    let (some, none) = ([scope(GIB - GIB / 4)], [scope(GIB / 4)]);
    assert_eq!(seen(0, &some), 4 * GIB - GIB / 4);
    assert_eq!(seen(TICK / 2, &some), 4 * GIB);
    assert_eq!(seen(TICK / 2, &none), 4 * GIB - 3 * GIB / 4);
    // Between the marks, only if tasks stall.
    let between = [scope(GIB + GIB / 2)];
    assert_eq!(seen(0, &between), 4 * GIB);
    limit.limit = 4 * GIB;
    let set = limit.tick(&Seen {
        elapsed: TICK,
        stalled: 0,
        faults: 0,
        charged: 4 * GIB,
        scopes: &between,
        pressed: TICK / 10,
        needs_room: false,
    });
    assert!(set < 4 * GIB && set > 3 * GIB);
}

#[test]
fn two_runs_share_a_machine_without_chasing_each_other() {
    let mut machine = Machine::new(8 * GIB, GIB);
    machine.start(Program::new(5 * GIB, 0), WIDE);
    machine.start(Program::new(5 * GIB, 0), WIDE);
    machine.seconds(30);
    let held = |machine: &Machine, run: usize| machine.runs[run].0.held;
    let before = [held(&machine, 0), held(&machine, 1)];
    for _ in 0..1200 {
        machine.tick();
        assert!(
            machine.available() >= machine.size / 40,
            "{}",
            machine.available() / MIB
        );
    }
    for (run, &before) in before.iter().enumerate() {
        let now = held(&machine, run);
        assert!(now > GIB, "run {run}: {}", now / MIB);
        assert!(
            now.abs_diff(before) < before / 4,
            "run {run}: {before} to {now}"
        );
    }
}

#[test]
fn a_run_starts_on_a_full_machine_with_a_little() {
    let mut machine = Machine::new(16 * GIB, 14 * GIB + GIB / 4);
    machine.start(Program::new(4 * GIB, 0), WIDE);
    let limit = machine.limit(0);
    assert!((256 * MIB..GIB).contains(&limit), "{}", limit / MIB);
    machine.seconds(10);
    assert!(machine.runs[0].0.held > 128 * MIB);
    assert!(machine.available() >= GIB, "{}", machine.available() / MIB);
    // Fuller still: only what the user demands.
    let mut full = Machine::new(16 * GIB, 16 * GIB);
    full.start(Program::new(4 * GIB, 0), WIDE);
    full.seconds(3);
    assert_eq!(full.limit(0), WIDE.least);
}

#[test]
fn the_tightest_scope_counts() {
    let machine = Scope {
        size: 64 * GIB,
        available: 60 * GIB,
    };
    let group = Scope {
        size: GIB,
        available: GIB,
    };
    let limit = AutoLimit::new(Config::default(), WIDE, &[machine, group]);
    assert_eq!(limit.limit(), GIB - GIB / 8);
}

#[test]
fn memory_that_cannot_leave_is_not_asked_for_again_and_again() {
    let mut machine = alone(0, 500 * MIB);
    machine.runs[0].0.disk = 0;
    let (mut raised, mut before) = (0, machine.limit(0));
    for _ in 0..1200 {
        machine.tick();
        raised += u32::from(machine.limit(0) > before);
        before = machine.limit(0);
    }
    assert!(raised < 20, "{raised}");
    assert!(machine.limit(0) >= 450 * MIB);
}

#[test]
fn an_area_that_is_emptied_gets_room() {
    let mut machine = alone(100 * MIB, 0);
    machine.seconds(60);
    let scopes = [machine.scope()];
    let (program, limit) = &mut machine.runs[0];
    for _ in 0..20 {
        program.held = limit.limit();
        limit.tick(&Seen {
            elapsed: TICK,
            stalled: 0,
            faults: 0,
            charged: program.held,
            scopes: &scopes,
            pressed: 0,
            needs_room: true,
        });
    }
    assert!(limit.limit() > GIB);
}

#[test]
fn odd_input_stays_within_the_bounds() {
    let mut state = 12345u64;
    let mut random = |most: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (state >> 33) % most.max(1)
    };
    for _ in 0..300 {
        let least = random(GIB);
        let most = if random(8) == 0 {
            random(GIB)
        } else {
            least + random(8 * GIB)
        };
        let bounds = Bounds { least, most };
        let mut limit = AutoLimit::new(Config::default(), bounds, &[]);
        for _ in 0..300 {
            let size = random(3) * random(16 * GIB);
            let scopes = [
                Scope {
                    size,
                    available: random(20 * GIB),
                },
                Scope {
                    size: 1,
                    available: 0,
                },
            ];
            let known = random(3) as usize;
            let set = limit.tick(&Seen {
                elapsed: random(2) * random(10 * SECOND),
                stalled: random(2) * random(20 * SECOND),
                faults: random(2) * random(1 << 20),
                charged: random(2) * random(16 * GIB),
                scopes: &scopes[..known.min(2)],
                pressed: random(2) * random(SECOND),
                needs_room: random(20) == 0,
            });
            // If they contradict each other, the lower one counts.
            assert!((least..=most.max(least)).contains(&set), "{set} {bounds:?}");
        }
    }
    let huge = Scope {
        size: u64::MAX,
        available: u64::MAX,
    };
    let all = Bounds {
        least: 0,
        most: u64::MAX,
    };
    let mut limit = AutoLimit::new(Config::default(), all, &[huge]);
    for _ in 0..100 {
        limit.tick(&Seen {
            elapsed: Nanos::MAX,
            stalled: Nanos::MAX,
            faults: u64::MAX,
            charged: u64::MAX / 2,
            scopes: &[huge],
            pressed: Nanos::MAX,
            needs_room: true,
        });
    }
}
