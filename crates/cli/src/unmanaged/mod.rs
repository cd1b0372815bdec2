//! Unmanaged memory of the processes of a run: the supervisor measures it, and reports it if it matters.
//!
//! A look costs a few microseconds per process: its `statm`, and its `status` if that has changed. Only if these
//! leave room for much unmanaged memory does the look read its mappings, for which the kernel walks its page tables.
//! The cost of a look determines the time of the next: at most a thousandth of a CPU is spent.

mod copies;
mod family;
mod figures;
mod pace;
mod seen;
mod smaps;
mod words;

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use std::sync::atomic::Ordering::Relaxed;

use foreswap::ledger::{Ledger, ProcessState};
use foreswap_store::area::PAGE_BYTES;
use rustix::process::Signal;

use self::copies::Copies;
use self::family::Family;
pub use self::figures::{Kind, Unmanaged};
use self::pace::Pace;
use self::seen::{Charged, Mapped, Seen};
use self::smaps::Devices;
use self::words::Holder;

/// Below this, or a sixteenth of the limit, the figures of `status` suffice for a process.
const SMALL: u64 = 4 << 20;
/// Below this they suffice even with many such processes, which may share memory.
const TINY: u64 = 256 << 10;

/// More than any process has.
const EVERYTHING: u64 = 1 << 56;

/// The processes that are examined more closely.
#[derive(Clone, Copy, Debug)]
struct Close {
    /// Those that may hold this much.
    from: u64,
}

impl Close {
    /// `least` is each process' unmanaged memory, as far as the quick figures tell.
    fn of(limit: u64, least: impl Iterator<Item = u64>) -> Self {
        let small = SMALL.max(limit / 16);
        let crowd: u64 = least.filter(|&bytes| bytes < small).sum();
        let from = if crowd > limit / 8 { TINY } else { small };
        Self { from }
    }
}

/// The run's unmanaged memory at one time.
#[derive(Clone, Debug, Default)]
pub struct Now {
    /// Of all processes.
    pub sum: Unmanaged,
    /// Of each process that has any, by pid.
    pub each: Vec<(i32, Unmanaged)>,
}

/// What engines have told of processes, by pid.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// Those with an engine.
    pub connected: Vec<i32>,
    /// Engines of forked children that share their parents' memory.
    pub early: Vec<i32>,
    /// Forked children that have not connected.
    pub announced: Vec<i32>,
    /// Those whose engine serves children of forks past the C library.
    pub serves_guests: Vec<i32>,
}

/// Watches the processes of a run.
#[derive(Debug)]
pub struct Watch {
    family: Family,
    copies: Copies,
    pace: Pace,
    seen: HashMap<i32, Seen>,
    now: Unmanaged,
    peak: Unmanaged,
    /// The number of looks.
    looks: u64,
    /// The maximum resident size of one process, file pages included.
    most_resident: u64,
    /// The bytes of a kind in a process at its last report.
    told: HashMap<(i32, Kind), u64>,
    /// The last look found more than the limit.
    alarmed: bool,
    /// Two looks in a row found more than the limit.
    passed: bool,
    devices: Devices,
    /// Nobody's memory is looked at.
    is_off: bool,
}

/// The time between two looks at nothing.
const NEVER: Duration = Duration::from_secs(3600);

impl Watch {
    /// Looks at no memory: the limit is one of regions, and the rest is none of foreswap's business.
    pub fn off(mut self) -> Self {
        self.is_off = true;
        self
    }

    /// `marker` is `NAME=value` in the environment of all processes that the command starts.
    pub fn new(marker: String) -> Self {
        let mut devices = Devices::new();
        // The device of anonymous shared memory, System V shared memory and memfds.
        let memory = rustix::fs::memfd_create(c"foreswap-look", rustix::fs::MemfdFlags::CLOEXEC);
        if let Ok(stat) = memory.and_then(|memory| rustix::fs::fstat(memory.as_fd())) {
            let number = (
                rustix::fs::major(stat.st_dev),
                rustix::fs::minor(stat.st_dev),
            );
            devices.insert(number, true);
        }
        Self {
            family: Family::new(marker),
            copies: Copies::default(),
            pace: Pace::new(Instant::now()),
            seen: HashMap::new(),
            now: Unmanaged::default(),
            peak: Unmanaged::default(),
            looks: 0,
            most_resident: 0,
            told: HashMap::new(),
            alarmed: false,
            passed: false,
            devices,
            is_off: false,
        }
    }

    /// A command of another terminal joins the run: the child of process `starter`.
    pub fn add_starter(&mut self, starter: i32) {
        self.family.add_starter(starter);
    }

    /// The relay to the servers of swap areas is none of the run's processes.
    pub fn set_relay(&mut self, pid: Option<i32>) {
        self.family.set_relay(pid);
    }

    /// Whether processes can be examined.
    pub fn can_look(&self) -> bool {
        self.family.is_readable()
    }

    /// When the next look is due.
    pub fn due_in(&self) -> Duration {
        match self.is_off {
            true => NEVER,
            false => self.pace.due_in(Instant::now()),
        }
    }

    /// The maximum of unmanaged memory.
    pub fn peak(&self) -> &Unmanaged {
        &self.peak
    }

    /// The maximum resident size of one process at a look.
    pub fn most_resident(&self) -> u64 {
        self.most_resident
    }

    /// Whether unmanaged memory alone has passed the limit.
    pub fn has_passed(&self) -> bool {
        self.passed
    }

    /// Looks at every process. Returns the lines to report.
    pub fn look(&mut self, ledger: &Ledger, known: &Known) -> Vec<String> {
        if self.is_off {
            return Vec::new();
        }
        let Known {
            connected, early, ..
        } = known;
        self.looks += 1;
        let began = Instant::now();
        let cpu = cpu_time();
        let new = self.find(connected);
        // A limit that is not fixed comes and goes with what is managed.
        let limit = ledger.bound_pages() * PAGE_BYTES;
        let charged = self.charged(ledger, early);
        let moved = self.read_quick(limit);
        let close = self.read_mappings(limit, &charged);
        self.sum_up(limit, close, &charged);
        let mut lines = self.judge(limit, &charged);
        lines.extend(self.find_copies(ledger, known));
        let spent = cpu_time().saturating_sub(cpu);
        let doubted = self.alarmed && !self.passed;
        self.pace.looked(began, spent, new || moved || doubted);
        lines
    }

    /// Children of forks that no engine saw.
    fn find_copies(&mut self, ledger: &Ledger, known: &Known) -> Vec<String> {
        let all = [&known.connected, &known.early, &known.announced];
        let all = all.into_iter().flatten();
        let all: HashSet<i32> = all.map(|&pid| self.family.stands_for(pid)).collect();
        // Counts all slots: only for a process with such a child.
        let swapped = |pid: i32| {
            let mut records = ledger.records_in_use();
            let record = records.find(|&record| ledger.pid(record).cast_signed() == pid);
            let record = record.filter(|_| !known.serves_guests.contains(&pid));
            let slots = |record| {
                ledger
                    .areas()
                    .map(move |area| ledger.slots_held_count(record, area))
            };
            record.map_or(0, |record| slots(record).sum::<u64>() * PAGE_BYTES)
        };
        self.copies.look(&self.family, &all, swapped)
    }

    /// The figures for `foreswap ps`.
    pub fn now(&self) -> Now {
        let mut each: Vec<(i32, Unmanaged)> = self
            .seen
            .iter()
            .filter(|(_, seen)| seen.now.total > 0)
            .map(|(&pid, seen)| (pid, seen.now))
            .collect();
        each.sort_unstable_by_key(|(pid, _)| *pid);
        Now {
            sum: self.now,
            each,
        }
    }

    /// The process that represents the memory of this one, see [`Family`].
    pub fn stands_for(&self, pid: i32) -> i32 {
        self.family.stands_for(pid)
    }

    /// Sends a signal to every process of the run, including those created since the last look.
    pub fn signal(&mut self, signal: Signal) {
        self.family.find_children();
        self.family.signal(signal);
    }

    /// Whether a process of the run is left.
    pub fn anybody_lives(&mut self) -> bool {
        self.family.find_children();
        self.family.living() > 0
    }

    /// As [`Watch::anybody_lives`], once `command` has ended: also a process whose parent was never looked at.
    pub fn has_survivors(&mut self, command: i32) -> bool {
        if !self.family.is_readable() || !self.family.has_grown_since(command) {
            return false;
        }
        self.family.find_children();
        self.family.find_strays();
        self.family.living() > 0
    }

    /// The number of known processes that live, see [`Family::living`].
    pub fn living(&self) -> usize {
        self.family.living()
    }

    fn find(&mut self, connected: &[i32]) -> bool {
        let mut new = false;
        if self.pace.may_find(Instant::now()) {
            let cpu = cpu_time();
            new = self.family.find_children();
            for &pid in connected {
                new |= self.family.add(pid);
            }
            let spent = cpu_time().saturating_sub(cpu);
            self.pace.found(Instant::now(), spent);
        }
        if self.family.may_miss && self.pace.may_search(Instant::now()) {
            let cpu = cpu_time();
            self.family.find_strays();
            self.pace
                .searched(Instant::now(), cpu_time().saturating_sub(cpu));
        }
        new
    }

    /// The engines' figures, by the pid that represents their process.
    fn charged(&self, ledger: &Ledger, early: &[i32]) -> HashMap<i32, Charged> {
        let mut charged: HashMap<i32, Charged> = HashMap::new();
        let areas = ledger.areas().filter_map(|area| ledger.ram_usage(area));
        let records = ledger.records_in_use().count() as u64 * PAGE_BYTES;
        let tables = SMALL + records + areas.map(|usage| usage.held).sum::<u64>();
        for record in ledger.records_in_use() {
            let pid = self.family.stands_for(ledger.pid(record).cast_signed());
            let stats = ledger.stats(record);
            let channels = stats.channel_bytes.load(Relaxed);
            let engine = stats.engine_bytes.load(Relaxed).saturating_sub(channels);
            let of = charged.entry(pid).or_default();
            let pages = ledger.process_charged(record) + ledger.owed(record);
            of.managed += pages * PAGE_BYTES;
            of.engine += engine;
            of.live |= ledger.state(record) == ProcessState::Live;
            of.channels += channels;
            of.tables = if of.live { tables } else { 0 };
        }
        for &pid in early {
            let of = charged.entry(self.family.stands_for(pid)).or_default();
            (of.managed, of.live) = (EVERYTHING, true);
        }
        charged
    }

    /// Reads the quick figures of all processes. True if they have changed.
    fn read_quick(&mut self, limit: u64) -> bool {
        let mut silent = Vec::new();
        let mut dead = Vec::new();
        let mut threads = Vec::new();
        let mut moved = 0;
        for (pid, member) in self.family.members() {
            let Some(quick) = member.quick() else {
                dead.push(pid);
                continue;
            };
            if member.shares_with.is_some() {
                self.seen.remove(&pid);
                continue;
            }
            if quick.resident == 0 {
                silent.push(pid);
            }
            let seen = self.seen.entry(pid).or_default();
            seen.age += 1;
            if quick == seen.quick && seen.age < pace::STATUS_LOOKS {
                continue;
            }
            let before = seen.resident();
            seen.quick = quick;
            seen.age = 0;
            // Just ended: the next look finds that.
            seen.status = member.status().unwrap_or_default();
            threads.push((pid, seen.status.threads));
            moved += seen.resident().abs_diff(before);
            self.most_resident = self.most_resident.max(quick.resident);
        }
        for (pid, threads) in threads {
            self.family.has_threads(pid, threads);
        }
        for pid in silent {
            self.family.look_behind(pid);
        }
        self.family.drop_dead(&dead);
        let family = &self.family;
        self.seen.retain(|&pid, _| family.member(pid).is_some());
        self.told
            .retain(|(pid, _), _| family.member(*pid).is_some());
        moved > SMALL.min(limit / 64)
    }

    /// Reads the mappings of processes that may hold much, if that has changed since. Returns these processes.
    fn read_mappings(&mut self, limit: u64, charged: &HashMap<i32, Charged>) -> Close {
        let none = Charged::default();
        let of = |pid: i32| charged.get(&pid).unwrap_or(&none);
        let mut bounds: Vec<(i32, u64, u64)> = self
            .seen
            .iter()
            .map(|(&pid, seen)| {
                let (least, most) = seen.bounds(of(pid));
                (pid, least.total, most)
            })
            .collect();
        let least: u64 = bounds.iter().map(|(_, least, _)| least).sum();
        let most: u64 = bounds.iter().map(|(.., most)| most).sum();
        let close = Close::of(limit, bounds.iter().map(|(_, least, _)| *least));
        // More is resident than managed memory can be.
        let much = most > limit + limit / 8;
        for (_, least, most) in &mut bounds {
            *least = if much { *most } else { *least };
        }
        // The largest first, while there is time.
        bounds.sort_unstable_by_key(|(_, wanted, _)| std::cmp::Reverse(*wanted));
        // The finding of the last look has to be confirmed.
        let is_doubted = self.alarmed && !self.passed;
        let urgent = is_doubted || least > limit && !self.passed;
        let mut is_shared = false;
        for &(pid, wanted, _) in &bounds {
            let Some(seen) = self.seen.get_mut(&pid) else {
                continue;
            };
            let has_moved = is_doubted || seen.has_moved(SMALL.max(limit / 16));
            if wanted < close.from {
                let stays = seen.resident() >= close.from;
                seen.mappings = seen.mappings.take().filter(|_| stays);
            } else if has_moved || seen.may_have_parted() {
                let in_common = self.map(pid, of(pid), urgent);
                is_shared |= has_moved && in_common;
            }
        }
        // A process that shares pages with a new one now has a smaller part of them.
        if !is_shared {
            return close;
        }
        for mapped in self.seen.values_mut().flat_map(|seen| &mut seen.mappings) {
            mapped.is_stale |= mapped.look != self.looks;
        }
        for (pid, ..) in bounds {
            let mapped = self.seen.get(&pid).and_then(|seen| seen.mappings.as_ref());
            if mapped.is_some_and(|mapped| mapped.is_stale) {
                self.map(pid, of(pid), urgent);
            }
        }
        close
    }

    /// Reads the mappings of a process, if there is time. True if it shares a good part of its pages.
    fn map(&mut self, pid: i32, charged: &Charged, urgent: bool) -> bool {
        let (Some(seen), Some(member)) = (self.seen.get_mut(&pid), self.family.member(pid)) else {
            return false;
        };
        let resident = seen.resident();
        let may = self.pace.may_map(resident) || urgent && self.pace.may_map_urgently(resident);
        if !may {
            return false;
        }
        let cpu = cpu_time();
        let text = match member.text("smaps") {
            Ok(text) => text,
            Err(error) => {
                seen.is_closed = error.kind() == std::io::ErrorKind::PermissionDenied;
                return false;
            }
        };
        let devices = &mut self.devices;
        let is_memory = |device| {
            *devices.entry(device).or_insert_with(|| {
                let mounts = member.text("mountinfo").unwrap_or_default();
                let found = smaps::memory_devices(&mounts);
                found.get(&device).copied().unwrap_or(false)
            })
        };
        let mappings = smaps::mappings(&text, is_memory);
        self.pace.mapped(resident, cpu_time().saturating_sub(cpu));
        seen.mappings = Some(Mapped::new(mappings, self.looks, seen, charged));
        mappings.is_in_common()
    }

    fn sum_up(&mut self, limit: u64, close: Close, charged: &HashMap<i32, Charged>) {
        let none = Charged::default();
        let mut stale = Unmanaged::default();
        self.now = Unmanaged::default();
        for (pid, seen) in &mut self.seen {
            let charged = charged.get(pid).unwrap_or(&none);
            let (least, _) = seen.bounds(charged);
            seen.now = match &seen.mappings {
                Some(mapped) => seen.brought_forward(mapped, charged),
                // Without time for a close look, a process that alone exceeds the limit still counts: that much is
                // certain.
                None if least.total < close.from || least.total > limit || seen.is_closed => least,
                // Unknown so far: pages that a fork has left in both processes would count twice.
                None => Unmanaged::default(),
            };
            if seen.mappings.as_ref().is_some_and(|mapped| mapped.is_stale) {
                stale.keep_peak(&seen.now);
            } else {
                self.now.add(&seen.now);
            }
        }
        // Of processes that may share pages: at least as much as the largest of them has.
        for kind in Kind::ALL {
            let more = stale.of(kind).saturating_sub(self.now.of(kind));
            self.now.count(kind, more);
        }
        self.peak.keep_peak(&self.now);
    }

    /// Returns the reports, once seen twice: a process that was just forked or executed may show another's memory.
    fn judge(&mut self, limit: u64, charged: &HashMap<i32, Charged>) -> Vec<String> {
        let before = std::mem::replace(&mut self.alarmed, self.now.total > limit);
        if !self.alarmed || !before {
            return Vec::new();
        }
        self.passed = true;
        let mut holders: Vec<(u64, i32, Kind)> = Vec::new();
        for (&pid, seen) in &self.seen {
            holders.extend(Kind::ALL.map(|kind| (seen.now.of(kind), pid, kind)));
        }
        holders.sort_unstable_by_key(|(bytes, ..)| std::cmp::Reverse(*bytes));
        let mut lines = Vec::new();
        for (number, (bytes, pid, kind)) in holders.into_iter().enumerate() {
            let is_part = number == 0 || bytes >= self.now.total / 4;
            let told = self.told.get(&(pid, kind)).copied().unwrap_or(0);
            if !is_part || bytes < 2 * told || bytes == 0 {
                continue;
            }
            let (Some(seen), Some(member)) = (self.seen.get(&pid), self.family.member(pid)) else {
                continue;
            };
            self.told.insert((pid, kind), bytes);
            let managed = charged.get(&pid).is_some_and(|charged| charged.live);
            let holder = Holder {
                pid,
                name: &seen.status.name,
                kind,
                bytes,
                why: (!managed).then(|| words::why_unmanaged(member, &self.family)),
            };
            lines.push(words::line(&holder, self.now.total, limit));
        }
        lines
    }
}

/// CPU time of this process.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(
        time.tv_sec.try_into().unwrap_or(0),
        time.tv_nsec.try_into().unwrap_or(0),
    )
}
