//! The state of a run for `foreswap ps`: its processes and areas, read from the ledger.

use std::cell::RefCell;
use std::sync::atomic::Ordering::Relaxed;

use foreswap::ledger::{AREA_SEALED, AreaState, Ledger, ProcId, ProcessState, StatsSnapshot};
use foreswap_store::area::PAGE_BYTES;
use rustix::process::Pid;

use super::words::{Area, Mapping, Memory, Other, Process, Run, Totals};
use crate::auto_memory::Auto;
use crate::turns;
use crate::unmanaged::{Now, Watch};

/// The most characters of a command line.
const COMMAND: usize = 4096;
/// The least memory of a process without an engine for it to be listed.
const WORTH: u64 = 1 << 20;

/// The command line of a process; empty for one that has ended or is in the middle of `exec`.
fn line_of(pid: u32) -> String {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = line
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    words.join(" ").chars().take(COMMAND).collect()
}

/// The command line of a process, or its name if it has none.
pub fn command_of(pid: u32) -> String {
    let line = line_of(pid);
    if !line.is_empty() {
        return line;
    }
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
    name.unwrap_or_default().trim_end().to_owned()
}

/// The command of a run. Its line is read at each look, as a command becomes another by `exec`, and the last one is kept:
/// an ended process has none, and the run is still known by it.
#[derive(Debug, Default)]
pub struct RunCommand {
    /// While it runs.
    pid: Option<Pid>,
    line: RefCell<String>,
}

impl RunCommand {
    /// It runs as `pid`.
    pub fn has_begun(&mut self, pid: Pid) {
        self.pid = Some(pid);
    }

    /// It has ended, and its pid may become that of another process.
    pub fn has_ended(&mut self) {
        self.pid = None;
    }

    /// Its line as of now, or the last one that it had.
    fn look(&self) -> String {
        let line = self
            .pid
            .map(|pid| line_of(pid.as_raw_nonzero().get().cast_unsigned()));
        if let Some(line) = line.filter(|line| !line.is_empty()) {
            *self.line.borrow_mut() = line;
        }
        self.line.borrow().clone()
    }
}

fn process(ledger: &Ledger, record: ProcId, watch: &Watch, now: &Now) -> Process {
    let (pid, stats) = (ledger.pid(record), ledger.stats(record));
    let program = watch.stands_for(pid.cast_signed());
    let unmanaged = now.each.iter().find(|(other, _)| *other == program);
    let read = stats.readahead_pages.load(Relaxed);
    let hits = stats.readahead_hits.load(Relaxed);
    let slots = ledger
        .areas()
        .map(|area| ledger.slots_held_count(record, area));
    Process {
        pid: pid.cast_signed(),
        command: command_of(pid),
        managed_bytes: stats.managed_bytes.load(Relaxed),
        resident_bytes: ledger.process_charged(record) * PAGE_BYTES,
        file_bytes: stats.file_bytes.load(Relaxed),
        file_resident_bytes: stats.file_resident_bytes.load(Relaxed),
        swap_bytes: slots.sum::<u64>() * PAGE_BYTES,
        readahead_hit_ratio: (read > 0).then(|| hits as f64 / read as f64),
        faults_major: stats.faults_major.load(Relaxed),
        swap_in_bytes: stats.swap_in_bytes.load(Relaxed),
        swap_out_bytes: stats.swap_out_bytes.load(Relaxed),
        stalled_ns: stats.stalled_ns.load(Relaxed),
        unmanaged_bytes: unmanaged.map(|(_, bytes)| *bytes).unwrap_or_default(),
        waits_for_memory: turns::waits(ledger, record),
    }
}

/// The swap areas of a run, in the order in which they are filled.
pub fn areas(ledger: &Ledger) -> Vec<Area> {
    let known = ledger.areas().filter_map(|area| {
        let info = ledger.area_info(area)?;
        let state = match ledger.area_state(area) {
            AreaState::Draining => "draining",
            AreaState::Joining => "joining",
            AreaState::Usable | AreaState::Absent => "usable",
        };
        Some(Area {
            number: area.0,
            path: info.name,
            bytes: u64::from(info.slots) * PAGE_BYTES,
            used_bytes: ledger.area_used(area) * PAGE_BYTES,
            memory: ledger.ram_usage(area).map(|usage| Memory {
                capacity_bytes: usage.capacity,
                held_bytes: usage.held,
                live_bytes: usage.live,
            }),
            priority: info.priority,
            state: state.to_owned(),
            encrypted: info.flags & AREA_SEALED != 0,
        })
    });
    let mut areas: Vec<Area> = known.collect();
    areas.sort_by_key(|area| (std::cmp::Reverse(area.priority), area.number));
    areas
}

/// The mappings of the process `pid`, by address; none if it is not managed.
pub fn mappings(ledger: &Ledger, pid: i32) -> Vec<Mapping> {
    let is_it = |record: &ProcId| {
        ledger.state(*record) == ProcessState::Live && ledger.pid(*record).cast_signed() == pid
    };
    let record = ledger.records_in_use().find(is_it);
    let vmas = record.map_or_else(Vec::new, |record| ledger.stats(record).snapshot().vmas);
    let mut mappings: Vec<Mapping> = vmas
        .iter()
        .map(|vma| Mapping {
            start: vma.start,
            bytes: vma.bytes,
            resident_bytes: vma.resident_bytes,
            swapped_bytes: vma.swapped_bytes,
        })
        .collect();
    mappings.sort_by_key(|mapping| mapping.start);
    mappings
}

/// The data of `foreswap ps` for a run; `stats` is the sum over all its processes so far.
pub fn run(
    ledger: &Ledger,
    stats: &StatsSnapshot,
    command: &RunCommand,
    watch: &Watch,
    auto: Option<Auto>,
) -> Run {
    let now = watch.now();
    let live = |record: &ProcId| ledger.state(*record) == ProcessState::Live;
    let records = ledger.records_in_use().filter(live);
    let processes: Vec<Process> = records
        .map(|record| process(ledger, record, watch, &now))
        .collect();
    let managed = |pid: i32| {
        let mut pids = processes.iter().map(|process| process.pid);
        pids.any(|other| watch.stands_for(other) == pid)
    };
    let others = now.each.iter();
    let others = others.filter(|(pid, bytes)| bytes.total >= WORTH && !managed(*pid));
    let others = others.map(|&(pid, unmanaged_bytes)| Other {
        pid,
        command: command_of(pid.cast_unsigned()),
        unmanaged_bytes,
    });
    let others = others.collect();
    Run {
        supervisor: std::process::id().cast_signed(),
        command: command.look(),
        command_pid: command.pid.map(|pid| pid.as_raw_nonzero().get()),
        group: None,
        limit_bytes: ledger.limit_pages() * PAGE_BYTES,
        auto,
        resident_bytes: ledger.charged_pages() * PAGE_BYTES,
        unmanaged_bytes: now.sum,
        processes,
        others,
        areas: areas(ledger),
        totals: Some(Totals {
            swap_in_bytes: stats.swap_in_bytes,
            file_in_bytes: stats.file_in_bytes,
            file_dropped_bytes: stats.file_dropped_bytes,
            file_readahead_pages: stats.file_readahead_pages,
            file_readahead_hits: stats.file_readahead_hits,
            swap_out_bytes: stats.swap_out_bytes,
            faults_major: stats.faults_major,
            faults_minor: stats.faults_minor,
            faults_zero: stats.faults_zero,
            faults_timed: stats.latency.iter().sum(),
            fault_ns_sum: stats.fault_ns_sum(),
            readahead_pages: stats.readahead_pages,
            readahead_hits: stats.readahead_hits,
            stalled_ns: stats.stalled_ns,
            huge_splits: stats.huge_splits,
        }),
        mappings: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_command_is_known_by_its_last_line() {
        let mut sleeper = std::process::Command::new("sh")
            .args(["-c", "read line; exec sleep 100"])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("sh starts");
        let pid = Pid::from_child(&sleeper);
        let mut command = RunCommand::default();
        command.has_begun(pid);
        let becomes = |line: &str| {
            let until = Instant::now() + Duration::from_secs(10);
            while Instant::now() < until && command.look() != line {
                std::thread::yield_now();
            }
            command.look()
        };
        let first = becomes("sh -c read line; exec sleep 100");
        drop(sleeper.stdin.take());
        let second = becomes("sleep 100");
        sleeper.kill().expect("it is there");
        sleeper.wait().expect("it ends");
        assert_eq!(
            [&*first, &*second],
            ["sh -c read line; exec sleep 100", "sleep 100"]
        );
        // Between its end and the news of it.
        assert_eq!(command.look(), "sleep 100");
        command.has_ended();
        assert_eq!(command.look(), "sleep 100");
    }
}
