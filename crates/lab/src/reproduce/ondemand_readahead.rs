//! Seed 004: on-demand file readahead, with iozone, aio-stress, sysbench and many streams in little memory.

use foreswap_core::readahead::file::Limits;
use foreswap_core::units::{Nanos, PAGE_SIZE};

use super::experiment::Figures;
use crate::sim::file_machine::{FileMachine, FileSetup, FileWork};
use crate::sim::machine::{Setup, SimError};
use crate::sim::page_cache::FileId;
use crate::sim::parameters::Parameters;
use crate::sim::rng::Rng;
use crate::work::files::aio::Aio;
use crate::work::files::fileio::{FILES, FileIo};
use crate::work::files::iozone::Iozone;
use crate::work::files::oltp::{BLOCK, Oltp, THREADS_INSIDE};
use crate::work::files::streams::Streams;
use crate::work::pages;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const SECOND: Nanos = 1_000_000_000;

/// "1MB max readahead size"; larger requests are not enlarged.
const LIMITS: Limits = Limits {
    max: MIB / PAGE_SIZE as u64,
    device: MIB / PAGE_SIZE as u64,
};

/// "iozone -c -t1 -s 4096m -r 64k", two runs.
const IOZONE: (u64, u64) = (4 * GIB, 64 * KIB);
/// "aio-stress -l -s4096 -r128": a file of 4 GiB in records of 128 KiB.
const AIO: (u64, u64) = (4 * GIB, 128 * KIB);
/// "--file-total-size=4G --file-block-size=64K --max-requests=10000".
const FILE_IO: (u64, u64, u64) = (4 * GIB, 64 * KIB, 10_000);
/// Threads of the two runs.
const FILE_IO_THREADS: [&[usize]; 2] = [&[1, 2, 4, 8, 16, 32, 64, 128, 256], &[1, 8, 64, 256]];
/// "--oltp-table-size=10000000".
const ROWS: u64 = 10_000_000;
/// Transactions and threads of each run.
const OLTP: [(u64, &[usize]); 3] = [
    (10_000, &[1, 2, 4, 8, 16, 32, 64]),
    (5_000, &[1, 8, 64]),
    (2_000, &[1, 2, 4, 8, 16, 32, 64]),
];
/// "mem=128m single": the memory left by the kernel and a single user's shell.
const LITTLE: u64 = 112 * MIB;
/// "a 100KB/s stream on every second, until reaching 200 streams". Assumed: a program that reads 4 KB at a time.
const STREAMS: u64 = 200;
const INTERVAL: Nanos = SECOND * 4 / 100;
/// The time of observation after the start of the last stream, and the period, in seconds.
const AFTER: u64 = 60;
const PERIOD: u64 = 10;

fn machine<W: FileWork>(
    machine: &Parameters,
    setup: &Setup,
    (files, tasks): (Vec<u64>, usize),
    work: W,
) -> FileMachine<W> {
    let setup = FileSetup {
        policy: setup.file_readahead,
        state: setup.file_state,
        limits: LIMITS,
        files,
        tasks,
        gate: THREADS_INSIDE,
    };
    FileMachine::new(machine, setup, work)
}

/// Runs it to its end; returns the seconds on the full machine.
fn seconds<W: FileWork>(sim: &mut FileMachine<W>, scale: u64) -> Result<f64, SimError> {
    sim.run(FileMachine::is_done)?;
    Ok(sim.now() as f64 * scale as f64 / SECOND as f64)
}

/// Throughput of each test of iozone.
pub fn iozone(parameters: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let (bytes, record) = IOZONE;
    let records = (bytes / parameters.scale / record).max(1);
    let mut figures = Figures::new();
    for (n, run) in (0..).zip(["first", "second"]) {
        let work = Iozone::new(FileId(0), record, records, seed << 8 | n);
        let mut sim = machine(parameters, setup, (vec![pages(records * record)], 1), work);
        sim.run(FileMachine::is_done)?;
        for &(test, took) in &sim.work.took {
            let rate = (records * record / KIB) as f64 * SECOND as f64 / took.max(1) as f64;
            figures.insert(format!("{run}_{test}"), rate);
        }
    }
    for test in [
        "read",
        "re_read",
        "reverse_read",
        "stride_read",
        "random_read",
    ]
    .into_iter()
    .chain(["mixed_workload", "pread"])
    {
        let of = |run: &str| figures.get(&format!("{run}_{test}")).copied();
        if let Some((first, second)) = of("first").zip(of("second")) {
            figures.insert(format!("mean_{test}"), (first + second) / 2.0);
        }
    }
    Ok(figures)
}

/// The times of aio-stress, each from an empty cache.
pub fn aio_stress(parameters: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let (bytes, record) = AIO;
    let bytes = (bytes / parameters.scale).max(record);
    let mut figures = Figures::new();
    for (name, random) in [("sequential", None), ("random", Some(Rng::new(seed)))] {
        let work = Aio::new(FileId(0), bytes, record, random);
        let mut sim = machine(parameters, setup, (vec![pages(bytes)], 1), work);
        figures.insert(name.into(), seconds(&mut sim, parameters.scale)?);
    }
    Ok(figures)
}

/// The times of sysbench's fileio, each from an empty cache.
pub fn fileio(parameters: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let (bytes, block, requests) = FILE_IO;
    let file = (bytes / FILES / parameters.scale).max(block);
    let requests = requests.div_ceil(parameters.scale);
    let mut figures = Figures::new();
    let mut sum = 0.0;
    for (n, (run, threads)) in (0..).zip(["first", "second"].into_iter().zip(FILE_IO_THREADS)) {
        for &threads in threads {
            let rng = Rng::new(seed << 16 | (threads as u64) << 1 | n);
            let work = FileIo::new(file, block, requests, rng);
            let files = vec![pages(file); FILES as usize];
            let mut sim = machine(parameters, setup, (files, threads), work);
            let took = seconds(&mut sim, parameters.scale)?;
            figures.insert(format!("{run}_{threads}"), took);
            sum += took;
        }
    }
    figures.insert("sum".into(), sum);
    Ok(figures)
}

/// Transactions a second of sysbench's OLTP, each run from an empty cache.
pub fn oltp(parameters: &Parameters, setup: &Setup, seed: u64) -> Result<Figures, SimError> {
    let rows = ROWS / parameters.scale;
    let file = pages(Oltp::blocks(rows) * BLOCK);
    let mut figures = Figures::new();
    for (transactions, threads) in OLTP {
        for &threads in threads {
            let count = transactions.div_ceil(parameters.scale);
            let seed = seed << 24 | transactions << 8 | threads as u64;
            let work = Oltp::new(rows, threads, count, seed);
            let mut sim = machine(parameters, setup, (vec![file], threads), work);
            sim.run(FileMachine::is_done)?;
            let rate = count as f64 * SECOND as f64 / sim.now() as f64;
            figures.insert(format!("{transactions}_{threads}"), rate);
        }
    }
    Ok(figures)
}

/// Streams in little memory: their maximum total rate, and the smallest request size of the disk.
pub fn thrashing(parameters: &Parameters, setup: &Setup, _: u64) -> Result<Figures, SimError> {
    let scale = parameters.scale;
    let streams = STREAMS.div_ceil(scale);
    let little = Parameters {
        memory: LITTLE / scale,
        ..parameters.clone()
    };
    // The first one lasts as long.
    let end = STREAMS + AFTER;
    let file = end * SECOND / INTERVAL + LIMITS.max;
    let files = vec![file; streams as usize];
    let work = Streams::new(streams, SECOND * STREAMS / streams, INTERVAL);
    let mut sim = machine(&little, setup, (files, streams as usize), work);
    let (mut most, mut least) = (0.0f64, f64::INFINITY);
    let mut before = (0, (0, 0));
    for period in 1..=end / PERIOD {
        sim.run(|sim| sim.now() >= period * PERIOD * SECOND)?;
        let (used, (requests, read)) = (sim.work.pages, sim.reads());
        let bytes = (used - before.0) as f64 * PAGE_SIZE as f64;
        most = most.max(bytes / PERIOD as f64 / 1e6);
        // A stream begins with small windows: count only once it is one of many.
        if period * PERIOD > STREAMS / 2 && requests > before.1.0 {
            let pages = (read - before.1.1) as f64 / (requests - before.1.0) as f64;
            least = least.min(pages * PAGE_SIZE as f64 / KIB as f64);
        }
        before = (used, (requests, read));
    }
    Ok(Figures::from([
        ("throughput".into(), most * scale as f64),
        ("request".into(), least),
    ]))
}
