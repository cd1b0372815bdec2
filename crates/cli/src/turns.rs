//! Load control of a run: the supervisor looks at all processes, [`Load`] decides, and the ledger tells the engines.
//!
//! A look costs a few reads of shared memory for each process, and one of its CPU time in /proc while there are losses.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use foreswap::ledger::{Ledger, ProcId, ProcessState};
use foreswap_core::process::{Load, LoadConfig, Seen, Teams, Turn};
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
    worked: Vec<(Id, Cpu)>,
    /// The memory that processes share.
    shared: Vec<Shared>,
    teams: Teams<Id>,
}

/// Memory: the device and the inode of the object behind a mapping.
type Object = (u64, u64);

/// The memory that a process may write to and others may have mapped as well, at the time of a look.
#[derive(Debug)]
struct Shared {
    id: Id,
    looked: Instant,
    objects: Vec<Object>,
}

/// The interval of looks at it: a change of phase takes longer, and a look costs a millisecond in a process of 10,000 mappings.
const SHARED_EVERY: Duration = Duration::from_secs(2);
/// Less than this is a lock or a counter, which processes that are no team have in common (the workers of a pool in Python).
const SHARED_BYTES: u64 = 64 << 10;

/// The objects of the shared writable mappings in the text of /proc/PID/maps. Neither foreswap's own memory nor devices.
fn shared_objects(maps: &str) -> Vec<Object> {
    let object = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let flags = words.next()?.as_bytes();
        let is_shared = flags.get(1) == Some(&b'w') && flags.get(3) == Some(&b's');
        let bytes = number(end)?.checked_sub(number(start)?)?;
        let (major, minor) = words.nth(1)?.split_once(':')?;
        let inode = words.next()?.parse().ok()?;
        let path = words.next().unwrap_or_default();
        let is_memory = match path {
            _ if path.starts_with("/memfd:foreswap") || path.starts_with("anon_inode:") => false,
            _ if path.starts_with("/dev/") => {
                path.starts_with("/dev/shm/") || path.starts_with("/dev/zero")
            }
            _ => inode != 0,
        };
        let device = number(major)? << 32 | number(minor)?;
        (is_shared && is_memory && bytes >= SHARED_BYTES).then_some((device, inode))
    };
    maps.lines().filter_map(object).collect()
}

/// Nanoseconds of the clock that engines use.
fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.cast_unsigned() * 1_000_000_000 + time.tv_nsec.cast_unsigned()
}

/// What /proc/PID/stat says of all threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Cpu {
    /// The CPU time, and the kernel's part of it, ns.
    worked: u64,
    system: u64,
    /// The first thread can run.
    runs: bool,
}

impl Cpu {
    fn of(stat: &str) -> Option<Self> {
        // The name may contain anything.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let runs = fields.next()? == "R";
        let mut ticks = fields.skip(10).map(|field| field.parse::<u64>().ok());
        let (user, system) = (ticks.next()??, ticks.next()??);
        Some(Self {
            worked: (user + system) * TICK,
            system: system * TICK,
            runs,
        })
    }
}

impl Turns {
    /// It is off until processes lose.
    pub fn new() -> Self {
        Self {
            load: Load::new(LoadConfig::default()),
            next: Instant::now(),
            losses: 0,
            worked: Vec::new(),
            shared: Vec::new(),
            teams: Teams::default(),
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
        let cpu = |&id: &Id| (id, self.cpu(id, reads));
        self.worked = ids.iter().map(cpu).collect();
        let seen = self.worked.iter();
        let seen: Vec<Seen<Id>> = seen.map(|&(id, cpu)| see(ledger, id, cpu)).collect();
        if reads {
            self.form_teams(&seen);
        }
        let was_on = self.load.is_on();
        let now = now();
        let teams = self.teams.merged(seen);
        let changed = self.load.look(now, ledger.limit_pages(), teams.into_iter());
        if self.load.is_on() || was_on {
            for &id in &ids {
                let turn = self.load.turn(self.teams.of(id));
                ledger.set_turn(id.0, self.teams.part(id, turn), now);
            }
        }
        if changed {
            // Engines look at their turn then.
            ledger.raise_pressure();
        }
    }

    fn form_teams(&mut self, seen: &[Seen<Id>]) {
        self.shared
            .retain(|one| one.looked.elapsed() < SHARED_EVERY);
        for id in seen.iter().map(|seen| seen.id) {
            if !self.shared.iter().any(|one| one.id == id) {
                let maps = fs::read_to_string(format!("/proc/{}/maps", id.1));
                self.shared.push(Shared {
                    id,
                    looked: Instant::now(),
                    objects: shared_objects(&maps.unwrap_or_default()),
                });
            }
        }
        let objects = |id: Id| self.shared.iter().find(|one| one.id == id);
        let objects = |id: Id| objects(id).map_or(&[][..], |one| &one.objects);
        let all: Vec<_> = seen.iter().map(|&seen| (seen, objects(seen.id))).collect();
        self.teams = Teams::form(&all);
    }

    /// The CPU time of a process: as before if nothing `reads` it.
    fn cpu(&self, id: Id, reads: bool) -> Cpu {
        let known = self.worked.iter().find(|(other, _)| *other == id);
        let known = Cpu {
            runs: false,
            ..known.map_or(Cpu::default(), |(_, cpu)| *cpu)
        };
        let stat = match reads {
            true => fs::read_to_string(format!("/proc/{}/stat", id.1)).ok(),
            false => None,
        };
        stat.as_deref().and_then(Cpu::of).unwrap_or(known)
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

fn see(ledger: &Ledger, id: Id, cpu: Cpu) -> Seen<Id> {
    let demand = ledger.demand(id.0);
    let stats = ledger.stats(id.0);
    let faults = [&stats.faults_major, &stats.faults_minor, &stats.faults_zero];
    Seen {
        id,
        charged: ledger.process_charged(id.0),
        needs: demand.needs,
        lost: demand.lost,
        losses: demand.losses,
        faults: faults.map(|count| count.load(Relaxed)).iter().sum(),
        worked: cpu.worked,
        system: cpu.system,
        busy: cpu.runs || demand.waiting > 0,
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
    fn memory_in_common_is_large_and_can_be_written() {
        let maps = "\
77084b600000-77084e602000 rw-s 00000000 00:01 350865                     /memfd:foreswap-ledger (deleted)
7f07409fc000-7f0740dfd000 rw-s 00000000 00:1b 612                        /dev/shm/segment 3
7f0740dfd000-7f07411fe000 rw-s 00000000 fe:00 611                        /tmp/segment
7f0740dfd000-7f07411fe000 r--s 00000000 fe:00 609                        /tmp/read only
7f0740dfd000-7f07411fe000 rw-p 00000000 fe:00 608                        /tmp/private
7f0741a00000-7f0741b00000 rw-s 00000000 00:01 77                         /dev/zero (deleted)
7f0741a00000-7f0741b00000 rw-s 00000000 00:01 78                         /memfd:ring (deleted)
7f074801f000-7f0748821000 rw-s 00000000 00:10 2851716                    anon_inode:[io_uring]
7f074801f000-7f0748821000 rw-s 00000000 00:10 28                         /dev/dri/card0
7f90b90d2000-7f90b90d3000 rw-s 00000000 00:1b 619                        /dev/shm/sem.1Vghb2 (deleted)
7f90b9dba000-7f90b9fbb000 rw-p 00000000 00:00 0                          [heap]
";
        assert_eq!(
            shared_objects(maps),
            [(0x1b, 612), (0xfe << 32, 611), (1, 77), (1, 78)]
        );
        assert!(shared_objects("no map").is_empty());
    }

    #[test]
    fn the_cpu_time_is_found_behind_any_name() {
        let stat = "7 (a) R (b) S 1 7 7 0 -1 4194560 900 0 0 0 12 3 0 0 20 0 1 0 5 10 2";
        let cpu = Cpu {
            worked: 15 * TICK,
            system: 3 * TICK,
            runs: false,
        };
        assert_eq!(Cpu::of(stat), Some(cpu));
        let running = Cpu { runs: true, ..cpu };
        assert_eq!(Cpu::of(&stat.replace(") S", ") R")), Some(running));
        assert_eq!(Cpu::of("7 (a) S 1"), None);
    }
}
