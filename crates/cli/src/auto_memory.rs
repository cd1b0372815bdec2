//! `--memory auto`: the supervisor asks `foreswap_core::auto_limit` ten times a second for the limit of the run.

use std::time::{Duration, Instant};

use foreswap::ledger::Ledger;
use foreswap_core::auto_limit::{AutoLimit, Bounds, Config, Seen};
use foreswap_store::area::PAGE_BYTES;
use serde::{Deserialize, Serialize};

use crate::memory::Scopes;
use crate::memory_setting::Limits;
use crate::size::humane;

/// Memory must be back within a second, writes included. A tick costs about 50 us: 0.05 % of a CPU.
const TICK: Duration = Duration::from_millis(100);

/// The bounds of a limit that is not fixed, for `ps` and the reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Auto {
    /// The least limit.
    pub least_bytes: u64,
    /// The most.
    pub most_bytes: u64,
    /// The limit at the last moment without stalls or growth for some seconds, if there was one.
    pub settled_bytes: Option<u64>,
}

impl Auto {
    /// `64 MiB..1 GiB`.
    pub fn bounds(&self) -> String {
        format!("{}..{}", humane(self.least_bytes), humane(self.most_bytes))
    }
}

/// The limit of a run: fixed, or not.
#[derive(Debug)]
pub struct AutoMemory {
    scopes: Scopes,
    machine: Option<AutoLimit>,
    last: Instant,
    /// At the last tick: the stall time of all processes, and of all tasks on the machine.
    stalled: u64,
    faults: u64,
    pressed: u64,
}

/// What the processes of the run have waited for so far, ended ones included.
#[derive(Clone, Copy, Debug, Default)]
pub struct Waits {
    /// The time in which a thread waited for a page that more memory would have kept, in nanoseconds. Processes that
    /// wait at the same time count each for itself.
    pub stalled_ns: u64,
    /// Faults that read from an area.
    pub major: u64,
}

impl AutoMemory {
    /// With the limit to begin with, in bytes.
    pub fn new(limits: &Limits) -> (Self, u64) {
        let scopes = Scopes::find();
        let machine = limits.is_auto.then(|| begin(limits, &scopes));
        let first = machine.as_ref().map(AutoLimit::limit);
        let auto = Self {
            pressed: scopes.pressed(),
            scopes,
            machine,
            last: Instant::now(),
            stalled: 0,
            faults: 0,
        };
        (auto, first.map_or(limits.most, |pages| pages * PAGE_BYTES))
    }

    /// From now on. Returns the new limit, in bytes.
    pub fn set(&mut self, limits: &Limits, ledger: &Ledger, waits: Waits) -> u64 {
        ledger.set_bound_pages(limits.most / PAGE_BYTES);
        self.machine = None;
        let mut limit = limits.most / PAGE_BYTES;
        if limits.is_auto {
            let machine = begin(limits, &self.scopes);
            // What it holds already is not free any more.
            limit = machine.ceiling(ledger.charged_pages(), &self.scopes.now());
            self.machine = Some(machine);
            self.begin_tick(waits);
        }
        ledger.set_limit_pages(limit);
        limit * PAGE_BYTES
    }

    /// The bounds, if the limit is not fixed.
    pub fn bounds(&self) -> Option<Auto> {
        let machine = self.machine.as_ref()?;
        let bounds = machine.bounds();
        Some(Auto {
            least_bytes: bounds.least * PAGE_BYTES,
            most_bytes: bounds.most * PAGE_BYTES,
            settled_bytes: machine.settled().map(|pages| pages * PAGE_BYTES),
        })
    }

    /// Pages that the limit could be: it is not raised in advance.
    pub fn ceiling(&self, ledger: &Ledger) -> u64 {
        let limit = ledger.limit_pages();
        let Some(machine) = &self.machine else {
            return limit;
        };
        let scopes = self.scopes.now();
        limit.max(machine.ceiling(ledger.charged_pages(), &scopes))
    }

    /// When it is to be looked at again.
    pub fn due_in(&self) -> Option<Duration> {
        self.machine.as_ref()?;
        Some(TICK.saturating_sub(self.last.elapsed()))
    }

    /// Whether it is time.
    pub fn is_due(&self) -> bool {
        self.due_in().is_some_and(|due| due.is_zero())
    }

    /// The time, the waits and the pressure since the last tick.
    fn begin_tick(&mut self, waits: Waits) -> (Duration, Waits, u64) {
        let elapsed = self.last.elapsed();
        self.last = Instant::now();
        let pressed = self.scopes.pressed();
        let was_pressed = std::mem::replace(&mut self.pressed, pressed);
        // A process that ends may take a moment's waits with it.
        let new = Waits {
            stalled_ns: waits.stalled_ns.saturating_sub(self.stalled),
            major: waits.major.saturating_sub(self.faults),
        };
        (self.stalled, self.faults) = (waits.stalled_ns, waits.major);
        (elapsed, new, pressed.saturating_sub(was_pressed))
    }

    /// Sets the limit anew. An area that is being emptied, and processes that wait for their turn, need room.
    pub fn look(&mut self, ledger: &Ledger, waits: Waits, needs_room: bool) {
        let (elapsed, waits, pressed) = self.begin_tick(waits);
        let Some(machine) = &mut self.machine else {
            return;
        };
        let scopes = self.scopes.now();
        let seen = Seen {
            elapsed: elapsed.as_nanos() as u64,
            stalled: waits.stalled_ns,
            faults: waits.major,
            charged: ledger.charged_pages(),
            scopes: &scopes,
            pressed,
            needs_room,
        };
        let limit = machine.tick(&seen);
        if limit != ledger.limit_pages() {
            ledger.set_limit_pages(limit);
        }
    }
}

fn begin(limits: &Limits, scopes: &Scopes) -> AutoLimit {
    let bounds = Bounds {
        least: limits.least / PAGE_BYTES,
        most: limits.most / PAGE_BYTES,
    };
    AutoLimit::new(Config::default(), bounds, &scopes.now())
}
