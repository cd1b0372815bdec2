//! The page hash alone, beside memcpy: whether it runs at the speed of memory.

use anyhow::ensure;
use serde_json::json;

use super::new_report;
use crate::args::BenchArgs;
use crate::digest::Pages;
use crate::peer::{Figures, Session};
use crate::progress::Progress;
use crate::report::{Column, PeerReport, Report, Target, Unit};
use crate::size::humane;

const TURNS: u32 = 7;
const BYTES: u64 = 256 << 20;
/// A size that fits a core's own cache together with its copy.
const IN_CACHE: u64 = 64 << 10;
const PAGE: u64 = 4096;

/// A row of the report: its name, and its operation.
type Row = (&'static str, fn(&mut Pages) -> anyhow::Result<f64>);
const ROWS: [Row; 3] = [
    ("hash", |pages| pages.hash()),
    ("zero pages", |pages| pages.zeros()),
    ("memcpy", |pages| pages.copy()),
];

/// Hashes, finds zero and copies pages in the cache and in memory, in turns.
pub fn run(args: &BenchArgs, session: &Session) -> anyhow::Result<Report> {
    let turns = args.turns.unwrap_or(TURNS);
    let bytes = args.usemem.bytes.or(args.usemem.total).unwrap_or(BYTES);
    ensure!(
        (1 << 20..=64 << 30).contains(&bytes) && bytes.is_multiple_of(PAGE),
        "{bytes} bytes of pages (--total): it should be 1M to 64G, in whole 4K; twice as much is used"
    );
    let progress = Progress::over(u64::from(turns));
    progress.say("making pages");
    let mut sizes = [IN_CACHE, bytes].map(|bytes| {
        let pages = Pages::new((bytes / PAGE) as usize, args.usemem.seed);
        (bytes, pages)
    });
    let mut rows: Vec<(String, Vec<Figures>)> = Vec::new();
    for (what, _) in ROWS {
        rows.extend(
            sizes
                .iter()
                .map(|(bytes, _)| (row(what, *bytes), Vec::new())),
        );
    }
    for _ in 0..turns {
        let mut figures = rows.iter_mut().map(|(_, figures)| figures);
        for (_, measure) in ROWS {
            for (_, pages) in &mut sizes {
                let bytes_per_s = measure(pages)?;
                let page_ns = PAGE as f64 * 1e9 / bytes_per_s;
                if let Some(figures) = figures.next() {
                    figures.push(Figures::from([
                        ("bytes_per_s".to_owned(), bytes_per_s),
                        ("ns_per_page".to_owned(), page_ns),
                    ]));
                }
                progress.tick();
            }
        }
        progress.step();
    }
    drop(progress);

    let title = format!(
        "pages of 4 KiB, {} of them (in cache) and {} (in memory), medians of {turns} turns",
        humane(IN_CACHE),
        humane(bytes)
    );
    let parameters = json!({ "bytes": bytes, "cache_bytes": IN_CACHE, "turns": turns,
        "seed": args.usemem.seed });
    let mut report = new_report("digest", title, session, parameters);
    report.peers = rows
        .into_iter()
        .map(|(name, turns)| PeerReport::new(name, turns, Vec::new()))
        .collect();
    report.show(vec![
        Column::spread("GB/s", "bytes_per_s", Unit::Gigabytes),
        Column::median("ns/page", "ns_per_page", Unit::Number),
    ]);
    let of = |what, bytes| report.peer(&row(what, bytes))?.median("bytes_per_s");
    let ratio = |bytes| {
        of("hash", bytes)
            .zip(of("memcpy", bytes))
            .map(|(a, b)| a / b)
    };
    let what = "hash of pages in memory, bytes/s to those that memcpy copies";
    let target = Target::at_least(what, 1.0, Unit::Ratio, ratio(bytes));
    report.targets.push(target);
    Ok(report)
}

fn row(what: &str, bytes: u64) -> String {
    match bytes {
        IN_CACHE => format!("{what}, in cache"),
        _ => format!("{what}, in memory"),
    }
}
