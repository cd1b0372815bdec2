//! Load control of a run: the supervisor looks at all processes, [`Load`] decides, and the ledger tells the engines.
//!
//! A look costs a few reads of shared memory for each process, and one of its CPU time in /proc while there are losses.

use std::fs;
use std::time::{Duration, Instant};

use foreswap::ledger::{Ledger, ProcId, ProcessState};
use foreswap_core::process::{Load, LoadConfig, Seen, Turn};
use rustix::time::{ClockId, clock_gettime};

/// The interval of looks, and while memory is not short.
const EVERY: Duration = Duration::from_millis(100);
const SELDOM: Duration = Duration::from_millis(500);
/// A clock tick of /proc, in nanoseconds.
const TICK: u64 = 10_000_000;

/// A process: its record, and its pid, as records are used again.
type Id = (ProcId, u32);

/// Load control.
#[derive(Debug)]
pub struct Turns {
    load: Load<Id>,
    next: Instant,
    /// The losses of all at the last look.
    losses: u64,
    /// The CPU times at the last look.
    worked: Vec<(Id, u64)>,
}

/// Nanoseconds of the clock that engines use.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// The CPU time of all threads of a process, and whether its first thread can run; from /proc/PID/stat.
fn cpu_time(stat: &str) -> Option<(u64, bool)> {
    // The name may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let runs = fields.next()? == "R";
    let mut ticks = fields.skip(10).map(|field| field.parse::<u64>().ok());
    let (user, system) = (ticks.next()??, ticks.next()??);
    Some(((user + system) * TICK, runs))
}

impl Turns {
    /// It is off until processes lose.
    pub fn new() -> Self {
        Self {
            load: Load::new(LoadConfig::default()),
            next: Instant::now(),
            losses: 0,
            worked: Vec::new(),
        }
    }

    /// Until the next look.
    pub fn due_in(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Whether some process waits. Its wait shows in no fault that is served.
    pub fn is_on(&self) -> bool {
        self.load.is_on()
    }

    /// Looks, if a look is due. `suspended`: nobody waits now.
    pub fn look(&mut self, ledger: &Ledger, suspended: bool) {
        if !self.due_in().is_zero() {
            return;
        }
        let short = ledger.charged_pages() >= ledger.limit_pages() / 8 * 7;
        let several = ledger.live() > 1;
        let is_quiet = !(self.load.is_on() || short && several);
        self.next = Instant::now() + if is_quiet { SELDOM } else { EVERY };
        if is_quiet {
            return;
        }
        if suspended {
            self.stop(ledger);
            return;
        }
        let live = ledger.records_in_use();
        let live = live.filter(|&record| ledger.state(record) == ProcessState::Live);
        let ids: Vec<Id> = live.map(|record| (record, ledger.pid(record))).collect();
        let losses = ids.iter().map(|&(record, _)| ledger.demand(record).losses);
        let losses = losses.sum();
        let reads = self.load.is_on() || losses != self.losses;
        self.losses = losses;
        let seen: Vec<Seen<Id>> = ids.iter().map(|&id| self.see(ledger, id, reads)).collect();
        self.worked = seen.iter().map(|seen| (seen.id, seen.worked)).collect();
        let was_on = self.load.is_on();
        let now = now();
        let changed = self.load.look(now, ledger.limit_pages(), seen.into_iter());
        if self.load.is_on() || was_on {
            for &id in &ids {
                ledger.set_turn(id.0, self.load.turn(id), now);
            }
        }
        if changed {
            // Engines look at their turn then.
            ledger.raise_pressure();
        }
    }

    fn see(&self, ledger: &Ledger, id: Id, reads: bool) -> Seen<Id> {
        let demand = ledger.demand(id.0);
        let known = self.worked.iter().find(|(other, _)| *other == id);
        let known = known.map_or(0, |(_, worked)| *worked);
        let stat = match reads {
            true => fs::read_to_string(format!("/proc/{}/stat", id.1)).ok(),
            false => None,
        };
        let (worked, runs) = stat.as_deref().and_then(cpu_time).unwrap_or((known, false));
        Seen {
            id,
            charged: ledger.process_charged(id.0),
            needs: demand.needs,
            lost: demand.lost,
            losses: demand.losses,
            worked,
            busy: runs || demand.waiting > 0,
        }
    }

    fn stop(&mut self, ledger: &Ledger) {
        if self.load.is_on() {
            self.load = Load::new(LoadConfig::default());
            for record in ledger.records_in_use() {
                ledger.set_turn(record, Turn::Free, 0);
            }
            ledger.raise_pressure();
        }
    }
}

/// Whether a process waits for its turn.
pub fn waits(ledger: &Ledger, record: ProcId) -> bool {
    matches!(ledger.turn(record, now), Turn::Waits(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_time_is_found_behind_any_name() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 900 0 0 0 12 3 0 0 20 0 1 0 5 10 2";
        assert_eq!(cpu_time(stat), Some((15 * TICK, false)));
        assert_eq!(
            cpu_time(&stat.replace(") S", ") R")),
            Some((15 * TICK, true))
        );
        assert_eq!(cpu_time("7 (a) S 1"), None);
    }
}
