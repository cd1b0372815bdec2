//! Reads through a foreswap cache against `pread` through the kernel's, from the disk and from slow stores.
//!
//! The kernel's best `read_ahead_kb` is looked for: each pattern is read with several, and the fastest median counts. On
//! slow stores foreswap is compared with their bandwidth, and only mapped files with the kernel (`mapped`).
//! Each row of a slow store reads as many bytes, so that it shows the store's rate and not the first latencies alone.

mod mapped;
mod targets;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, ensure};
use foreswap_files::store::Slowness;
use serde_json::json;

use super::new_report;
use crate::args::BenchArgs;
use crate::disk::{DEPTHS, Disk};
use crate::files::{Made, Pattern, Reader, Run, Work, slow_file, warm_cache};
use crate::peer::{Figures, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Unit};
use crate::size::humane;
use crate::system::Changes;

const TURNS: u32 = 3;
/// Four times the default limit.
const BYTES: u64 = 1 << 30;
/// The most small reads of a store: pread takes 80 us for one where nothing is read ahead.
const SMALL_READS: u64 = 20_000;
/// Reads of memory.
const CACHED: u64 = 400_000;
/// Values of `read_ahead_kb` that are tried beside the system's.
const READ_AHEAD_KB: [u64; 3] = [128, 1024, 8192];
type Slow = (u64, u64);
/// The slow stores: latency in milliseconds, and MB per second.
const SLOW: [Slow; 3] = [(1, 1000), (20, 1000), (20, 100)];

const OURS: &str = "foreswap";
const PREFETCH: &str = "prefetch first";
const DEVICE: &str = "device, direct I/O";
/// The store on which a file larger than the cache is read twice.
const TWICE_ON: Slow = (20, 1000);

/// The rows, in the order of their first turns.
#[derive(Default)]
struct Rows {
    order: Vec<String>,
    turns: BTreeMap<String, Vec<Figures>>,
}

fn row(pattern: &str, of: &str) -> String {
    format!("{pattern}: {of}")
}

fn pread(kib: u64) -> String {
    format!("pread, {kib} KiB")
}

impl Rows {
    fn add(&mut self, name: String, figures: Figures) {
        if !self.turns.contains_key(&name) {
            self.order.push(name.clone());
        }
        self.turns.entry(name).or_default().push(figures);
    }

    fn add_run(&mut self, name: String, run: Run) {
        let (seconds, reads) = (run.time.as_secs_f64(), run.reads as f64);
        let figures = [
            ("bytes_per_s", run.bytes as f64 / seconds),
            ("ns_per_read", seconds * 1e9 / reads),
        ];
        self.add(
            name,
            figures.map(|(name, value)| (name.to_owned(), value)).into(),
        );
    }

    fn reports(mut self) -> Vec<PeerReport> {
        let report = |row: String| {
            let turns = self.turns.remove(&row).unwrap_or_default();
            PeerReport::new(row, turns, Vec::new())
        };
        self.order.into_iter().map(report).collect()
    }
}

/// The device's `read_ahead_kb`, changed by root only.
struct ReadAhead {
    path: PathBuf,
    default: u64,
    changes: Option<Changes>,
}

impl ReadAhead {
    fn of(session: &Session, notes: &mut Vec<String>) -> anyhow::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let device = fs::metadata(&session.directory)?.dev();
        let bdi = format!(
            "/sys/class/bdi/{}:{}/read_ahead_kb",
            libc::major(device),
            libc::minor(device)
        );
        let text = fs::read_to_string(&bdi)
            .with_context(|| format!("no {bdi}: name a directory on a disk (--dir)"))?;
        let changes = Changes::begin();
        if let Err(error) = &changes {
            notes.push(format!(
                "pread only with the system's read_ahead_kb: {error}"
            ));
        }
        Ok(Self {
            path: PathBuf::from(&bdi),
            default: text
                .trim()
                .parse()
                .with_context(|| format!("{bdi} contains {text:?}"))?,
            changes: changes.ok(),
        })
    }

    /// The values to try, the system's first.
    fn values(&self) -> Vec<u64> {
        let others = READ_AHEAD_KB.into_iter().filter(|kib| *kib != self.default);
        let others = others.filter(|_| self.changes.is_some());
        std::iter::once(self.default).chain(others).collect()
    }

    /// Files that are opened from now on are read ahead so far.
    fn set(&mut self, kib: u64) -> anyhow::Result<()> {
        if let Some(changes) = &mut self.changes {
            changes.undo_to(0);
            if kib != self.default {
                changes.set(&self.path, &kib.to_string())?;
            }
        }
        Ok(())
    }
}

struct Bench<'a> {
    session: &'a Session,
    made: Made,
    ahead: ReadAhead,
    bytes: u64,
    seed: u64,
    /// Rows are run whose names contain one of these; all, if there are none.
    wanted: Vec<String>,
    rows: Rows,
    notes: Vec<String>,
    progress: Progress,
}

/// All patterns, in turns.
pub fn run(args: &BenchArgs, session: &Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total).unwrap_or(BYTES);
    ensure!(
        bytes >= 4 * session.limit && session.limit >= 16 << 20 && bytes.is_multiple_of(4 << 20),
        "a file of {bytes} bytes (--total) for a cache of {} (--memory): it should be a multiple of 4M, four times the \
         cache at least, which needs 16M",
        session.limit
    );
    let mut notes = Vec::new();
    let ahead = ReadAhead::of(session, &mut notes)?;
    let progress = Progress::over(u64::from(turns));
    progress.say("making a file");
    let mut bench = Bench {
        session,
        made: Made::new(&session.directory, bytes)?,
        ahead,
        bytes,
        seed: args.usemem.seed,
        wanted: args.rows.clone().unwrap_or_default(),
        rows: Rows::default(),
        notes,
        progress,
    };
    let mut disk = Disk::make(&session.directory, bytes, session.limit)?;
    for _ in 0..turns {
        bench.cached()?;
        for depth in DEPTHS {
            if !bench.wants(&row(DEVICE, &format!("{depth} at once"))) {
                continue;
            }
            let figures = Figures::from([("bytes_per_s".to_owned(), disk.read_bandwidth(depth)?)]);
            bench
                .rows
                .add(row(DEVICE, &format!("{depth} at once")), figures);
        }
        for pattern in Pattern::ALL {
            bench.cold(pattern)?;
        }
        bench.slow()?;
        bench.mapped()?;
        bench.seed += 1;
        bench.progress.step();
    }
    let values = bench.ahead.values();
    let title = format!(
        "a file of {}, a cache of {}, medians of {turns} turns",
        humane(bytes),
        humane(session.limit)
    );
    let parameters =
        json!({ "bytes": bytes, "memory": session.limit, "turns": turns, "read_ahead_kb": values });
    let mut report = new_report("files", title, session, parameters);
    report.notes.extend(bench.notes);
    report.peers = bench.rows.reports();
    report.show(vec![
        Column::spread("MiB/s", "bytes_per_s", Unit::Mebibytes),
        Column::median("us/read", "ns_per_read", Unit::Microseconds),
        Column::median("hot absent", mapped::ABSENT, Unit::Ratio),
    ]);
    ensure!(
        !report.peers.is_empty(),
        "--rows {}: no row has a name that contains it; the names are those of a report without --rows",
        asked_rows(args)
    );
    targets::judge(&mut report, &values, args.rows.is_some());
    Ok(report)
}

fn asked_rows(args: &BenchArgs) -> String {
    args.rows
        .as_ref()
        .map_or_else(String::new, |rows| rows.join(","))
}

impl Bench<'_> {
    fn wants(&self, row: &str) -> bool {
        self.wanted.is_empty() || self.wanted.iter().any(|part| row.contains(part))
    }

    fn work(&self, pattern: Pattern, bytes: u64, most: u64) -> Work {
        let reads = pattern.reads(bytes, most);
        let is_small = pattern.read_bytes() < 1 << 16;
        Work {
            pattern,
            bytes,
            reads: if is_small { reads.min(most) } else { reads },
            seed: self.seed,
        }
    }

    /// 4 KiB reads of a file that is in memory, half as large as the cache.
    fn cached(&mut self) -> anyhow::Result<()> {
        let bytes = self.session.limit / 2;
        let cache = warm_cache(self.session.limit)?;
        let ours = cache.open(self.made.path())?;
        self.ahead.set(self.ahead.default)?;
        let kernels = self.made.cold()?;
        for pattern in [Pattern::Reverse, Pattern::Random] {
            let mut work = self.work(pattern, bytes, CACHED);
            let passes = CACHED / work.reads;
            let names = [1, 2].map(|threads| cached_row(pattern, threads));
            let rows = names
                .iter()
                .flat_map(|name| [row(name, OURS), row(name, "pread")]);
            if !rows.into_iter().any(|row| self.wants(&row)) {
                continue;
            }
            let whole = self.work(Pattern::Sequential, bytes, 0);
            whole.run(&ours, 1)?;
            whole.run(&kernels, 1)?;
            for threads in [1, 2] {
                work.seed += 1;
                self.progress.tick();
                let name = cached_row(pattern, threads);
                self.rows
                    .add_run(row(&name, OURS), repeat(&work, &ours, threads, passes)?);
                self.rows.add_run(
                    row(&name, "pread"),
                    repeat(&work, &kernels, threads, passes)?,
                );
            }
        }
        Ok(())
    }

    /// A file of which nothing is in memory.
    fn cold(&mut self, pattern: Pattern) -> anyhow::Result<()> {
        let (work, name) = (self.work(pattern, self.bytes, SMALL_READS), pattern.name());
        self.progress.tick();
        if self.wants(&row(&name, OURS)) {
            let cache = warm_cache(self.session.limit)?;
            drop(self.made.cold()?);
            let run = work.run(&cache.open(self.made.path())?, 1)?;
            self.rows.add_run(row(&name, OURS), run);
        }
        if pattern == Pattern::Twice {
            // The kernel would keep all of the file: it has no limit here.
            return Ok(());
        }
        for kib in self.ahead.values() {
            if !self.wants(&row(&name, &pread(kib))) {
                continue;
            }
            self.ahead.set(kib)?;
            let run = work.run(&self.made.cold()?, 1)?;
            self.rows.add_run(row(&name, &pread(kib)), run);
        }
        self.ahead.set(self.ahead.default)
    }

    fn slow(&mut self) -> anyhow::Result<()> {
        for store in SLOW {
            // The slowest store is given fewer bytes: each row takes about the time of the others.
            let bytes = self.bytes * store.1 / 1000;
            for pattern in Pattern::ALL {
                let name = slow_row(pattern, OURS, store);
                let is_known = pattern != Pattern::Random && pattern != Pattern::Twice;
                if is_known && self.wants(&name) {
                    self.slow_pattern(pattern, bytes, store, name)?;
                }
            }
            if store == TWICE_ON {
                self.twice(bytes, store)?;
            }
        }
        Ok(())
    }

    /// Reads about so many bytes in a pattern from a slow store.
    fn slow_pattern(
        &mut self,
        pattern: Pattern,
        bytes: u64,
        store: Slow,
        name: String,
    ) -> anyhow::Result<()> {
        self.progress.tick();
        let work = Work {
            reads: pattern.reads(pattern.span(bytes), 0),
            ..self.work(pattern, pattern.span(bytes), 0)
        };
        let cache = warm_cache(self.session.limit)?;
        let file = cache.open_store(slow_file(work.bytes, slowness(store))?, false)?;
        self.rows.add_run(name, work.run(&file, 1)?);
        Ok(())
    }

    /// Reads a file that is larger than the cache twice, and the same after the whole file has been read once, as a
    /// program does that fetches a file before it uses it.
    fn twice(&mut self, bytes: u64, store: Slow) -> anyhow::Result<()> {
        for of in [OURS, PREFETCH] {
            let name = slow_row(Pattern::Twice, of, store);
            if !self.wants(&name) {
                continue;
            }
            self.progress.tick();
            let cache = warm_cache(self.session.limit)?;
            let file = cache.open_store(slow_file(bytes, slowness(store))?, false)?;
            let mut before = Duration::ZERO;
            if of == PREFETCH {
                before = self.work(Pattern::Sequential, bytes, 0).run(&file, 1)?.time;
            }
            let mut run = self.work(Pattern::Twice, bytes, 0).run(&file, 1)?;
            run.time += before;
            self.rows.add_run(name, run);
        }
        Ok(())
    }
}

fn slowness((millis, megabytes): Slow) -> Slowness {
    Slowness {
        delay: Duration::from_millis(millis),
        bandwidth: megabytes * 1_000_000,
        ..Slowness::default()
    }
}

/// The same work several times.
fn repeat(work: &Work, reader: &dyn Reader, threads: u64, passes: u64) -> anyhow::Result<Run> {
    let mut sum = work.run(reader, threads)?;
    for _ in 1..passes {
        let run = work.run(reader, threads)?;
        sum.reads += run.reads;
        sum.bytes += run.bytes;
        sum.time += run.time;
    }
    Ok(sum)
}

fn cached_row(pattern: Pattern, threads: u64) -> String {
    format!("cached {}, {threads} threads", pattern.name())
}

fn slow_row(pattern: Pattern, of: &str, (millis, megabytes): Slow) -> String {
    row(
        &pattern.name(),
        &format!("{of}, {millis} ms, {megabytes} MB/s"),
    )
}
