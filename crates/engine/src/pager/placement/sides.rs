//! On which of two CPUs a thread that misses pages at random is better off, with the pager beside it.
//!
//! A disk with one queue interrupts one CPU. When that one has nothing to do it must be woken for each read,
//! which takes a virtual machine longer than all else; when the thread and the pager are there it is awake. What that is worth
//! is measured, not assumed: now and then the thread changes sides for a few periods, and the times of its faults before
//! and after are compared. Where the sides differ by little, it stays wherever the scheduler put it.

use foreswap_core::units::Nanos;

/// Faults of either side that tell how long one takes there.
const FAULTS: u64 = 100;
/// What of the faults and their time is forgotten in each period: one part of so many.
const FORGOTTEN: u64 = 8;
/// Periods after which the other side was not reached.
const PATIENCE: u32 = 8;
/// Of a thousand: what a side must be better by, and what it may lose again before it is no longer preferred.
const BETTER: (i64, i64) = (30, 10);
/// Comparisons that are weighed.
const WEIGHED: i64 = 8;
/// What a single one may say at the most, as a disk has its moments.
const MOST: i64 = 250;
/// From one comparison to the next: of the first ones, and later.
const APART: [Nanos; 2] = [24_000_000, 1_000_000_000];

/// The comparison of two sides, `false` and `true`.
pub struct Sides {
    /// Time and faults of each, of late.
    time: [Nanos; 2],
    faults: [u64; 2],
    /// It shall go to this side to be compared, since so many periods.
    tried: Option<(bool, u32)>,
    compared: i64,
    /// By how many thousandths a fault is shorter on the side `true`.
    advantage: i64,
    better: Option<bool>,
    /// Periods for which it was not there at all.
    astray: u32,
    due: Nanos,
}

impl Sides {
    /// Nothing is known.
    pub const fn new() -> Self {
        Sides {
            time: [0; 2],
            faults: [0; 2],
            tried: None,
            compared: 0,
            advantage: 0,
            better: None,
            astray: 0,
            due: 0,
        }
    }

    /// Time and faults of each side, of late.
    #[cfg(test)]
    pub const fn known(&self) -> ([Nanos; 2], [u64; 2]) {
        (self.time, self.faults)
    }

    /// The thread was on `side` for `time` and faulted so often.
    pub fn on_stay(&mut self, side: bool, time: Nanos, faults: u64) {
        self.time[usize::from(side)] += time;
        self.faults[usize::from(side)] += faults;
        if self.better == Some(side) {
            self.astray = 0;
        }
    }

    /// A period ended. Returns the side to be on, if that matters.
    pub fn on_period(&mut self, now: Nanos) -> Option<bool> {
        let told = self.faults.map(|faults| faults >= FAULTS);
        match (told, self.tried) {
            (_, None) if now < self.due => {}
            ([true, true], _) => {
                self.compare();
                let settled = self.compared == WEIGHED;
                (self.tried, self.due) = (None, now + APART[usize::from(settled)]);
            }
            (_, Some((_, PATIENCE))) => (self.tried, self.due) = (None, now + APART[1]),
            (_, Some((side, periods))) => self.tried = Some((side, periods + 1)),
            ([false, true], None) => self.tried = Some((false, 0)),
            ([true, false], None) => self.tried = Some((true, 0)),
            ([false, false], None) => {}
        }
        self.astray = self.better.map_or(0, |_| self.astray + 1);
        if self.astray > PATIENCE {
            // Somebody else has that CPU.
            (self.better, self.compared, self.advantage) = (None, 0, 0);
            (self.tried, self.due) = (None, now + APART[1]);
        }
        for side in 0..2 {
            self.time[side] -= self.time[side] / FORGOTTEN;
            self.faults[side] -= self.faults[side].div_ceil(FORGOTTEN);
        }
        self.tried.map(|(side, _)| side).or(self.better)
    }

    fn compare(&mut self) {
        let each = [0, 1].map(|side| (self.time[side] / self.faults[side].max(1)) as i64);
        let gained = (each[0] - each[1]) * 2000 / (each[0] + each[1]).max(1);
        self.compared = (self.compared + 1).min(WEIGHED);
        self.advantage += (gained.clamp(-MOST, MOST) - self.advantage) / self.compared;
        let least = match self.better {
            Some(side) if side == (self.advantage > 0) => BETTER.1,
            _ => BETTER.0,
        };
        let differs = self.compared > 2 && self.advantage.abs() >= least;
        self.better = differs.then_some(self.advantage > 0);
        // The next one goes by other faults.
        (self.time, self.faults) = ([0; 2], [0; 2]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Nanos = 4_000_000;

    /// A thread that goes where it is wished, a period later, and to either side by itself; its faults take `times` on the
    /// two sides, more or less. Returns the periods on each side.
    fn run(sides: &mut Sides, times: [u64; 2], periods: u64) -> [u64; 2] {
        let (mut at, mut random, mut spent) = (false, 1_u64, [0; 2]);
        for period in 1..=periods {
            random = random
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            let noise = (random >> 33) % 30;
            let time = times[usize::from(at)] * (85 + noise) / 100;
            sides.on_stay(at, PERIOD, PERIOD / time);
            spent[usize::from(at)] += 1;
            at = sides.on_period(period * PERIOD).unwrap_or(at) ^ (random >> 60 == 0);
        }
        spent
    }

    #[test]
    fn a_thread_stays_on_the_side_where_its_faults_are_shorter() {
        for (times, better) in [([60_000, 70_000], 0), ([70_000, 60_000], 1)] {
            let spent = run(&mut Sides::new(), times, 4000);
            assert!(spent[better] > 3500, "{spent:?} with {times:?}");
        }
    }

    #[test]
    fn it_changes_sides_when_the_interrupts_do() {
        let mut sides = Sides::new();
        run(&mut sides, [60_000, 70_000], 1000);
        let spent = run(&mut sides, [70_000, 60_000], 16_000);
        assert!(spent[1] > 12_000, "{spent:?}");
    }

    #[test]
    fn sides_that_do_not_differ_are_compared_seldom() {
        let mut sides = Sides::new();
        let (mut wishes, mut over) = (0, false);
        for period in 1..=5000 {
            sides.on_stay(over, PERIOD, 60);
            let wish = sides.on_period(period * PERIOD);
            wishes += u32::from(wish.is_some());
            over = wish.unwrap_or(over);
        }
        assert!(wishes < 200, "{wishes} of 5000 periods");
    }

    #[test]
    fn a_thread_that_cannot_change_sides_is_left_alone() {
        let wishes = |faults| {
            let mut sides = Sides::new();
            let wishes = (1..=5000).filter(|n| {
                sides.on_stay(true, PERIOD, faults);
                sides.on_period(n * PERIOD).is_some()
            });
            wishes.count()
        };
        assert!((1..300).contains(&wishes(60)), "{}", wishes(60));
        assert_eq!(wishes(3), 0, "it hardly faults");
        // Nor one whose better side is somebody else's from some time on.
        let mut sides = Sides::new();
        run(&mut sides, [70_000, 60_000], 1000);
        assert_eq!(sides.better, Some(true));
        let wishes = (1001..=6000).filter(|n| {
            sides.on_stay(false, PERIOD, 60);
            sides.on_period(n * PERIOD) == Some(true)
        });
        assert!(wishes.count() < 300);
    }
}
