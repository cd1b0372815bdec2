use alloc::vec;
use alloc::vec::Vec;

use super::*;

const MS: Nanos = 1_000_000;
const SECOND: Nanos = 1000 * MS;
/// Pages of the limit: 400 MiB.
const LIMIT: u64 = 100_000;
/// The time between two looks.
const LOOK: Nanos = 100 * MS;
/// The time of a step of the simulation.
const STEP: Nanos = 10 * MS;
/// A program touches another page this often while it works.
const TOUCH: Nanos = 50_000;

/// A program that touches its pages at random.
#[derive(Clone, Copy)]
struct Program {
    id: u32,
    pages: u64,
    /// Work that is left.
    left: Nanos,
    /// It works for this part of each second, in percent.
    percent: u64,
    resident: u64,
    lost: Nanos,
    losses: u64,
    worked: Nanos,
    /// It waits since then, and has waited so long at most.
    since: Option<Nanos>,
    longest: Nanos,
    ended: Option<Nanos>,
}

fn program(id: u32, pages: u64, left: Nanos) -> Program {
    Program {
        id,
        pages,
        left,
        percent: 100,
        resident: 0,
        lost: 0,
        losses: 0,
        worked: 0,
        since: None,
        longest: 0,
        ended: None,
    }
}

struct Machine {
    load: Load<u32>,
    programs: Vec<Program>,
    read: Nanos,
    now: Nanos,
    was_on: bool,
    controlled: bool,
}

impl Machine {
    fn new(read: Nanos, programs: Vec<Program>) -> Self {
        Machine {
            load: Load::new(Config::default()),
            programs,
            read,
            now: 0,
            was_on: false,
            controlled: true,
        }
    }

    fn share(&self, program: &Program) -> u64 {
        let live = self.programs.iter().filter(|p| p.ended.is_none());
        match self.load.turn(program.id) {
            Turn::Free => LIMIT / (live.count() as u64).max(1),
            Turn::Has(share) | Turn::Waits(share) => share,
        }
    }

    fn charged(&self) -> u64 {
        self.programs.iter().map(|program| program.resident).sum()
    }

    /// Make room: those above their share lose pages first.
    fn evict(&mut self) {
        let over = self.charged().saturating_sub(LIMIT);
        let shares: Vec<u64> = self.programs.iter().map(|p| self.share(p)).collect();
        let mut left = over;
        for (program, share) in self.programs.iter_mut().zip(shares) {
            let gives = program.resident.saturating_sub(share).min(left);
            program.resident -= gives;
            left -= gives;
        }
        // All are below their shares.
        for program in &mut self.programs {
            let gives = program.resident.min(left);
            program.resident -= gives;
            left -= gives;
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        for at in 0..self.programs.len() {
            let waits = matches!(self.load.turn(self.programs[at].id), Turn::Waits(_));
            let (now, read) = (self.now, self.read);
            let program = &mut self.programs[at];
            let sleeps = now / (10 * MS) % 100 >= program.percent;
            if program.ended.is_some() || sleeps {
                program.since = None;
                continue;
            }
            if waits {
                let since = *program.since.get_or_insert(now);
                program.longest = program.longest.max(now - since);
                continue;
            }
            program.since = None;
            // Each touch misses with this probability, in parts of a million.
            let absent = program.pages - program.resident.min(program.pages);
            let miss = absent * 1_000_000 / program.pages;
            let each = TOUCH + read * miss / 1_000_000;
            let touches = STEP / each;
            let misses = touches * miss / 1_000_000;
            let worked = (touches * TOUCH).min(program.left);
            program.resident = (program.resident + misses).min(program.pages);
            program.losses += misses;
            program.lost += misses * read;
            program.worked += worked;
            program.left -= worked;
            if program.left == 0 {
                (program.resident, program.ended) = (0, Some(now));
            }
            self.evict();
        }
        if self.controlled && self.now.is_multiple_of(LOOK) {
            let seen = self.programs.iter().filter(|p| p.ended.is_none());
            let seen = seen.map(|p| Seen {
                id: p.id,
                charged: p.resident,
                needs: p.pages,
                lost: p.lost,
                losses: p.losses,
                faults: p.losses,
                worked: p.worked,
                system: p.worked / 10,
                busy: p.since.is_some(),
            });
            self.load.look(self.now, LIMIT, seen);
            self.was_on |= self.load.is_on();
        }
    }

    /// The time until all programs have ended that do not run for ever.
    fn run(&mut self, most: Nanos) -> Nanos {
        let endless = |p: &Program| p.left > 3600 * SECOND;
        while self.now < most
            && self
                .programs
                .iter()
                .any(|p| p.ended.is_none() && !endless(p))
        {
            self.step();
        }
        self.now
    }
}

/// Four programs that fit one at a time.
fn four(seconds: u64) -> Vec<Program> {
    (1..=4)
        .map(|id| program(id, 85_000, seconds * SECOND))
        .collect()
}

#[test]
fn programs_that_fit_one_at_a_time_take_little_longer_than_one_after_the_other() {
    for (read, seconds) in [(20_000, 20), (100_000, 20), (100_000, 100), (500_000, 200)] {
        // The first touches of each are reads, too.
        let serial = 4 * (seconds * SECOND + 85_000 * read);
        let mut machine = Machine::new(read, four(seconds));
        let took = machine.run(10 * serial);
        assert!(machine.was_on);
        assert!(took < serial * 3 / 2, "{read} ns: {took} of {serial} ns");
        assert!(!machine.load.is_on(), "it ends with the last but one");
    }
}

#[test]
fn without_it_they_thrash() {
    let mut machine = Machine::new(500_000, four(200));
    machine.controlled = false;
    let serial = 4 * (200 * SECOND + 85_000 * 500_000);
    assert!(machine.run(10 * serial) > serial);
}

#[test]
fn nobody_waits_longer_than_the_turns_of_the_others() {
    let mut machine = Machine::new(100_000, four(300));
    machine.run(3000 * SECOND);
    for program in &machine.programs {
        assert!(program.ended.is_some());
        assert!(program.longest <= 3 * 122 * SECOND, "{}", program.longest);
    }
}

#[test]
fn as_many_as_fit_have_a_turn() {
    let programs = (1..=4).map(|id| program(id, 45_000, 60 * SECOND)).collect();
    let mut machine = Machine::new(500_000, programs);
    let took = machine.run(1000 * SECOND);
    assert!(machine.was_on);
    // Two at a time.
    assert!(took < 2 * 60 * SECOND * 3 / 2 + 60 * SECOND, "{took}");
}

#[test]
fn it_stays_off_when_all_fit() {
    let programs = (1..=4).map(|id| program(id, 24_000, 20 * SECOND)).collect();
    let mut machine = Machine::new(100_000, programs);
    machine.run(1000 * SECOND);
    assert!(!machine.was_on);
}

#[test]
fn a_single_process_that_does_not_fit_never_waits() {
    let mut machine = Machine::new(100_000, vec![program(1, 300_000, 20 * SECOND)]);
    machine.run(1000 * SECOND);
    assert!(!machine.was_on);
    assert!(machine.programs[0].ended.is_some());
}

#[test]
fn a_process_that_works_rarely_is_not_held() {
    let mut programs = four(60);
    programs.push(Program {
        percent: 4,
        ..program(5, 20_000, u64::MAX / 2)
    });
    programs.push(program(6, 3000, u64::MAX / 2));
    let mut machine = Machine::new(100_000, programs);
    machine.run(1000 * SECOND);
    assert!(machine.was_on);
    assert_eq!(machine.programs[4].longest, 0, "it works rarely");
    assert_eq!(machine.programs[5].longest, 0, "it is small");
}

/// Run until somebody has a turn and another waits; returns who has it.
fn until_on(machine: &mut Machine) -> usize {
    while !machine.load.is_on() || machine.load.having() > 1 {
        machine.step();
        assert!(machine.now < 1000 * SECOND);
    }
    let has = |p: &Program| matches!(machine.load.turn(p.id), Turn::Has(_));
    machine
        .programs
        .iter()
        .position(has)
        .expect("somebody has a turn")
}

fn after(machine: &mut Machine, time: Nanos) {
    let end = machine.now + time;
    while machine.now < end {
        machine.step();
    }
}

#[test]
fn an_idle_process_passes_its_turn_on_and_a_dead_one_too() {
    for dies in [false, true] {
        let mut machine = Machine::new(100_000, four(1000));
        let has = until_on(&mut machine);
        let program = &mut machine.programs[has];
        match dies {
            true => (program.ended, program.resident) = (Some(0), 0),
            false => program.percent = 0,
        }
        after(&mut machine, 500 * MS);
        let next = until_on(&mut machine);
        assert_ne!(next, has);
        assert_eq!(machine.load.turn(machine.programs[has].id), Turn::Free);
    }
}

#[test]
fn a_newcomer_goes_behind_those_that_wait() {
    let mut machine = Machine::new(100_000, four(1000));
    let first = until_on(&mut machine);
    machine.programs.push(program(9, 60_000, 1000 * SECOND));
    after(&mut machine, 3 * SECOND);
    assert!(matches!(machine.load.turn(9), Turn::Waits(_)));
    machine.programs[first].ended = Some(0);
    machine.programs[first].resident = 0;
    after(&mut machine, 300 * MS);
    assert!(
        matches!(machine.load.turn(9), Turn::Waits(_)),
        "an older one is next"
    );
}

#[test]
fn shares_are_what_is_left_and_the_waiting_keep_little() {
    let mut machine = Machine::new(100_000, four(1000));
    let has = until_on(&mut machine);
    after(&mut machine, SECOND);
    let Turn::Has(share) = machine.load.turn(machine.programs[has].id) else {
        panic!("its turn lasts");
    };
    assert!((LIMIT - 3 * 256..=LIMIT).contains(&share), "{share}");
}

#[test]
fn it_ends_when_the_limit_is_raised() {
    let mut load = Load::new(Config::default());
    let seen = |id: u32, now: Nanos| Seen {
        id,
        charged: 50_000,
        needs: 85_000,
        lost: now / 2,
        losses: now / 100_000,
        faults: now / 100_000,
        worked: now / 2,
        system: now / 10,
        busy: true,
    };
    for look in 1..=20 {
        let now = look * LOOK;
        load.look(now, LIMIT, (1..=2).map(|id| seen(id, now)));
    }
    assert!(load.is_on());
    let now = 21 * LOOK;
    load.look(now, 2 * LIMIT, (1..=2).map(|id| seen(id, now)));
    assert!(!load.is_on());
    assert_eq!(load.turn(1), Turn::Free);
}

/// Four processes that wait for each other without missing a page: each works all the time while it may, in part in the kernel.
/// Returns the looks until load control is off again, up to 200.
fn looks_until_off(kernel_percent: u64, faults_in_a_look: u64) -> u64 {
    let mut load = Load::new(Config::default());
    let zero = |id: u32| Seen {
        id,
        charged: 25_000,
        needs: 85_000,
        lost: 0,
        losses: 0,
        faults: 0,
        worked: 0,
        system: 0,
        busy: true,
    };
    let mut all = [1, 2, 3, 4].map(zero);
    let (mut began, mut looks) = (None, 0);
    loop {
        looks += 1;
        for seen in &mut all {
            match load.turn(seen.id) {
                Turn::Waits(_) => continue,
                // They lose their pages to each other.
                Turn::Free if began.is_none() => {
                    seen.lost += LOOK / 2;
                    seen.losses += 1000;
                    seen.faults += 1000;
                }
                Turn::Free | Turn::Has(_) => seen.faults += faults_in_a_look,
            }
            seen.worked += LOOK / 2;
            seen.system += LOOK / 2 * kernel_percent / 100;
        }
        load.look(looks * LOOK, LIMIT, all.into_iter());
        began = began.or_else(|| load.is_on().then_some(looks));
        match began {
            Some(began) if !load.is_on() || looks - began >= 200 => return looks - began,
            _ => {}
        }
    }
}

#[test]
fn those_that_ask_for_each_other_in_vain_are_excused() {
    assert!(looks_until_off(60, 0) < 40);
    // They may compute, or use files, for all that can be seen.
    assert_eq!(looks_until_off(10, 0), 200);
    assert_eq!(looks_until_off(60, 100), 200);
}
