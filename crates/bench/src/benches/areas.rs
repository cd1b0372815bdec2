//! The device of the swap areas alone: the reference for every other figure.

use serde_json::json;

use super::new_report;
use crate::args::BenchArgs;
use crate::disk::{DEPTHS, Disk, TRANSFER};
use crate::peer::{Figures, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Unit};
use crate::size::humane;

const TURNS: u32 = 3;
const BYTES: u64 = 1 << 30;
const READS: u64 = 20_000;

/// Measures bandwidth at some depths, and the latency of random reads.
pub fn run(args: &BenchArgs, session: &Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total).unwrap_or(BYTES);
    let progress = Progress::over(u64::from(turns));
    progress.say("making a file");
    let mut disk = Disk::make(&session.directory, bytes, session.limit)?;
    let mut rows: Vec<(String, Vec<Figures>)> = Vec::new();
    for depth in DEPTHS {
        rows.push((
            format!("{} transfers, {depth} at once", humane(TRANSFER as u64)),
            Vec::new(),
        ));
    }
    rows.push(("4 KiB random reads, one at a time".to_owned(), Vec::new()));
    for turn in 0..turns {
        for (depth, (_, figures)) in DEPTHS.iter().zip(&mut rows) {
            figures.push(Figures::from([
                (
                    "write_bytes_per_s".to_owned(),
                    disk.write_bandwidth(*depth)?,
                ),
                ("read_bytes_per_s".to_owned(), disk.read_bandwidth(*depth)?),
            ]));
            progress.tick();
        }
        let latency = disk.random_read_latency(READS, args.usemem.seed + u64::from(turn))?;
        if let Some((_, figures)) = rows.last_mut() {
            figures.push(Figures::from([
                ("p50_ns".to_owned(), latency.p50 as f64),
                ("average_ns".to_owned(), latency.average),
                ("p99_ns".to_owned(), latency.p99 as f64),
                ("max_ns".to_owned(), latency.max as f64),
            ]));
        }
        progress.step();
    }
    drop(progress);
    let title = format!(
        "{} with direct I/O, medians of {turns} turns",
        humane(bytes)
    );
    let parameters = json!({ "bytes": bytes, "turns": turns, "random_reads": READS });
    let mut report = new_report("areas", title, session, parameters);
    let rows = rows.into_iter();
    report.peers = rows
        .map(|(name, turns)| PeerReport::new(name, turns, Vec::new()))
        .collect();
    report.show(vec![
        Column::spread("read MiB/s", "read_bytes_per_s", Unit::Mebibytes),
        Column::spread("write MiB/s", "write_bytes_per_s", Unit::Mebibytes),
        Column::spread("p50 us", "p50_ns", Unit::Microseconds),
        Column::median("average", "average_ns", Unit::Microseconds),
        Column::median("p99", "p99_ns", Unit::Microseconds),
    ]);
    Ok(report)
}
