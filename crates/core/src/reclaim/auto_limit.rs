//! How much memory a run may have when nobody fixed it (`--memory auto`).
//!
//! Three rules, in this order, once a tick:
//!
//! 1. **The machine first.** Each scope (the machine, each cgroup above the run) has three marks, as the kernel's zones
//!    have. Above `high` the run may grow. Below `low` it gives back what is missing, unless it stalls much itself;
//!    below `min` it gives back in any case. Between `low` and `high` nothing moves, so that two runs, or a run and the
//!    page cache, do not chase each other. Two exceptions: if the kernel reports that tasks stall for memory (PSI), the
//!    run gives back there too, and a run that has little may have half of what is left above `low`.
//! 2. **The run's own stalls.** Threads that wait because of the limit make it larger: `(err / coefficient)^2` of it, as
//!    senpai does, where `err` is the stall time in multiples of the target. The most that is added at a time doubles
//!    from tick to tick, so that a burst of faults has the room of the machine within a second.
//! 3. **Probing.** Memory that the run holds for a while without stalls and without growth becomes less, one percent in
//!    a second at first, twice as much each time nothing stalls. What is idle leaves, because reclaim takes the coldest
//!    pages first. A probe takes no more than can come back in a quarter of a second of faults, as what it takes wrongly
//!    has to. One that makes threads stall is taken back by rule 2; the next one waits, longer each time, and is smaller.
//!
//! A run begins with all that the machine has to spare. A program that fits is never short, and has no cost.

use crate::units::Nanos;

const SECOND: Nanos = 1_000_000_000;

/// The constants of the machine.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Parts of a scope that stay available to others: one in `high`, `low` and `min`. What others can take in the time
    /// until memory is given back (a tick and the writes) must be there at once, and grows with the machine. An eighth
    /// is above the tenth at which earlyoom ends processes.
    pub high: u64,
    /// Below this part memory is given back.
    pub low: u64,
    /// Below this part it is given back however much the run stalls.
    pub min: u64,
    /// The time in which stalls are summed up and after which a probe may follow.
    pub interval: Nanos,
    /// Stall time in an interval that is no cause to grow, as a part (one in `target`) of it. Senpai allows 1 ms; Meta's
    /// fleet runs at 0.1 % of the time.
    pub target: u64,
    /// At `grow` times the target the limit grows by its whole self, at less by the square of the part; at `probe` times
    /// less than the target a probe takes everything it may. Senpai's coefficients.
    pub grow: u64,
    /// As above.
    pub probe: u64,
    /// The most by which the limit grows in the first tick with stalls, in percent; it doubles with each further one.
    pub first_growth: u64,
    /// What the first probe takes, and the most that one takes after several without stalls, in hundredths of a percent.
    /// Senpai's take 1 % at most; with 4 a run that holds four times what it uses needs half a minute instead of two.
    pub first_probe: u64,
    /// As above.
    pub last_probe: u64,
    /// The most stall time that a probe may cost if all that it takes is needed again. A job of half a minute loses 1 %.
    pub dearest: Nanos,
    /// The time of a major fault, as long as none was seen.
    pub fault: Nanos,
    /// Without stalls or growth for this time, a probe may begin. Programs that end sooner are not probed at all.
    pub rest: Nanos,
    /// The rest after many probes that led to stalls. The cost of a probe is a few milliseconds of stall: 0.01 %.
    pub longest_rest: Nanos,
    /// The part of the time in which a run may stall before it gives nothing more to others that have a little.
    pub equal_pain: u64,
    /// The part of the time in which tasks of the machine stall that counts as pressure.
    pub pressure: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            high: 8,
            low: 16,
            min: 32,
            interval: SECOND,
            target: 1000,
            grow: 20,
            probe: 10,
            first_growth: 10,
            first_probe: 100,
            last_probe: 400,
            dearest: SECOND / 4,
            fault: 100_000,
            rest: 5 * SECOND,
            longest_rest: 60 * SECOND,
            equal_pain: 10,
            pressure: 100,
        }
    }
}

/// The least and the most pages that the limit may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// At least this, whatever others need.
    pub least: u64,
    /// At most this, however much is free.
    pub most: u64,
}

/// The machine, or a cgroup that the run belongs to, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scope {
    /// All of its memory.
    pub size: u64,
    /// What could be used now without a task having to wait.
    pub available: u64,
}

/// What happened since the last tick.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The time since then.
    pub elapsed: Nanos,
    /// Of this, the time in which threads of the run waited for memory. Several processes may count the same moment;
    /// more than `elapsed` counts as `elapsed`.
    pub stalled: Nanos,
    /// Faults that read from an area.
    pub faults: u64,
    /// Pages that the run holds.
    pub charged: u64,
    /// The machine and the cgroups.
    pub scopes: &'a [Scope],
    /// The time in which tasks on the machine waited for memory, if the kernel reports it.
    pub pressed: Nanos,
    /// Something other than faults waits for room: an area that is being emptied, or processes that wait for their turn.
    pub needs_room: bool,
}

/// The limit of a run.
#[derive(Clone, Debug)]
pub struct AutoLimit {
    config: Config,
    bounds: Bounds,
    limit: u64,
    /// Nothing was taken yet: the limit is all that the machine has to spare.
    open: bool,
    /// Stall time and time since the last judgement.
    stalled: Nanos,
    window: Nanos,
    /// Ticks in a row that made the limit larger.
    burst: u32,
    /// Time without stalls above the target and without growth.
    quiet: Nanos,
    /// The quiet time that a probe needs.
    rest: Nanos,
    /// Probes in a row without stalls, and what the next one takes, in hundredths of a percent.
    probes: u32,
    step: u64,
    /// The time of a major fault.
    fault: Nanos,
    /// The time since the last probe, and since the charge is above the limit.
    since_probe: Nanos,
    unfollowed: Nanos,
    /// The most pages held lately: in this interval, and before.
    peak: u64,
    mark: u64,
    /// The limit at the last moment without stalls or growth for a while.
    settled: Option<u64>,
}

/// What the scopes have to spare, and what they miss.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    /// Above `high`: what the run may have in addition.
    spare: u64,
    /// What a run that has less may have in any case.
    modest: u64,
    missing: u64,
    /// The most that any run may have here.
    most: u64,
}

impl AutoLimit {
    /// A run that begins now and holds nothing.
    pub fn new(config: Config, bounds: Bounds, scopes: &[Scope]) -> Self {
        let mut machine = AutoLimit {
            config,
            bounds,
            limit: 0,
            open: true,
            stalled: 0,
            window: 0,
            burst: 0,
            quiet: 0,
            rest: config.rest,
            probes: 0,
            step: config.first_probe,
            fault: config.fault,
            since_probe: Nanos::MAX,
            unfollowed: 0,
            peak: 0,
            mark: 0,
            settled: None,
        };
        let room = machine.room(scopes, false, false);
        machine.limit = machine.within(room.spare.max(room.modest).min(room.most));
        machine
    }

    /// The limit, in pages.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The limit when the run was last without stalls and growth for some seconds, if it was ever after a probe. What a
    /// program does in its last moments says little of what it needs.
    pub fn settled(&self) -> Option<u64> {
        self.settled
    }

    /// The bounds.
    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    /// The most that the run could have now.
    pub fn ceiling(&self, charged: u64, scopes: &[Scope]) -> u64 {
        let room = self.room(scopes, false, false);
        self.within((charged + room.spare).min(room.most).max(self.limit))
    }

    /// The lower bound wins: a program needs it.
    fn within(&self, pages: u64) -> u64 {
        pages.min(self.bounds.most).max(self.bounds.least)
    }

    fn room(&self, scopes: &[Scope], hurts: bool, pressed: bool) -> Room {
        let mut room = Room {
            spare: u64::MAX,
            modest: u64::MAX,
            missing: 0,
            most: u64::MAX,
        };
        let Config { high, low, min, .. } = self.config;
        for scope in scopes.iter().filter(|scope| scope.size > 0) {
            let [high, low, min] = [high, low, min].map(|part| scope.size / part.max(1));
            let available = scope.available;
            room.spare = room.spare.min(available.saturating_sub(high));
            room.modest = room.modest.min(available.saturating_sub(low) / 2);
            room.most = room.most.min(scope.size - high);
            let goal = if available < min || available < low && !hurts {
                low
            } else if available < high && pressed {
                // Little at a time: it may be others' own limits that make them wait.
                high.min(available + self.limit / 20)
            } else {
                available
            };
            room.missing = room.missing.max(goal.saturating_sub(available));
        }
        if room.most == u64::MAX {
            // Nothing is known.
            (room.spare, room.modest) = (0, 0);
        }
        room
    }

    /// The limit from now on.
    pub fn tick(&mut self, seen: &Seen<'_>) -> u64 {
        if seen.elapsed == 0 {
            return self.limit;
        }
        let stalled = seen.stalled.min(seen.elapsed);
        let part = |time: Nanos, one_in: u64| time.saturating_mul(one_in) > seen.elapsed;
        let hurts = part(stalled, self.config.equal_pain);
        let pressed = part(seen.pressed, self.config.pressure);
        let room = self.room(seen.scopes, hurts, pressed);
        self.window = self.window.saturating_add(seen.elapsed);
        self.quiet = self.quiet.saturating_add(seen.elapsed);
        self.since_probe = self.since_probe.saturating_add(seen.elapsed);
        self.stalled += stalled;
        // Enough of them, so that other waits do not count for much.
        if seen.faults >= 16 {
            self.fault = (self.fault * 3 + stalled / seen.faults) / 4;
        }
        // What has yet to leave is no growth.
        self.peak = self.peak.max(seen.charged.min(self.limit));
        if room.missing > 0 {
            self.give_back(seen.charged, room.missing);
            return self.limit;
        }
        let before = self.limit;
        let allowed = self.config.interval / self.config.target.max(1);
        if self.stalled > allowed || seen.needs_room {
            let err = self.stalled / allowed.max(1);
            let err = if seen.needs_room { u64::MAX } else { err };
            self.on_stalls(seen.charged, err);
        } else if self.window >= self.config.interval {
            self.burst = 0;
            self.on_interval(seen.charged);
        }
        self.keep_to_the_room(before, seen.charged, room);
        if !self.open && self.quiet >= self.config.rest {
            self.settled = Some(self.limit);
        }
        self.limit
    }

    fn begin_window(&mut self) {
        (self.window, self.stalled) = (0, 0);
    }

    /// Others need `missing` pages.
    fn give_back(&mut self, charged: u64, missing: u64) {
        let goal = charged.saturating_sub(missing);
        if goal < self.limit {
            self.limit = self.within(goal);
            self.open = false;
        }
        self.begin_window();
        (self.quiet, self.burst, self.probes) = (0, 0, 0);
        self.mark = charged;
    }

    /// Threads stalled for `err` times the time that is allowed, in a window that ends early by that.
    fn on_stalls(&mut self, charged: u64, err: u64) {
        self.begin_window();
        self.quiet = 0;
        if self.since_probe < 3 * self.config.interval {
            // The memory was needed: the next probe waits longer.
            self.since_probe = Nanos::MAX;
            self.rest = (self.rest * 2).min(self.config.longest_rest);
            self.step = (self.config.first_probe / 4).max(1);
        }
        self.probes = 0;
        // Reclaim keeps some pages free below the limit. A run that holds much less is not short of memory: it brings
        // back what it had to give.
        if charged + charged / 16 < self.limit {
            return;
        }
        let most = self.config.first_growth << self.burst.min(4);
        let most = most.min(100);
        let grow = self.config.grow.max(1);
        let percent = err.saturating_mul(err).saturating_mul(100) / (grow * grow);
        let percent = percent.clamp(1, most);
        self.limit = self.limit.saturating_add(self.limit / 100 * percent + 1);
        self.burst += u32::from(percent == most);
        // Four doublings: it needs what there is.
        self.open |= self.burst > 4;
    }

    /// An interval without stalls above the target.
    fn on_interval(&mut self, charged: u64) {
        let allowed = self.window / self.config.target.max(1);
        let stalled = core::mem::take(&mut self.stalled);
        self.begin_window();
        let peak = core::mem::replace(&mut self.peak, charged.min(self.limit));
        if peak > self.mark + self.mark / 50 {
            self.quiet = 0;
            self.mark = peak;
            return;
        }
        if peak < self.mark {
            // A program that frees and allocates in turn needs its peak.
            self.mark = peak.max(self.mark - self.mark / 16);
        }
        if charged > self.limit + self.limit / 32 {
            self.unfollowed += self.config.interval;
            if self.unfollowed >= self.config.rest {
                // Nothing of it can leave: locked, or the areas are full.
                self.rest = (self.rest * 2).min(self.config.longest_rest);
                (self.quiet, self.unfollowed, self.probes) = (0, 0, 0);
                self.limit = self.within(charged);
            }
            return;
        }
        self.unfollowed = 0;
        if self.quiet >= self.rest {
            self.probe(peak, allowed, stalled);
        }
    }

    fn probe(&mut self, peak: u64, allowed: Nanos, stalled: Nanos) {
        let from = self.limit.min(self.mark.max(peak));
        let err = (allowed / stalled.max(1)).min(100);
        let probe = self.config.probe.max(1);
        let part = (err * err * 10_000 / (probe * probe)).min(self.step);
        let most = self.config.dearest / self.fault.max(1_000);
        let goal = self.within(from.saturating_sub((from / 10_000 * part).clamp(1, most.max(1))));
        if goal >= self.limit {
            return;
        }
        self.limit = goal;
        (self.mark, self.peak) = (goal, self.peak.min(goal));
        self.open = false;
        self.since_probe = 0;
        self.probes += 1;
        self.step = (self.step * 2).min(self.config.last_probe);
        if self.probes > 4 {
            // The working set has become smaller.
            self.rest = self.config.rest;
        }
    }

    /// The limit is never more than the machine has room for. While nothing was taken, it is all of it. `before` is the
    /// limit of the last tick.
    fn keep_to_the_room(&mut self, before: u64, charged: u64, room: Room) {
        // Some air above the charge: a limit at the charge itself would make reclaim evict a little in each tick.
        let air = charged / 32;
        let mut top = charged.saturating_add(air).saturating_add(room.spare);
        if room.spare == 0 {
            top = top.min(before);
            self.limit = self.limit.min(before.max(room.modest.min(room.most)));
        }
        let top = self.within(top.max(room.modest).min(room.most));
        // Small changes are not worth telling the engines, unless they matter.
        let little = self.limit / 64;
        let falls = top < self.limit && (self.limit - top > little || top < charged + air);
        if falls || self.open && top > self.limit + little {
            self.limit = top;
        }
        self.limit = self.within(self.limit);
    }
}

#[cfg(test)]
#[path = "auto_limit_tests.rs"]
mod tests;
