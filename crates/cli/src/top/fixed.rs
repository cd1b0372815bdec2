//! A state for tests, always the same: one run with two processes, looked at twice.

use std::time::Duration;

use super::heat::Place;
use super::state::State;
use crate::control::words::{Area, Process, Run, Totals};
use crate::unmanaged::Unmanaged;

fn process(pid: i32, command: &str, mebibytes: u64) -> Process {
    Process {
        pid,
        command: command.into(),
        managed_bytes: 200 << 20,
        resident_bytes: mebibytes << 20,
        file_bytes: 0,
        file_resident_bytes: 0,
        swap_bytes: 140 << 20,
        readahead_hit_ratio: Some(0.9),
        faults_major: 100,
        swap_in_bytes: 0,
        swap_out_bytes: 0,
        stalled_ns: 0,
        unmanaged_bytes: Unmanaged::default(),
        waits_for_memory: pid == 102,
    }
}

/// The run at its first look.
pub fn run() -> Run {
    Run {
        supervisor: 100,
        command_pid: Some(101),
        command: "/usr/bin/python3 job.py".into(),
        group: None,
        limit_bytes: 64 << 20,
        auto: None,
        resident_bytes: 61 << 20,
        unmanaged_bytes: Unmanaged {
            total: 3 << 20,
            files: 3 << 20,
            ..Unmanaged::default()
        },
        processes: vec![
            process(101, "/usr/bin/python3 job.py", 50),
            process(102, "worker", 11),
        ],
        others: Vec::new(),
        areas: vec![Area {
            number: 0,
            path: "/tmp".into(),
            bytes: 1 << 30,
            used_bytes: 280 << 20,
            memory: None,
            priority: -1,
            state: "draining".into(),
            encrypted: false,
        }],
        totals: Some(Totals::default()),
        mappings: Vec::new(),
    }
}

/// Half of the memory in memory, and a scan at the end of it; a mapping that is swapped out, and one that nobody touched.
fn places() -> Vec<Place> {
    (0..40)
        .map(|at| Place {
            resident: match at {
                0..10 => 0.2 + f64::from(at) * 0.09,
                10..20 => 1.0,
                _ => 0.0,
            },
            came: match at {
                16..18 => 0.1,
                18..20 => 0.9,
                _ => 0.0,
            },
            is_swapped: at < 30,
        })
        .collect()
}

/// Two looks, two seconds apart.
pub fn state() -> State {
    let mut state = State::default();
    state.on_look(Duration::from_secs(1), vec![run()], places());
    let mut later = run();
    later.totals = Some(Totals {
        faults_major: 2_000,
        faults_minor: 50_000,
        faults_zero: 20,
        faults_timed: 1_000,
        fault_ns_sum: 84_000_000,
        swap_in_bytes: 240 << 20,
        swap_out_bytes: 2 << 20,
        readahead_pages: 1000,
        readahead_hits: 980,
        stalled_ns: 250_000_000,
        ..Totals::default()
    });
    later.processes[0].faults_major += 2_000;
    later.processes[0].swap_in_bytes += 240 << 20;
    later.processes[0].stalled_ns += 250_000_000;
    state.on_look(Duration::from_secs(3), vec![later], places());
    state
}
